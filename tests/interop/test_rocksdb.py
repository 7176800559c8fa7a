"""Stores whose queues and configuration RocketMQ keeps in RocksDB: mqstore derives the queues from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_log, assert_same_look_ups, assert_same_queues, notes_expected, state_of
from .driver import JavaBroker, JavaClient, JavaSession
from .java_rows import message
from .scenarios import mixed, topic
from .shop import ask

if TYPE_CHECKING:
    from pathlib import Path

    from .java_rows import JavaView
    from .shop import JavaAnswers, Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

QUEUES = {"orders": 3, "events": 1}
TOPICS = {name: topic(queues) for name, queues in QUEUES.items()}
FILES = {"mappedFileSizeCommitLog": 100 << 10, "maxHashSlotNum": 100, "maxIndexNum": 400}
ROCKSDB = {**FILES, "storeType": "defaultRocksDB"}
DEFAULT_FILES = {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}


def places(view: JavaView) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Returns the offset and the body of each message, by queue."""
    found = {key: [(each.entry_offset, each.body_md5) for each in rows] for key, rows in view.by_queue().items()}
    return {key: rows for key, rows in found.items() if rows}


def assert_derived(path: Path, folder: str, answers: JavaAnswers, tally: Tally) -> None:
    """Compares every way to read a store whose queues are in the database `folder`."""
    before = state_of(path)
    with pytest.warns(mqstore.StoreWarning, match=f"{folder}: has queues in RocksDB"), mqstore.open(path) as store:
        assert_same_queues(store, answers, tally)
        assert_same_log(store, answers, tally)
        assert_same_look_ups(store, answers, tally)
    info = mqstore.info(path)
    assert (info.layout, info.messages) == ("rocksdb-queues", len(answers.log))
    assert str(path / folder) in info.rocksdb_folders
    with pytest.warns(mqstore.StoreWarning, match=f"{folder}: has queues in RocksDB"):
        report = mqstore.verify(path)
    assert (report.problems, report.messages) == ((), len(answers.log))
    with pytest.raises(mqstore.UnsupportedFormatError, match="mqstore export"):
        mqstore.open(path, "rw")
    assert state_of(path) == before, "reading changed files"


@pytest.mark.parametrize("folder", ["consumequeue", "consumequeue_rocksdb"])
def test_queues_in_rocksdb(shop: Shop, version: str, tmp_path: Path, tally: Tally, folder: str) -> None:
    config: dict[str, Any] = dict(ROCKSDB)
    if folder == "consumequeue_rocksdb":
        if version == "5.3.3":
            pytest.skip("RocketMQ 5.3.3 has one place for these queues")
        config["useSeparateStorePathForRocksdbCQ"] = True
    path, session = tmp_path / "store", shop.session(version)
    java = session.open(path, config=config, topics=TOPICS, write_topics=True)
    java.put(mixed(QUEUES, 600, "rocksdb"))
    answers = ask(java)
    java.close()
    assert (path / folder / "CURRENT").is_file()
    assert_derived(path, folder, answers, tally)
    # RocketMQ opens the export with queues in files.
    copy = tmp_path / "copy"
    with notes_expected():
        mqstore.export(path, copy, format="store")
    java = session.open(copy, config=DEFAULT_FILES, topics=TOPICS)
    assert java.report.complaints() == []
    assert places(java.read()) == places(answers.view)
    java.close()


CONFIGS = {
    "v1": ({"storeType": "defaultRocksDB"}, ("topics", "subscriptionGroups", "consumerOffsets")),
    "v2": ({"configManagerVersion": "v2"}, ("rdb",)),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", CONFIGS)
def test_the_configuration_of_a_broker_in_rocksdb(version: str, tmp_path: Path, tally: Tally, kind: str) -> None:
    path = tmp_path / "store"
    config, folders = CONFIGS[kind]
    with (
        JavaSession(version, tmp_path / "client") as session,
        JavaBroker(version, path, tmp_path / "broker", config) as broker,
    ):
        with JavaClient(session, broker) as client:
            client.create_topics({"orders": 2})
            client.produce([message("orders", (f"m{n}", 50), queue_id=n % 2, keys=[f"m-{n}"]) for n in range(40)])
            taken = client.take("billing", "orders", 40)
        broker.stop()
    info = mqstore.info(path)
    for name in folders:
        folder = str(path / "config" / name)
        assert folder in info.rocksdb_folders
        assert any(note.startswith(f"{folder}: ") and "does not read" in note for note in info.notes)
    # The offsets of the group are only in the database.
    assert [group for group in info.consumers if group.group == "billing"] == []
    with notes_expected(), mqstore.open(path) as store:
        found = {(each.queue_id, each.queue_offset): each.unique_id for each in store.read("orders")}
    assert found == {(each.queue_id, each.queue_offset): each.unique_id for each in taken}
    with notes_expected():
        assert mqstore.verify(path).problems == ()
    tally.messages += len(found)
