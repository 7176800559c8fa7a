"""`export` and `import_`: equal messages after a round trip, complete files or none, and a restart after a kill."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Literal

import pytest

import mqstore
import rocketmq_bytes as rmq
from conftest import Cli, tree_hash
from mqstore._dicts import message_dict
from mqstore.cli.render import dump

FORMATS = ("jsonl", "parquet", "arrow")
NEW_PROPERTIES = {"__CRC32#", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET"}

RECORDS: list[dict[str, Any]] = [
    {"topic": "plain", "body": b"plain"},
    {"topic": "plain", "body": b"", "queue_offset": 1, "flag": -7},
    {
        "topic": "many",
        "queue_id": 3,
        "properties": rmq.properties(KEYS="a b", TAGS="T", UNIQ_KEY="U", own='ü\u2028"\\\n'),
    },
    {"topic": "many", "queue_id": 0, "properties": rmq.properties(**{f"n{n}": "\x7f\t\u0000" for n in range(300)})},
    {"topic": "%RETRY%g", "host": ("2001:db8::1", 70000), "reconsume": 16, "born": -1},
    {"topic": "plain", "queue_offset": 2, "body": rmq.zlib_body(b"z" * 5000), "sys_flag": rmq.COMPRESSED | rmq.ZLIB},
    {"topic": "plain", "queue_offset": 3, "body": rmq.zstd_body(b"s" * 99), "sys_flag": rmq.COMPRESSED | rmq.ZSTD},
    {"topic": "plain", "body": b"half", "sys_flag": 4},
    {"topic": "plain", "body": b"rolled back", "sys_flag": 12},
    {"topic": "plain", "body": b"committed", "sys_flag": 8, "queue_offset": 4, "prepared": 9},
    {"topic": "plain", "body": bytes(range(256)), "queue_offset": 5},
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A foreign store with messages of many kinds."""
    rmq.write_log(tmp_path / "source", RECORDS)
    return tmp_path / "source"


def in_log(path: Path) -> list[mqstore.StoredMessage]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        with mqstore.open(path) as store:
            return list(store._scan_log())


def sent(messages: list[mqstore.StoredMessage]) -> list[mqstore.StoredMessage]:
    return [one for one in messages if one.sys_flag & 0xC not in (4, 12)]


def essence(message: mqstore.StoredMessage) -> dict[str, Any]:
    """All of a message except its positions and store times."""
    names = ("topic", "queue_id", "unique_id", "body", "keys", "tags", "flag", "born_timestamp", "born_host")
    properties = {name: value for name, value in message.properties.items() if name not in NEW_PROPERTIES}
    rest = {"properties": properties, "reconsume_times": message.reconsume_times}
    return {**{name: getattr(message, name) for name in names}, **rest}


@pytest.mark.parametrize("kind", FORMATS)
def test_round_trip(source: Path, tmp_path: Path, kind: str) -> None:
    if kind != "jsonl":
        pytest.importorskip("pyarrow")
    file, target = tmp_path / f"out.{kind}", tmp_path / "target"
    before = tree_hash(source)
    report = mqstore.export(source, file)
    # Half messages and rollbacks of RocketMQ 3 are in no queue.
    assert (report.messages, report.reasons) == (len(RECORDS) - 2, {"internal": 2})
    assert report.bytes == file.stat().st_size
    assert report.format == kind
    assert tree_hash(source) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, "source"]
    done = mqstore.import_(target, file)
    wanted = sent(in_log(source))
    assert (done.messages, done.skipped, sum(done.topics.values())) == (len(wanted), 0, len(wanted))
    assert [essence(one) for one in in_log(target)] == [essence(one) for one in wanted]
    assert all(one.sys_flag & 1 == 0 for one in in_log(target))
    assert mqstore.verify(target).ok
    # Again, after the existing messages.
    mqstore.import_(target, file, topic="all")
    again = in_log(target)[len(wanted) :]
    assert [one.topic for one in again] == ["all"] * len(wanted)
    assert [one.body for one in again] == [one.body for one in wanted]


def test_json_lines_are_those_of_cat(source: Path, tmp_path: Path) -> None:
    broken = {"topic": "t", "body": b"no zlib", "sys_flag": rmq.COMPRESSED | rmq.ZLIB}
    twice = {"topic": "t", "properties": rmq.properties(a="1", b="2") + b"a\x013\x02\xff\x01x\x02KEYS\x01 x  y\x02"}
    emoji = {"topic": "t", "properties": rmq.properties(a="\U0001f600\b\f\r/<>"), "host": ("::1", -1)}
    rmq.write_log(tmp_path / "odd", [broken, twice, emoji])
    for home in (source, tmp_path / "odd"):
        file = tmp_path / f"{home.name}.jsonl"
        mqstore.export(home, file)
        wanted = [dump(message_dict(message, "base64")) for message in sent(in_log(home))]
        head, *lines = file.read_text("ascii").splitlines()
        assert list(json.loads(head)) == ["mqstore"]
        assert lines == wanted


def test_a_body_that_does_not_unpack_survives(tmp_path: Path) -> None:
    rmq.write_log(tmp_path / "s", [{"body": b"no zlib", "sys_flag": rmq.COMPRESSED | rmq.ZLIB}])
    mqstore.export(tmp_path / "s", tmp_path / "o.jsonl")
    mqstore.import_(tmp_path / "t", tmp_path / "o.jsonl")
    (one,) = in_log(tmp_path / "t")
    assert bytes(one.body_view) == b"no zlib"
    with pytest.raises(mqstore.CorruptionError):
        _ = one.body


def test_what_is_selected(filled: Path, tmp_path: Path) -> None:
    messages = in_log(filled)
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"topics": "events"}, lambda m: m.topic == "events"),
        ({"topics": ["orders"], "filter": "paid"}, lambda m: m.tags == "paid"),
        ({"keys": ["k3", "k4"]}, lambda m: {"k3", "k4"} & set(m.keys)),
        ({"body_matches": "^body 1[0-5]$"}, lambda m: m.body.decode("latin-1") in {f"body {n}" for n in range(10, 16)}),
        ({"body_matches": "(?-u)\\x04{100}"}, lambda m: m.body == b"\4" * 100),
        ({"start_time": messages[20].store_timestamp}, lambda m: m.store_timestamp >= messages[20].store_timestamp),
    ]
    for number, (arguments, wanted) in enumerate(cases):
        file = tmp_path / f"{number}.jsonl"
        report = mqstore.export(filled, file, **arguments)
        found = [json.loads(line)["commit_log_offset"] for line in file.read_text().splitlines()[1:]]
        assert found == [message.commit_log_offset for message in messages if wanted(message)], arguments
        assert report.messages == len(found)


def test_columns(filled: Path, tmp_path: Path) -> None:
    mqstore.export(filled, tmp_path / "o.jsonl", columns=["tags", "body"], topics="events")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    assert [list(line) for line in lines] == [["tags", "body_base64"]] * 5
    parquet = pytest.importorskip("pyarrow.parquet")
    mqstore.export(filled, tmp_path / "o.parquet", columns=["tags", "queue_id"])
    assert parquet.read_table(tmp_path / "o.parquet").column_names == ["tags", "queue_id"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_files_are_tables_of_the_scan(filled: Path, tmp_path: Path, kind: str) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / f"o.{kind}"
    mqstore.export(filled, file)
    table = pq.read_table(file) if kind == "parquet" else pa.ipc.open_file(file).read_all()
    assert table.equals(mqstore.scan(filled).to_arrow())
    if kind == "parquet":
        assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_into_a_store(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    report = mqstore.export(source, target, format="store")
    wanted = sent(in_log(source))
    assert (report.messages, report.skipped, report.resumed) == (len(wanted), 2, False)
    copies = in_log(target)
    assert [essence(one) for one in copies] == [essence(one) for one in wanted]
    assert [one.sys_flag & 0x701 for one in copies] == [one.sys_flag & 0x701 for one in wanted]
    lines = [json.loads(line) for line in (tmp_path / "copy.mapping.jsonl").read_text().splitlines()]
    for line, old, new in zip(lines, wanted, copies, strict=True):
        assert line == {
            "topic": old.topic,
            "queue_id": old.queue_id,
            "queue_offset": old.queue_offset,
            "commit_log_offset": old.commit_log_offset,
            "message_id": old.message_id,
            "new_queue_offset": new.queue_offset,
            "new_commit_log_offset": new.commit_log_offset,
            "new_message_id": new.message_id,
        }
    with pytest.raises(FileExistsError, match="mapping"):
        mqstore.export(source, target, format="store")
    mqstore.export(source, target, format="store", keys="a", mapping=tmp_path / "second")
    assert len(in_log(target)) == len(wanted) + 1
    assert mqstore.verify(target).ok
    with pytest.raises(ValueError, match="itself"):
        mqstore.export(source, source, format="store", mapping=tmp_path / "third")


def test_files_are_not_replaced_unless_asked(filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    file.write_text("mine")
    with pytest.raises(FileExistsError):
        mqstore.export(filled, file)
    assert file.read_text() == "mine"
    mqstore.export(filled, file, overwrite=True)
    assert len(file.read_text().splitlines()) == 1 + 45


class StopError(Exception):
    pass


@pytest.mark.parametrize("kind", FORMATS)
def test_an_interrupted_export_leaves_no_file(filled: Path, tmp_path: Path, kind: str) -> None:
    if kind != "jsonl":
        pytest.importorskip("pyarrow")
    file = tmp_path / f"o.{kind}"

    def stop(_step: mqstore.Progress) -> None:
        raise StopError

    with pytest.raises(StopError):
        mqstore.export(filled, file, progress=stop)
    assert not file.exists()
    assert mqstore.export(filled, file).messages == 45
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, "store"]


def test_what_is_wrong_is_said(filled: Path, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"dest": tmp_path / "x"}, ValueError, "format"),
        ({"dest": tmp_path / "x.jsonl", "format": "xml"}, ValueError, "xml"),
        ({"dest": tmp_path / "x.jsonl", "body_matches": "("}, mqstore.InvalidOptionError, "body_matches"),
        ({"dest": tmp_path / "x.jsonl", "body_matches": b"x"}, TypeError, "body_matches"),
        ({"dest": tmp_path / "x.jsonl", "columns": ["x"]}, mqstore.InvalidOptionError, "column"),
        ({"dest": tmp_path / "x.jsonl", "topics": "nope"}, mqstore.TopicNotFoundError, "nope"),
        ({"dest": tmp_path / "x", "format": "store", "topics": "nope"}, mqstore.TopicNotFoundError, "nope"),
        ({"dest": tmp_path / "x", "format": "store", "columns": ["body"]}, ValueError, "columns"),
    ]
    for arguments, kind, text in cases:
        with pytest.raises(kind, match=text):
            mqstore.export(filled, **arguments)
    assert not (tmp_path / "x").exists()


BAD_ROWS = [
    ("{", "not JSON"),
    ("[]", "JSON object"),
    ('{"body_text": "x"}', "topic"),
    ('{"topic": "t"}', "no body"),
    ('{"topic": "t", "body_base64": "?"}', "base64"),
    ('{"topic": "t", "body_text": "x", "properties": [1]}', "properties"),
    ('{"topic": "t", "body_text": "x", "properties": {"a": 1}}', "properties"),
    ('{"topic": "t", "body_text": "x", "queue_id": "0"}', "queue_id"),
    ('{"topic": "t", "body_text": "x", "flag": 4294967296}', "flag"),
    ('{"topic": "t", "body_text": "x", "born_timestamp": "soon"}', "born_timestamp"),
    ('{"topic": "t", "body_text": "x", "born_timestamp": "2026-01-01T00:00:00"}', "time zone"),
    ('{"topic": "t", "body_text": "x", "keys": 1}', "keys"),
    ('{"topic": "t", "body_text": "x", "sys_flag": 128}', "batch"),
    ('{"topic": "no topic", "body_text": "x"}', "no topic"),
    ('{"topic": "t", "body_text": "x", "properties": {"a\\u0001": "b"}}', "line 2"),
    ('{"topic": "t", "body_text": "x", "queue_id": -1}', "-1"),
    ('{"topic": "t", "body_text": "x", "born_host": "here"}', "here"),
    ('{"topic": "t", "body_text": "x", "properties": {"a": "' + "v" * 40_000 + '"}}', "32"),
    ('{"topic": "' + "t" * 200 + '", "body_text": "x"}', "too long"),
]


@pytest.mark.parametrize(("line", "text"), BAD_ROWS)
def test_a_bad_row_is_named(home: Path, tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "in.jsonl"
    good = '{"topic": "t", "body_text": "good"}'
    file.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(mqstore.InvalidMessageError, match=text) as raised:
        mqstore.import_(home, file)
    assert f"{file}, line 2" in str(raised.value)
    assert not home.exists()


def test_rows_of_other_origin(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    rows = [
        {"topic": "t", "body_text": "ü", "keys": ["a", "b"], "tags": "T", "unique_id": "U"},
        {"topic": "t", "body": "text", "keys": "c d", "properties": {"KEYS": "e"}},
        {"topic": "t", "body_text": "x", "born_timestamp": "2026-01-01T00:00:00+00:00", "queue_id": 5},
    ]
    file.write_text("\n\n".join(map(json.dumps, rows)))
    assert mqstore.import_(home, file, dry_run=True).topics == {"t": 3}
    assert not home.exists()
    mqstore.import_(home, file)
    first, second, third = in_log(home)
    assert (first.text(), first.keys, first.tags, first.unique_id) == ("ü", ("a", "b"), "T", "U")
    assert (second.body, second.keys, second.unique_id) == (b"text", ("e",), None)
    assert (third.born_timestamp, third.queue_id) == (1_767_225_600_000, 5)
    with mqstore.open(home) as store:
        assert len(store.queues("t")) == 6
        assert [one.body for one in store.lookup("t", "b")] == ["ü".encode()]


CHILD = """
import sys, mqstore
from mqstore._admin.export import file_export, partial
partial._STATE_BYTES = file_export._PART_BYTES = 1
def tell(step):
    print(step.done, flush=True)
kind = sys.argv[3]
mqstore.export(sys.argv[1], sys.argv[2], format=kind, progress=tell, parts=kind in ("parquet", "arrow"))
print("whole", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "store", "parquet", "arrow"])
def test_a_killed_export_goes_on(tmp_path: Path, kind: Literal["jsonl", "store", "parquet", "arrow"]) -> None:
    """Killed at random moments, many times: each message once, in order, and the mapping has the new places."""
    source, target = tmp_path / "source", tmp_path / "target"
    with mqstore.open(source, "create", segment_size=4 << 20, index_slots=1000, index_entries=20_000) as store:
        store.create_topic("t", queues=3)
        for _ in range(12):
            store.append_many("t", [random.randbytes(1000) for _ in range(1000)])
    seed = random.randrange(1 << 30)
    print("seed", seed)
    dice = random.Random(seed)
    command = [sys.executable, "-c", CHILD, str(source), str(target), kind]
    if kind in {"parquet", "arrow"}:
        pytest.importorskip("pyarrow")
    result = Path(f"{target}.mapping.jsonl") if kind == "store" else target
    rounds = 0
    whole = False
    while not whole:
        patience = dice.randrange(1, 5) if rounds < 8 else 1 << 30
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                whole = whole or line == "whole\n"
                patience -= 1
                if patience == 0:
                    time.sleep(dice.random() * 0.01)
                    child.send_signal(signal.SIGKILL)
        rounds += 1
        # The kill may have come after the last step.
        whole = whole or result.exists()
        assert whole or child.returncode == -signal.SIGKILL
    if child.returncode == -signal.SIGKILL:
        # The next call removes the rest of a kill in the last step, and finds the work done.
        with pytest.raises(FileExistsError):
            mqstore.export(source, target, format=kind)
    messages = in_log(source)
    if kind == "jsonl":
        assert target.read_text().splitlines()[1:] == [dump(message_dict(one, "base64")) for one in messages]
        left = [target.name, source.name]
    elif kind != "store":
        dataset = pytest.importorskip("pyarrow.dataset")
        files = sorted(target.iterdir())
        assert [path.name for path in files] == [f"part-{number:05}.{kind}" for number in range(len(files))]
        found = dataset.dataset(files, format=kind).to_table(columns=["commit_log_offset", "body"])
        assert found["commit_log_offset"].to_pylist() == [one.commit_log_offset for one in messages]
        assert found["body"].to_pylist() == [one.body for one in messages]
        left = [target.name, source.name]
    else:
        copies = in_log(target)
        assert [essence(one) for one in copies] == [essence(one) for one in messages]
        lines = [json.loads(line) for line in Path(f"{target}.mapping.jsonl").read_text().splitlines()]
        assert [line["commit_log_offset"] for line in lines] == [one.commit_log_offset for one in messages]
        assert [line["new_commit_log_offset"] for line in lines] == [one.commit_log_offset for one in copies]
        left = [target.name, f"{target.name}.mapping.jsonl", source.name]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(left)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_parts(filled: Path, tmp_path: Path, kind: str, cli: Cli) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    folder = tmp_path / f"out.{kind}"
    done = json.loads(cli("export", filled, folder, "--parts", "--format", "json").stdout)
    (part,) = folder.iterdir()
    assert (part.name, done["messages"], done["bytes"]) == (f"part-00000.{kind}", 45, part.stat().st_size)
    assert mqstore.import_(tmp_path / "again", part).messages == 45
    # A folder of parts is imported like one file.
    shutil.copy(part, folder / f"part-00001.{kind}")
    (folder / "notes.txt").write_text("no part")
    told: list[mqstore.Progress] = []
    assert mqstore.import_(tmp_path / "again", folder, progress=told.append).messages == 90
    assert len(in_log(tmp_path / "again")) == 135
    (folder / f"part-00001.{kind}").write_bytes(b"cut off")
    with pytest.raises(mqstore.InvalidMessageError, match="part-00001"):
        mqstore.import_(tmp_path / "again", folder)
    (tmp_path / "none").mkdir()
    with pytest.raises(FileNotFoundError, match="part-00000"):
        mqstore.import_(tmp_path / "again", tmp_path / "none")
    with pytest.raises(FileExistsError):
        mqstore.export(filled, folder, parts=True, overwrite=True)
    with pytest.raises(ValueError, match="parts"):
        mqstore.export(filled, tmp_path / "x.jsonl", parts=True)
    # The columns exist even without messages.
    empty = tmp_path / "empty.parquet"
    assert mqstore.export(filled, empty, parts=True, keys="nobody").messages == 0
    assert parquet.read_schema(empty / "part-00000.parquet").names == mqstore.scan(filled).schema.names
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [folder.name, "again", "empty.parquet", "none", filled.name]
    )


def test_other_arguments_begin_anew(filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"
    state = Path(f"{file}.partial.state")
    Path(f"{file}.partial").write_bytes(b"left over\n")
    state.write_text(json.dumps({"digest": "other", "position": 0, "bytes": 10, "messages": 1, "left_out": 0}))
    report = mqstore.export(filled, file)
    assert (report.messages, report.resumed) == (45, False)
    assert len(file.read_text().splitlines()) == 1 + 45
    assert not state.exists()


def test_two_exports_to_one_file(filled: Path, tmp_path: Path) -> None:
    file = tmp_path / "o.jsonl"

    def second(_step: mqstore.Progress) -> None:
        with pytest.raises(mqstore.StoreBusyError):
            mqstore.export(filled, file)

    assert mqstore.export(filled, file, progress=second).messages == 45


@pytest.mark.slow
def test_the_commands(filled: Path, tmp_path: Path, cli: Cli) -> None:
    file, target = tmp_path / "o.jsonl", tmp_path / "target"
    done = cli("export", filled, file, "--topic", "orders", "--filter", "paid", "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["messages"] == 20
    printed = cli("cat", filled, "--log", "--topic", "orders", "--filter", "paid", "--body", "base64").stdout
    assert file.read_text().partition("\n")[2] == printed
    assert cli("export", filled, file).returncode == 3
    assert cli("export", filled, tmp_path / "o.xyz").returncode == 2
    assert cli("export", filled, tmp_path / "x.jsonl", "--columns", "nope").returncode == 2
    plan = cli("import", target, file, "--create", "--dry-run", "--format", "json")
    assert json.loads(plan.stdout)["topics"] == {"orders": 20}
    asked = cli("import", target, file, "--create")
    assert (asked.returncode, target.exists()) == (2, False)
    assert "--yes" in asked.stderr
    assert cli("import", target, file, "--create", "--yes").returncode == 0
    assert len(in_log(target)) == 20
    file.write_text("{\n")
    bad = cli("import", target, file, "--yes")
    assert bad.returncode == 3
    assert "line 1" in bad.stderr
    copied = cli(
        "export", filled, tmp_path / "copy", "--to", "store", "--mapping", tmp_path / "map", "--format", "jsonl"
    )
    assert json.loads(copied.stdout)["messages"] == 45
    assert len((tmp_path / "map").read_text().splitlines()) == 45


MEMORY = """
import json, sys, mqstore

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

most = 0
def tell(step):
    global most
    most = max(most, anonymous())

source, folder = sys.argv[1:]
before = anonymous()
mqstore.export(source, folder + "/o.jsonl", progress=tell)
mqstore.export(source, folder + "/copy", format="store", progress=tell)
mqstore.import_(folder + "/back", folder + "/o.jsonl", progress=tell)
own = most - before
import pyarrow, pyarrow.parquet
before, most = anonymous(), 0
mqstore.export(source, folder + "/o.parquet", progress=tell)
mqstore.export(source, folder + "/o.arrow", progress=tell)
mqstore.import_(folder + "/back2", folder + "/o.parquet", progress=tell)
print(json.dumps([own, most - before]))
"""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with mqstore.open(tmp_path / "s", "create", segment_size=64 << 20) as store:
        for _ in range(60):
            store.append_many("t", [random.randbytes(5000)] * 1000)
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "s"), str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert max(json.loads(done.stdout)) < 256 << 20
