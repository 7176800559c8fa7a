"""`info`: a summary of a directory, from Python and on the command line."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import mqstore
from conftest import SMALL, Cli


def test_info(filled: Path, cli: Cli) -> None:
    found = json.loads(cli("info", filled, "--format", "json").stdout)
    with mqstore.open(filled) as store:
        end = store.stats().log_max_offset
    assert found["layout"] == "file-queues"
    assert found["written_by"] == "mqstore"
    assert found["clean"] is True
    assert found["segment_size"] == 64 << 10
    assert (found["log_min_offset"], found["log_max_offset"]) == (0, end)
    assert found["messages"] == 45
    assert sum(hour["bytes"] for hour in found["hours"]) == end
    assert all(hour["start_timestamp"] % 3_600_000 == 0 for hour in found["hours"])
    assert found["topics"] == [
        {"topic": "events", "queues": [{"queue_id": 0, "min_offset": 0, "max_offset": 5}]},
        {
            "topic": "orders",
            "queues": [
                {"queue_id": 0, "min_offset": 0, "max_offset": 20},
                {"queue_id": 1, "min_offset": 0, "max_offset": 20},
            ],
        },
    ]
    assert {"commitlog", "consumequeue", "index", "mqstore"} <= set(found["parts"])
    assert found["rocksdb"] is False
    assert found["locked"] is False
    assert found == mqstore.info(filled).to_dict()
    assert json.loads(cli("info", filled, "--format", "jsonl").stdout) == found
    table = cli("info", filled).stdout
    assert re.search(r"layout +file-queues", table)
    assert re.search(r"commitlog +1 +64\.0 KiB", table)
    assert re.search(r"queue entry bytes +900 B \(", table)
    assert "group" not in table
    assert re.search(r"hour +written\b[^█]+T\d\d:00 +█+", table)
    assert re.search(r"orders +1 +0 +20", table)


def test_info_of_files(filled: Path) -> None:
    found = mqstore.info(filled)
    assert found.queue_file_size == SMALL.queue_file_entries * 20
    assert (found.index_slots, found.index_entries) == (SMALL.index_slots, SMALL.index_entries)
    assert found.queue_entry_bytes == 45 * 20
    with mqstore.open(filled) as store:
        times = [queue for topic in store.topics() for queue in store.queues(topic)]
    assert found.min_store_timestamp == min(queue.min_store_timestamp or 0 for queue in times)
    assert found.max_store_timestamp == max(queue.max_store_timestamp or 0 for queue in times)
    assert [part.part for part in found.disk] == list(found.parts)
    for part in found.disk:
        root = filled / part.part
        files = [root] if root.is_file() else [path for path in root.rglob("*") if path.is_file()]
        assert part.files == len(files)
        assert part.bytes == sum(path.stat().st_size for path in files)
        assert part.disk_bytes == sum(path.stat().st_blocks * 512 for path in files)
    # A log alone is a store, too. Missing parts are reported.
    for name in ("consumequeue", "index", "mqstore"):
        shutil.rmtree(filled / name)
    bare = mqstore.info(filled)
    assert (bare.queue_file_size, bare.index_slots, bare.index_entries, bare.queue_entry_bytes) == (None, None, None, 0)
    assert (bare.messages, bare.min_store_timestamp) == (45, found.min_store_timestamp)


OFFSETS = """{
    "dataVersion":{"counter":3,"stateVersion":0,"timestamp":1700000000000},
    "groupTopicMap":{},
    "offsetTable":{"orders@billing":{0:15,1:20},"orders@late":{1:25},"gone@billing":{0:7},"a@b@c":{0:1}}
}"""


def test_info_of_consumer_groups(filled: Path, cli: Cli) -> None:
    config = filled / "config"
    config.mkdir(exist_ok=True)
    # In RocketMQ's form: number keys without quotes, which is not JSON.
    (config / "consumerOffset.json").write_text(OFFSETS)
    (config / "lmqConsumerOffset.json").write_text('{"offsetTable":{},"lmqOffsetTable":{"events@%LMQ%x":3}}')
    found = json.loads(cli("info", filled, "--format", "json").stdout)["consumers"]
    assert found == [
        {"group": "%LMQ%x", "topic": "events", "queues": [{"queue_id": 0, "offset": 3, "lag": 2}]},
        {"group": "billing", "topic": "gone", "queues": [{"queue_id": 0, "offset": 7, "lag": None}]},
        {
            "group": "billing",
            "topic": "orders",
            "queues": [{"queue_id": 0, "offset": 15, "lag": 5}, {"queue_id": 1, "offset": 20, "lag": 0}],
        },
        {"group": "late", "topic": "orders", "queues": [{"queue_id": 1, "offset": 25, "lag": -5}]},
    ]
    assert [(one.group, one.topic, one.lag) for one in mqstore.info(filled).consumers] == [
        ("%LMQ%x", "events", 2), ("billing", "gone", 0), ("billing", "orders", 5), ("late", "orders", 0)
    ]  # fmt: skip
    assert re.search(r"billing +orders +2 +5\b", cli("info", filled).stdout)
    # If a file is damaged, its backup completes it, and a note reports it.
    (config / "consumerOffset.json").write_text("{")
    assert "consumerOffset.json: damaged" in cli("info", filled).stderr
    (config / "consumerOffset.json.bak").write_text(OFFSETS)
    assert len(mqstore.info(filled).consumers) == 4
    [note] = mqstore.info(filled).notes
    assert "consumerOffset.json: damaged" in note
