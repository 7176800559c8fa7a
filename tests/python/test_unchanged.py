"""Each verb that promises to change nothing leaves each byte, name and time of a directory as it was, also of a broker.

The directories: one of mqstore, one of RocketMQ, one whose broker was killed, and one with a compaction and a deleted
topic. Each verb runs as usual, and where the directory is mounted read-only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import damaged_stores
import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Cli

VERBS = [
    *(
        "info DIR",
        "topics DIR",
        "topics DIR --hours",
        "jobs DIR",
        "cat DIR --limit 3",
        "cat DIR --log --limit 3",
        "tail DIR TOPIC",
        "get DIR ID",
    ),
    *("lookup DIR TOPIC KEY", "verify DIR", "stats DIR", "config show DIR", "retention DIR"),
    *("repair DIR --dry-run", "repair DIR --output OUT/mended", "snapshot DIR OUT/snapshot"),
    *("compact DIR --output OUT/compacted", "expire DIR --retention 1ms --dry-run"),
    *("export DIR OUT/all.jsonl", "export DIR OUT/all.parquet", "export DIR OUT/store", "archive DIR OUT/cold"),
    *("import DIR OUT/one.jsonl --dry-run", "group lag DIR", "group reset DIR GROUP --to latest --dry-run"),
    *("dead-letter list DIR", "dead-letter redrive DIR GROUP --dry-run", "copy-topic DIR OUT/copy TOPIC"),
    *("logic-queue list a=DIR", "logic-queue cat a=DIR", "logic-queue lag a=DIR"),
]
"""The commands. OUT is another folder.

Dry runs of `rebuild` and `compact` make files in the folder for temporary ones; one of `reclaim` opens the store for
writing.
"""


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


KINDS: dict[str, Callable[[Path], object]] = {
    "mqstore": damaged_stores.ours,
    "rocketmq": damaged_stores.unpacked,
    "killed": _killed,
    "compacted": _compacted,
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


# The status of a directory with problems, and of a group or a folder that does not exist.
NOT_BROKEN = {0, 1, 2}


def test_no_verb_that_reads_changes_the_directory(home: Path, tmp_path: Path, cli: Cli) -> None:
    before = _state(home)
    for verb in VERBS:
        out = tmp_path / verb.replace(" ", "_").replace("/", "_")
        out.mkdir()
        done = cli(*_words(verb, home, out))
        assert done.returncode in NOT_BROKEN, (verb, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (verb, done.stderr)
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
        words = [word.replace(str(home), str(mounted)) for word in _words(verb, home, out)]
        command = [*namespace, "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-m", "mqstore", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode in NOT_BROKEN, (verb, done.stdout, done.stderr)
        assert "Read-only" not in done.stderr, (verb, done.stderr)
        assert _state(home) == before, verb
