"""Each verb that promises to change nothing leaves each byte, name and time of a directory as it was, also of a broker.

The directories: one of mqstore, one of RocketMQ, one whose broker was killed, one with a compaction and a deleted
topic, one with a work queue and groups, one of a broker with DLedger, and a tiered store. Each verb runs as usual, and
where the directory is mounted read-only.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import damaged_stores
import dledger_stores
import mqstore
import tiered_stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Cli

VERBS = [
    *(
        "info DIR",
        "topics DIR",
        "topics DIR --queues",
        "topics DIR --sizes",
        "topics DIR --hours",
        "jobs DIR",
        "last DIR GROUP",
        "cat DIR --limit 3",
        "cat DIR --log --limit 3",
        "tail DIR TOPIC",
        "get DIR ID",
    ),
    *("lookup DIR TOPIC KEY", "verify DIR", "stats DIR", "config show DIR", "retention DIR"),
    *("repair DIR --dry-run", "repair DIR --output OUT/mended", "snapshot DIR OUT/snapshot"),
    *("compact DIR --output OUT/compacted", "expire DIR --retention 1ms --dry-run"),
    *(
        "export DIR OUT/all.jsonl",
        "export DIR OUT/all.parquet",
        "export DIR OUT/store --to store",
        "archive DIR OUT/cold",
        "backup DIR OUT/backup",
    ),
    *("export DIR OUT/days --to parquet --partition-by topic,day", "export DIR file://OUT/lake --to parquet"),
    *("import DIR OUT/one.jsonl --dry-run", "group lag DIR", "group reset DIR GROUP --to latest --dry-run"),
    *("dead-letter list DIR", "dead-letter redrive DIR GROUP --dry-run", "copy-topic DIR OUT/copy --topic TOPIC"),
    *("dead-letter show DIR ID", "dead-letter delete DIR GROUP ID --dry-run"),
    *("logic-queue list a=DIR", "logic-queue cat a=DIR", "logic-queue lag a=DIR"),
]
"""The commands. OUT is another folder.

Dry runs of `rebuild` and `compact` make files in the folder for temporary ones; one of `reclaim` opens the store for
writing. A backup that continues leaves a file for the writer, where it may.
"""

RUNNING_BACKUP = "import sys, mqstore\nwith mqstore.backup(*sys.argv[1:]) as running: running.run()"


def _compacted(home: Path) -> None:
    with mqstore.open(home, "create", segment_size=1 << 16) as store:
        store.create_topic("table", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(300):
            store.append("gone" if number % 3 == 0 else "orders", b"%d" % number * 50, keys=f"k{number}", tags="paid")
            store.append("table", b"value %d" % number, keys=f"key{number % 7}")
        store.append("orders", b"later", keys="later", delay=5 * 3600)
        with store.consumer("workers", "orders") as consumer:
            consumer.poll(timeout=0)
            consumer.commit()
        store.delete_topic("gone")
        store.compact()


def _killed(home: Path) -> None:
    damaged_stores.unpacked(home)
    (home / "abort").write_text("1")


def _jobs(home: Path) -> None:
    with mqstore.open(home, "create", segment_size=1 << 16) as store:
        with store.work_queue("jobs", "workers", max_attempts=1, visibility_timeout="1h") as queue:
            queue.put_many([b"%d" % number * 50 for number in range(600)])
            queue.ack_many(queue.get_many(500))
            queue.get().nack(reason="no such address")
            queue.get()
            queue.put(b"later", delay="1h")
        with store.consumer("readers", "jobs", history=True) as consumer:
            consumer.poll(timeout=0)
            consumer.commit()


def _dledger(home: Path) -> None:
    plain = home.with_name("plain of dledger")
    with mqstore.open(plain, "create", options=dledger_stores.GEOMETRY) as store:
        dledger_stores.fill(store)
        with store.consumer("workers", "orders") as consumer:
            consumer.poll(timeout=0)
            consumer.commit()
    dledger_stores.convert(plain, home, split=70)


def _tiered(home: Path) -> None:
    plain = home.with_name("plain of tiered")
    with mqstore.open(plain, "create", options=dledger_stores.GEOMETRY) as store:
        dledger_stores.fill(store)
    tiered_stores.convert(plain, tiered_stores.Tier(home))


KINDS: dict[str, Callable[[Path], object]] = {
    "mqstore": damaged_stores.ours,
    "rocketmq": damaged_stores.unpacked,
    "killed": _killed,
    "compacted": _compacted,
    "jobs": _jobs,
    "dledger": _dledger,
    "tiered": _tiered,
}


def _state(home: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns mode, time of change and content of each file and folder."""
    found = {}
    for path in sorted([home, *home.rglob("*")]):
        stat = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(home))] = (stat.st_mode, stat.st_mtime_ns, content)
    return found


@pytest.fixture(
    scope="module",
    params=["rocketmq", *(pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS if kind != "rocketmq")],
)
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unchanged") / str(request.param)
    KINDS[request.param](path)
    return path


def _words(verb: str, home: Path, out: Path) -> list[str]:
    with mqstore.open(home) as store:
        topic = next(topic for topic in sorted(store.topics()) if store.count(topic))
        message = next(iter(store.read(topic)))
    (out / "one.jsonl").write_text(json.dumps({"topic": topic, "body": "x"}) + "\n")
    names = {"TOPIC": topic, "ID": message.message_id, "KEY": (*message.keys, "k")[0], "GROUP": "workers"}
    words = verb.replace("DIR", str(home)).replace("OUT", str(out)).split()
    return [names.get(word, word) for word in words]


# What the directory lacks, or cannot be: a wrong command line would change nothing, whatever the verb does.
REFUSALS = {
    0: "",
    1: "no message of the topic|no dead letter has the id",
    2: "has no group|has no dead letter with the id",
    3: "never writes",
}
COLUMNS = 500


def _check(verb: str, done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode in REFUSALS, (verb, done.stdout, done.stderr)
    assert re.search(REFUSALS[done.returncode], done.stderr), (verb, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr, (verb, done.stderr)


def test_no_verb_that_reads_changes_the_directory(home: Path, tmp_path: Path, cli: Cli) -> None:
    before = _state(home)
    for verb in VERBS:
        out = tmp_path / verb.replace(" ", "_").replace("/", "_")
        out.mkdir()
        _check(verb, cli(*_words(verb, home, out), columns=COLUMNS))
        assert _state(home) == before, verb


def test_they_work_on_a_read_only_mount(home: Path, tmp_path: Path) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    mount = f'mount --bind "{home}" "{mounted}" && mount -o remount,bind,ro "{mounted}"'
    for namespace in (["unshare", "-m"], ["unshare", "-rm"]):
        trial = [*namespace, "sh", "-c", mount]
        if shutil.which("unshare") and subprocess.run(trial, capture_output=True).returncode == 0:
            break
    else:
        pytest.skip("neither unshare -m nor unshare -rm is permitted")
    before = _state(home)
    for verb in VERBS:
        out = tmp_path / verb.replace(" ", "_").replace("/", "_")
        out.mkdir()
        words = ["-m", "mqstore", *_words(verb, home, out)]
        if verb.startswith("backup ") and home.name not in ("dledger", "tiered"):
            words = ["-c", RUNNING_BACKUP, *words[-2:]]
        words = [word.replace(str(home), str(mounted)) for word in words]
        command = [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env={**os.environ, "COLUMNS": str(COLUMNS)}
        )
        _check(verb, done)
        assert "Read-only" not in done.stderr, (verb, done.stderr)
        assert _state(home) == before, verb
