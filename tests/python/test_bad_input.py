"""Directories with damaged or unexpected files: a typed error or a report, never a change or a crash."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import mqstore
import rocketmq_bytes as raw
from conftest import SMALL, python, tree_hash

pytestmark = pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")


def attempt(call: Callable[..., object], *arguments: object) -> None:
    """Every error is one of mqstore."""
    try:
        call(*arguments)
    except mqstore.MQStoreError as error:
        assert str(error)


def look(path: Path) -> None:
    """Runs everything that only reads."""
    attempt(mqstore.info, path)
    attempt(mqstore.verify, path)
    attempt(read_everything, path)


def read_everything(path: Path) -> None:
    def bodies(messages: Iterator[mqstore.StoredMessage]) -> list[bytes]:
        return [message.body for message in messages]

    with mqstore.open(path) as store:
        attempt(store.stats)
        attempt(lambda: bodies(store._scan_log()))
        attempt(store.get, "7F000001" * 4)
        attempt(store.get_at, 178)
        for topic in store.topics():
            attempt(lambda *which: bodies(store.lookup(*which)), topic, "all")
            for queue in store.queues(topic):
                attempt(lambda *which: bodies(store.read(*which)), topic, queue.queue_id)
                attempt(store.offset_for_time, topic, queue.queue_id, 1 << 40)


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "strangers"])
def test_not_a_store(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    if kind == "file":
        path.write_bytes(b"x")
    elif kind != "missing":
        path.mkdir()
        if kind == "strangers":
            (path / "README").write_text("mine")
    before = tree_hash(tmp_path)
    for call in (
        lambda: mqstore.open(path),
        lambda: mqstore.open(path, "rw"),
        lambda: mqstore.info(path),
        lambda: mqstore.verify(path),
    ):
        with pytest.raises(mqstore.NotAStoreError) as caught:
            call()
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)
    assert tree_hash(tmp_path) == before


def test_create_on_a_file(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"x")
    with pytest.raises(mqstore.MQStoreError):
        mqstore.open(path, "create")
    assert path.read_bytes() == b"x"


def test_empty_log_is_an_empty_store(home: Path) -> None:
    (home / "commitlog").mkdir(parents=True)
    before = tree_hash(home)
    with mqstore.open(home) as store:
        assert store.topics() == []
        assert list(store._scan_log()) == []
    assert mqstore.verify(home).ok
    assert mqstore.info(home).messages == 0
    assert tree_hash(home) == before
    with mqstore.open(home, "rw", options=SMALL) as store:
        store.append("t", b"x")


DERIVED = ["consumequeue", "index", "checkpoint", "config", "mqstore", "lock", "abort"]


@pytest.mark.parametrize("parts", [[part] for part in DERIVED] + [DERIVED], ids="+".join)
def test_derived_parts_are_never_needed(filled: Path, parts: list[str]) -> None:
    for part in parts:
        path = filled / part
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    before = tree_hash(filled)
    with mqstore.open(filled) as store:
        assert [message.body for message in store.read("orders", 1)] == [f"body {n}".encode() for n in range(1, 40, 2)]
        assert [message.body for message in store.lookup("orders", "k7")] == [b"body 7"]
        assert len(list(store.lookup("orders", "all"))) == 40
        message = next(store.read("orders", 0, 3))
        assert message.unique_id is not None
        assert store.get(message.unique_id) == message
    assert tree_hash(filled) == before
    with mqstore.open(filled, "rw", options=SMALL) as store:
        store.append("orders", b"more", queue_id=0)
        assert len(list(store.read("orders", 0))) == 21
        assert len(list(store.lookup("orders", "all"))) == 40
    assert mqstore.verify(filled).ok


def test_queues_that_are_wrong_are_derived(filled: Path) -> None:
    queue = filled / "consumequeue/orders/0" / f"{0:020d}"
    queue.write_bytes(b"\xff" * queue.stat().st_size)
    before = tree_hash(filled)
    with mqstore.open(filled) as store:
        assert [message.body for message in store.read("orders", 0)] == [f"body {n}".encode() for n in range(0, 40, 2)]
    report = mqstore.verify(filled)
    assert not report.ok
    assert all(problem.kind.startswith("queue") for problem in report.problems)
    assert tree_hash(filled) == before


def database(folder: Path) -> None:
    """Makes a folder that looks like a RocksDB database."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "CURRENT").write_text("MANIFEST-000005\n")
    (folder / "MANIFEST-000005").write_bytes(b"\0" * 100)
    (folder / "000004.log").write_bytes(b"\0" * 100)


@pytest.mark.parametrize("name", ["consumequeue", "consumequeue_rocksdb"])
def test_rocksdb_queues_are_named_and_derived(filled: Path, name: str) -> None:
    shutil.rmtree(filled / "consumequeue")
    database(filled / name)
    before = tree_hash(filled)
    info = mqstore.info(filled)
    assert (info.rocksdb, info.layout) == (True, "rocksdb-queues")
    assert info.rocksdb_folders == (str(filled / name),)
    says = f"{name}: has queues in RocksDB, which mqstore does not read; queues without files are derived from the log"
    assert [note for note in info.notes if "RocksDB" in note] == [str(filled / says)]
    with pytest.warns(mqstore.StoreWarning, match=says), mqstore.open(filled) as store:
        assert len(list(store.read("orders", 0))) == 20
    with pytest.warns(mqstore.StoreWarning, match=says):
        report = mqstore.verify(filled)
    assert (report.problems, report.messages) == ((), 45)
    for change in (
        lambda: mqstore.open(filled, "rw"),
        lambda: mqstore.rebuild(filled),
        lambda: mqstore.repair(filled, in_place=True),
    ):
        with pytest.raises(mqstore.UnsupportedFormatError, match=rf"{name}: has queues in RocksDB.*mqstore export"):
            change()
    assert tree_hash(filled) == before


def test_queue_files_next_to_a_database_are_read_and_checked(filled: Path) -> None:
    database(filled / "consumequeue")
    with pytest.warns(mqstore.StoreWarning, match="RocksDB"), mqstore.open(filled) as store:
        assert len(list(store.read("orders", 0))) == 20
    assert mqstore.verify(filled).problems == ()
    queue = filled / "consumequeue/orders/0" / f"{0:020d}"
    queue.write_bytes(b"\xff" * queue.stat().st_size)
    assert mqstore.verify(filled).problems


CONFIG_DATABASES = {
    "topics": "the topics",
    "subscriptionGroups": "the groups",
    "consumerOffsets": "the offsets of the groups",
    "metadata": "the topics, the groups and the offsets of the groups",
    "rdb": "the topics, the groups and the offsets of the groups",
}


@pytest.mark.parametrize(("name", "content"), CONFIG_DATABASES.items())
def test_rocksdb_configuration_is_reported_as_unread(filled: Path, name: str, content: str) -> None:
    folder = filled / "config" / name
    database(folder)
    says = f"{folder}: {content} are in RocksDB, which mqstore does not read; what is only there is unknown here"
    info = mqstore.info(filled)
    assert (info.rocksdb, info.layout, info.rocksdb_folders) == (True, "file-queues", (str(folder),))
    assert says in info.notes
    with pytest.warns(mqstore.StoreWarning, match=says):
        assert mqstore.verify(filled).ok
    for mode in ("r", "rw"):
        with pytest.warns(mqstore.StoreWarning, match=says), mqstore.open(filled, mode) as store:  # type: ignore[call-overload]
            assert len(list(store.read("orders", 0))) == 20


STRAYS = [
    "commitlog/0",
    "commitlog/notes.txt",
    "commitlog/sub/file",
    "consumequeue/file",
    "consumequeue/orders/x/y",
    "consumequeue/orders/0/short",
    "index/bad",
    "checkpoint.bak",
    "config/other.json",
    "surprise/file",
]


@pytest.mark.parametrize("name", STRAYS)
def test_strays(filled: Path, name: str) -> None:
    path = filled / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"stray")
    look(filled)
    with mqstore.open(filled) as store:
        assert len(list(store.read("orders", 0))) == 20
    with mqstore.open(filled, "rw") as store:
        store.append("orders", b"x", queue_id=0)
        assert len(list(store.read("orders", 0))) == 21
    # The file stays or moves to mqstore's own folder. It is never deleted.
    kept = [path, *(filled / "mqstore").rglob("*")]
    assert any(one.is_file() and one.read_bytes() == b"stray" for one in kept)


@pytest.mark.parametrize("name", ["commitlog/00000000000000065536", "index/20240101000000000"])
def test_an_empty_stray_of_a_crash(filled: Path, name: str) -> None:
    (filled / name).write_bytes(b"")
    look(filled)
    with mqstore.open(filled) as store:
        assert len(list(store.read("orders", 0))) == 20
    with mqstore.open(filled, "rw") as store:
        store.append("orders", b"x", queue_id=0)


def test_folders_in_place_of_files(filled: Path) -> None:
    for name in ("checkpoint", "lock"):
        (filled / name).unlink()
        (filled / name).mkdir()
    look(filled)


def test_fifo_does_not_hang(filled: Path) -> None:
    import os

    (filled / "checkpoint").unlink()
    os.mkfifo(filled / "checkpoint")
    os.mkfifo(filled / "commitlog" / f"{1 << 30:020d}")
    look(filled)


def test_symlinks_do_not_loop(filled: Path) -> None:
    (filled / "consumequeue/loop").symlink_to(filled / "consumequeue")
    (filled / "commitlog/loop").symlink_to(filled)
    before = tree_hash(filled / "commitlog")
    look(filled)
    assert tree_hash(filled / "commitlog") == before


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 90, 100, 177, 178, 4096, 60_000])
def test_truncated_log(filled: Path, keep: int) -> None:
    log = filled / "commitlog" / f"{0:020d}"
    log.write_bytes(log.read_bytes()[:keep])
    before = tree_hash(filled)
    look(filled)
    assert tree_hash(filled) == before


def test_torn_tail_ends_the_log(home: Path) -> None:
    offsets = raw.write_log(home, [{"queue_offset": number} for number in range(5)])
    log = home / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[offsets[4] + 60 :] = bytes(len(content) - offsets[4] - 60)
    log.write_bytes(content)
    with mqstore.open(home) as store:
        assert [message.queue_offset for message in store.read("t")] == [0, 1, 2, 3]
    report = mqstore.verify(home)
    assert not report.ok
    assert report.messages == 4


BROKEN_FIELDS = [
    (0, struct.pack(">i", 0)),
    (0, struct.pack(">i", 1)),
    (0, struct.pack(">i", 90)),
    (0, struct.pack(">i", -1)),
    (0, struct.pack(">i", 0x7FFF_FFFF)),
    (4, struct.pack(">I", 0xDEADBEEF)),
    (4, struct.pack(">I", raw.MAGIC_BLANK)),
    (8, struct.pack(">I", 0xFFFF_FFFF)),
    (12, struct.pack(">i", -5)),
    (20, struct.pack(">q", -1)),
    (20, struct.pack(">q", (1 << 63) - 1)),
    (28, struct.pack(">q", 1 << 60)),
    (36, struct.pack(">i", -1)),
    (84, struct.pack(">i", -1)),
    (84, struct.pack(">i", 0x7FFF_FFFF)),
    (88 + 4, b"\xff"),
    (88 + 4, b"\x00"),
    (88 + 4 + 1 + 1, struct.pack(">h", -1)),
    (88 + 4 + 1 + 1, struct.pack(">h", 0x7FFF)),
]


@pytest.mark.parametrize(("at", "value"), BROKEN_FIELDS)
@pytest.mark.parametrize("index", [0, 2, 4])
def test_broken_field(home: Path, index: int, at: int, value: bytes) -> None:
    offsets = raw.write_log(home, [{"queue_offset": number} for number in range(5)])
    log = home / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[offsets[index] + at : offsets[index] + at + len(value)] = value
    log.write_bytes(content)
    before = tree_hash(home)
    look(home)
    assert tree_hash(home) == before


def test_flipped_bits_anywhere(filled: Path, tmp_path: Path) -> None:
    """One flipped bit at many places of each file: never a crash, a change or a wrong message."""
    chance = random.Random(20240101)
    with mqstore.open(filled) as store:
        truth = {message.commit_log_offset: message for message in store._scan_log()}
    files = [path for path in sorted(filled.rglob("*")) if path.is_file() and path.stat().st_size]
    for path in files:
        good = path.read_bytes()
        used = len(good.rstrip(b"\0")) + 8
        for _ in range(12):
            bad = bytearray(good)
            bad[chance.randrange(min(used, len(bad)))] ^= 1 << chance.randrange(8)
            path.write_bytes(bad)
            before = tree_hash(filled)
            look(filled)
            assert tree_hash(filled) == before
            try:
                with mqstore.open(filled) as store:
                    for topic, queue in (("orders", 0), ("orders", 1), ("events", 0)):
                        for message in store.read(topic, queue):
                            assert message == truth[message.commit_log_offset]
            except mqstore.MQStoreError:
                pass
            path.write_bytes(good)


def test_random_bytes_as_a_store(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(30):
        home = tmp_path / str(number)
        for name, size in (
            (f"commitlog/{0:020d}", 8192),
            (f"consumequeue/t/0/{0:020d}", 400),
            ("index/20240101000000000", 40 + 4 * 10 + 20 * 20),
            ("checkpoint", 4096),
            ("config/topics.json", 300),
            ("mqstore/state.a", 120),
            ("mqstore/queues", 36),
        ):
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(chance.randbytes(size))
        before = tree_hash(home)
        look(home)
        assert tree_hash(home) == before


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"topicConfigTable": 5}', '{"topicConfigTable": {"t": null}}',
                                  '{"topicConfigTable": {"t": {"writeQueueNums": -7}}}', "[" * 20_000])  # fmt: skip
def test_bad_topic_table(filled: Path, text: str) -> None:
    (filled / "config/topics.json").write_text(text)
    look(filled)
    with mqstore.open(filled) as store:
        assert len(list(store.read("orders", 0))) == 20


def test_damage_below_the_mark_refuses_to_write(filled: Path) -> None:
    with mqstore.open(filled, "rw") as store:
        store.append("orders", b"y" * 100)
        store.flush()
    log = filled / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[content.index(b"body 7")] ^= 0x01
    log.write_bytes(content)
    before = tree_hash(filled)
    try:
        with mqstore.open(filled, "rw") as store:
            opened = True
    except mqstore.CorruptionError as error:
        opened = False
        assert error.path == str(log)
    if not opened:
        assert tree_hash(filled) == before
    # A read-only open skips it.
    with mqstore.open(filled) as store:
        bodies = [message.body for message in store._scan_log()]
    assert b"body 8" in bodies
    assert b"body 7" not in bodies


def test_errors_survive_a_process_boundary(tmp_path: Path) -> None:
    done = python(
        "import concurrent.futures, multiprocessing, sys, mqstore\n"
        "def work(path):\n"
        "    mqstore.open(path)\n"
        "if __name__ == '__main__':\n"
        "    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context('fork')) as pool:\n"
        "        try: pool.submit(work, sys.argv[1]).result()\n"
        "        except mqstore.NotAStoreError as error: print(error.path)\n",
        tmp_path / "none",
    )
    assert done.stdout.strip() == str(tmp_path / "none"), done.stderr
