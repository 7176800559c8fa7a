"""Changed and deleted topics, namespaces, and their state in other processes and after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL
from mqstore.errors import InvalidOptionError, RefusedError, StoreReadOnlyError, TopicNotFoundError

KILLED = """
import os, signal, sys
import mqstore

store = mqstore.open(sys.argv[1], "create")
store.create_topic("kept", queues=3)
store.create_topic("gone")
store.append("gone", b"x")
store.update_topic("kept", perm=4)
store.delete_topic("gone")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_topic_takes_fewer_queues_and_no_appends(store: mqstore.Store, home: Path) -> None:
    store.create_topic("orders", queues=4)
    for number in range(8):
        store.append("orders", b"%d" % number)
    store.update_topic("orders", write_queues=2)
    with pytest.raises(TopicNotFoundError):
        store.append("orders", b"x", queue_id=3)
    assert len(list(store.read("orders", 3))) == 2
    assert {store.append("orders", b"x").queue_id for _ in range(8)} == {0, 1}
    assert len(store.queues("orders")) == 4
    store.update_topic("orders", perm=4)
    with pytest.raises(RefusedError, match="orders") as refused:
        store.append("orders", b"x")
    assert isinstance(refused.value, ValueError)
    store.update_topic("orders", perm=6)
    store.append("orders", b"x")
    store.close()
    table = json.loads((home / "config/topics.json").read_text())["topicConfigTable"]["orders"]
    assert (table["writeQueueNums"], table["readQueueNums"], table["perm"]) == (2, 4, 6)


def test_a_topic_that_was_deleted_continues_at_its_floor(store: mqstore.Store, home: Path) -> None:
    store.create_topic("orders", queues=2)
    first = store.append("orders", b"old", queue_id=1, keys=["k"])
    store.delete_topic("orders")
    assert store.topics() == []
    with pytest.raises(TopicNotFoundError):
        store.queues("orders")
    with pytest.raises(TopicNotFoundError):
        store.delete_topic("orders")
    with mqstore.open(home, "r") as reader:
        assert reader.topics() == []
    assert store.get(first.message_id) is None
    again = store.append("orders", b"new", queue_id=1)
    assert (again.queue_offset, store.topics()) == (SMALL.queue_file_entries, ["orders"])


def test_numbers_out_of_bounds_change_nothing(store: mqstore.Store) -> None:
    store.create_topic("orders", queues=2)
    for change in ({"read_queues": 0}, {"write_queues": 65_537}, {"perm": 16}, {"perm": -1}, {"write_queues": -1}):
        with pytest.raises(InvalidOptionError):
            store.update_topic("orders", **change)
    with pytest.raises(TopicNotFoundError):
        store.update_topic("none", perm=6)
    assert len(store.queues("orders")) == 2


def test_namespaces_hold_topics_and_go_as_a_whole(store: mqstore.Store, home: Path) -> None:
    for topic in ("eu%orders", "%RETRY%eu%billing", "us%orders", "orders"):
        store.create_topic(topic)
    assert {name: info.topics for name, info in store.namespaces().items()} == {"eu": 2, "us": 1}
    assert store.delete_namespace("eu") == mqstore.NamespaceInfo(topics=2, groups=0)
    assert store.delete_namespace("eu") == mqstore.NamespaceInfo()
    with mqstore.open(home, "r") as reader:
        assert reader.topics() == ["orders", "us%orders"]
        assert reader.namespaces() == {"us": mqstore.NamespaceInfo(topics=1)}
        for change in (
            lambda: reader.delete_namespace("us"),
            lambda: reader.delete_topic("orders"),
            lambda: reader.update_topic("orders", perm=6),
        ):
            with pytest.raises(StoreReadOnlyError):
                change()


def test_what_was_said_of_topics_survives_a_kill(home: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(home)], check=False)
    with mqstore.open(home, "rw", options=SMALL) as store:
        assert store.topics() == ["kept"]
        assert len(store.queues("kept")) == 3
        with pytest.raises(RefusedError):
            store.append("kept", b"x")
