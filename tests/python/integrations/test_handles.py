"""What the integrations share: handles of stores in one process and after a fork, names of topics, missing packages."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

import mqstore
from conftest import python
from mqstore.integrations._lease_keeper import LeaseKeeper
from mqstore.integrations._store_handle import StoreHandle, keys_of, topic_of

LIBRARIES = [("taskiq", "taskiq"), ("dramatiq", "dramatiq"), ("kombu", "celery"), ("huey", "huey")]


@pytest.mark.parametrize(("library", "extra"), LIBRARIES)
def test_a_missing_package_names_the_extra(library: str, extra: str) -> None:
    done = python(f"import sys; sys.modules['{library}'] = None; import mqstore.integrations.{library}")
    assert f'{library} is not installed: run pip install "mqstore[{extra}]"' in done.stderr
    assert "MissingPackageError" in done.stderr


@pytest.mark.slow
def test_mqstore_imports_no_library() -> None:
    done = python("import mqstore, mqstore.aio, mqstore.integrations, sys; print(*sys.modules)")
    assert not {library for library, _ in LIBRARIES} & set(done.stdout.split())


@pytest.mark.parametrize("name", ["default", "celery@host.celery.pidbox", "ü", "a b", "", "x" * 300, "low_priority"])
def test_names_of_queues_are_names_of_topics(store: mqstore.Store, name: str) -> None:
    topic = topic_of("kombu-", name)
    assert re.fullmatch(r"kombu-[a-zA-Z0-9_-]*", topic)
    assert store.work_queue(topic).topic == topic


def test_different_names_are_different_topics() -> None:
    names = ["a.b", "a-b", "a@b", "a_b", "x" * 200, "x" * 201]
    assert len({topic_of("", name) for name in names}) == len(names)
    assert topic_of("kombu-", "celery") == "kombu-celery"


def test_ids_that_are_no_keys() -> None:
    assert [keys_of(text) for text in ("5", "a b", "a\tb", "")] == [["5"], [], [], []]


def test_handles_share_a_store_until_the_last_one_closes(home: Path) -> None:
    first = StoreHandle(home, "create", {})
    second = StoreHandle(os.path.relpath(home), "create", {})
    store = first.store
    assert second.store is store
    queue = first.work_queue("jobs", visibility_timeout=5)
    assert first.work_queue("jobs") is queue
    first.close()
    first.close()
    assert queue.closed
    assert not store.closed
    assert second.table("settings") is second.table("settings")
    second.close()
    assert store.closed
    assert first.store is not store
    first.close()


FORKED = """
import os, sys, warnings
warnings.simplefilter("error", ResourceWarning)
import mqstore
from mqstore.integrations._lease_keeper import LeaseKeeper
from mqstore.integrations._store_handle import StoreHandle

handle = StoreHandle(sys.argv[1], "create", {})
handle.work_queue("jobs").put(b"1")
child = os.fork()
if child == 0:
    # The parent has the store open, so the child cannot open it in this mode; with "share" it can.
    try:
        handle.work_queue("jobs")
    except mqstore.StoreLockedError:
        handle.close()
        os._exit(5)
    os._exit(6)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
handle.work_queue("jobs").put(b"2")
"""


def test_a_child_opens_its_own_store(home: Path) -> None:
    done = python(FORKED, home)
    assert (done.returncode, done.stderr) == (0, "")
    with mqstore.open(home) as store:
        assert store.count("jobs") == 2
    assert mqstore.info(home).clean


def test_a_lost_lease_is_logged(store: mqstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    queue = store.work_queue("jobs")
    queue.put(b"1")
    keeper = LeaseKeeper("keeper", 30)
    lease = queue.get()
    keeper.hold(lease)
    lease.nack(0)
    taken = queue.get(timeout=5)
    keeper.finish(lease)
    assert "another worker has the message" in caplog.text
    keeper.finish(taken)
    keeper.finish(taken)
    keeper.close()
    assert queue.counts().leased == 0
