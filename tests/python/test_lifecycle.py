"""Opening, closing, locking, dropping, forking and pickling of stores."""

from __future__ import annotations

import gc
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Literal

import pytest

import mqstore
from conftest import SMALL, python, tree_hash
from mqstore import testing


def test_modes(home: Path) -> None:
    for mode in ("r", "rw"):
        with pytest.raises(mqstore.NotAStoreError):
            mqstore.open(home, mode)  # type: ignore[arg-type]
    assert not home.exists()
    with mqstore.open(home, "create", options=SMALL) as store:
        assert (store.path, store.mode, store.closed) == (str(home), "create", False)
        store.append("t", b"x")
    assert store.closed
    for mode in ("r", "rw", "create"):
        with mqstore.open(str(home), mode) as store:  # type: ignore[arg-type]
            assert store.mode == mode
            assert len(list(store.read("t"))) == 1
    with mqstore.open(home) as store:
        assert store.mode == "r"


def test_bad_arguments(home: Path) -> None:
    for mode in ("w", "a", "", "R"):
        with pytest.raises(ValueError, match="mode"):
            mqstore.open(home, mode)  # type: ignore[arg-type]
    for path in (5, None, b"bytes"):
        with pytest.raises(TypeError):
            mqstore.open(path, "create")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        mqstore.open(home, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"mqstore\.open"):
        mqstore.Store(home)
    assert not home.exists()


def test_parents_are_made(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "a" / "b", "create", options=SMALL):
        pass
    assert (tmp_path / "a" / "b").is_dir()


def test_close_is_idempotent_and_final(store: mqstore.Store) -> None:
    store.append("t", b"x")
    found = store.read("t", follow=True)
    queue = store.work_queue("jobs")
    store.close()
    store.close()
    assert store.closed
    for call in (
        lambda: store.append("t", b"x"),
        lambda: store.append_many("t", [b"x"]),
        lambda: store.create_topic("u"),
        store.flush,
        store.topics,
        lambda: store.queues("t"),
        lambda: store.read("t"),
        lambda: store.lookup("t", "k"),
        lambda: store.get("x"),
        lambda: store.get_at(0),
        lambda: store.offset_for_time("t", 0, 0),
        lambda: store.wait("t", 0, 0, timeout=0),
        store.stats,
        store.delays,
        queue.counts,
        queue.leased,
        lambda: store.confirm_offset,
        store.verify,
        store.__enter__,
        lambda: next(found),
    ):
        with pytest.raises(mqstore.StoreClosedError):
            call()
    assert "closed" in repr(store)


def test_one_writer(store: mqstore.Store, home: Path) -> None:
    before = {name: entry for name, entry in tree_hash(home).items() if name != "mqstore/live"}
    for mode in ("rw", "create"):
        with pytest.raises(mqstore.StoreLockedError) as caught:
            mqstore.open(home, mode)  # type: ignore[arg-type]
        assert caught.value.pid in (os.getpid(), None)
    done = python(
        "import sys, mqstore\n"
        "try: mqstore.open(sys.argv[1], 'rw')\n"
        "except mqstore.StoreLockedError as error: print(error.pid)",
        home,
    )
    assert done.stdout.strip() == str(os.getpid()), done.stderr
    assert {name: entry for name, entry in tree_hash(home).items() if name != "mqstore/live"} == before
    with mqstore.open(home) as reader:
        store.append("t", b"x")
        assert [message.body for message in reader.read("t")] == [b"x"]


def test_an_open_waits_for_the_lock(store: mqstore.Store, home: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(mqstore.StoreLockedError) as caught:
        mqstore.open(home, "rw", lock_timeout=timedelta(milliseconds=100))
    assert time.monotonic() - begun >= 0.1
    assert caught.value.pid == os.getpid()
    with ThreadPoolExecutor(1) as pool:
        # If the thread is late, it finds the lock free; the rule is the same.
        opening = pool.submit(mqstore.open, home, "rw", lock_timeout=None)
        with pytest.raises(TimeoutError):
            opening.result(timeout=0.05)
        store.close()
        opening.result(timeout=60).close()


def test_a_reader_needs_no_lock(store: mqstore.Store, home: Path) -> None:
    with mqstore.open(home, lock_timeout=None) as reader:
        assert reader.mode == "r"
    with pytest.raises(TypeError, match="lock_timeout must be seconds"):
        mqstore.open(home, lock_timeout=True)


VERBS: dict[str, Callable[[Path, Path], object]] = {
    "open": lambda home, _: mqstore.open(home, "rw"),
    "create": lambda home, _: mqstore.open(home, "create"),
    "compact": lambda home, _: mqstore.compact(home, in_place=True),
    "compact a copy": lambda home, new: mqstore.compact(home, output=new / "copy"),
    "rebuild": lambda home, _: mqstore.rebuild(home),
    "repair": lambda home, _: mqstore.repair(home, in_place=True),
    "repair, dry": lambda home, _: mqstore.repair(home, dry_run=True),
    "repair a copy": lambda home, new: mqstore.repair(home, output=new / "copy"),
    "restore": lambda home, new: mqstore.restore_compaction(home, new / "source"),
    "import": lambda home, new: mqstore.import_(home, new / "rows.jsonl"),
    "testing": lambda home, _: testing.damage.lose_index(home),
}


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_that_needs_the_lock_names_its_holder(tmp_path: Path, name: str) -> None:
    home = tmp_path / "store"
    for path in (home, tmp_path / "source"):
        with mqstore.open(path, "create", options=SMALL) as store:
            store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
            store.append("prices", b"1", keys="a")
    mqstore.export(home, tmp_path / "rows.jsonl")
    with mqstore.open(home, "rw"), pytest.raises(mqstore.StoreLockedError, match=f"process {os.getpid()}"):
        VERBS[name](home, tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the locks of processes")
def test_a_verb_that_holds_the_lock_is_named_too(filled: Path) -> None:
    found = []

    def progress(_: object) -> None:
        with pytest.raises(mqstore.StoreLockedError) as caught:
            mqstore.open(filled, "rw")
        found.append(caught.value.pid)

    mqstore.rebuild(filled, progress=progress)
    assert set(found) == {os.getpid()}


def test_lock_is_free_after_close_and_after_a_failed_open(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL):
        pass
    for _ in range(3):
        with mqstore.open(home, "rw") as store:
            store.append("t", b"x")


def test_exception_in_the_block_still_closes(home: Path) -> None:
    with pytest.raises(ZeroDivisionError), mqstore.open(home, "create", options=SMALL) as store:
        raise ZeroDivisionError
    assert store.closed


def test_forgotten_store_warns_and_closes(home: Path) -> None:
    store = mqstore.open(home, "create", options=SMALL)
    store.append("t", b"x")
    gone = weakref.ref(store)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del store
        gc.collect()
    assert gone() is None
    with mqstore.open(home, "rw") as again:
        assert len(list(again.read("t"))) == 1


def test_iterator_keeps_the_store_usable_but_close_ends_it(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append_many("t", [b"x"] * 1000)
        found = store.read("t")
        assert next(found).body == b"x"
    with pytest.raises(mqstore.StoreClosedError):
        next(found)


@pytest.mark.parametrize("mode", ["create", "share"])
def test_a_closed_store_has_no_figures(home: Path, mode: Literal["create", "share"]) -> None:
    store = mqstore.open(home, mode)
    store.close()
    with pytest.raises(mqstore.StoreClosedError):
        store.stats()


def test_exit_with_an_open_store(home: Path) -> None:
    done = python(
        "import sys, mqstore\n"
        "store = mqstore.open(sys.argv[1], 'create', segment_size=65536)\n"
        "store.append('t', b'x')\n"
        "found = store.read('t', follow=True)\n",
        home,
    )
    assert done.returncode == 0, done.stderr
    done = python(
        "import os, sys, threading, mqstore\n"
        "store = mqstore.open(sys.argv[1], 'rw')\n"
        "store.append('t', b'y')\n"
        "threading.Thread(target=lambda: store.wait('t', 0, 99), daemon=True).start()\n",
        home,
    )
    assert done.returncode == 0, done.stderr
    with mqstore.open(home, "rw") as store:
        assert [message.body for message in store.read("t")] == [b"x", b"y"]


def test_pickling_is_refused_with_advice(store: mqstore.Store) -> None:
    with pytest.raises(TypeError, match=r"mqstore\.open\(path\)"):
        pickle.dumps(store)


def test_no_stray_attributes(store: mqstore.Store) -> None:
    with pytest.raises(AttributeError):
        store.someting = 1  # type: ignore[attr-defined]


FORK = """
import os, sys, mqstore
store = mqstore.open(sys.argv[1], sys.argv[2])
if sys.argv[2] == "rw":
    store.append("t", b"parent")
found = store.read("t")
child = os.fork()
if child == 0:
    status = 0
    for call in (lambda: store.append("t", b"child"), store.flush, store.topics, lambda: next(found),
                 lambda: store.read("t"), store.verify, store.__enter__):
        try:
            call()
            status = 1
        except mqstore.ForkedProcessError as error:
            assert sys.argv[1] in str(error)
    assert store.closed
    store.close()
    repr(store)
    del store, found
    # The child may open the directory itself. Its exit closes nothing of the parent.
    with mqstore.open(sys.argv[1]) as mine:
        assert len(list(mine.read("t"))) >= 1
    sys.exit(status)
assert os.waitpid(child, 0)[1] == 0
if sys.argv[2] == "rw":
    store.append("t", b"parent again")
    try:
        mqstore.open(sys.argv[1], "rw")
        sys.exit(2)
    except mqstore.StoreLockedError:
        pass
store.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_fork(home: Path, mode: str) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("t", b"first")
    for _ in range(5):
        done = python(FORK, home, mode)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_gives_up_the_lock(home: Path) -> None:
    code = (
        "import os, sys, time, mqstore\n"
        "store = mqstore.open(sys.argv[1], 'create', segment_size=65536)\n"
        "if os.fork() == 0:\n"
        "    time.sleep(2)\n"
        "    os._exit(0)\n"
        "store.close()\n"
        "with mqstore.open(sys.argv[1], 'rw') as again: again.append('t', b'x')\n"
        "os.wait()\n"
    )
    done = python(code, home)
    assert done.returncode == 0, done.stderr


def test_threads_may_close_at_once(store: mqstore.Store) -> None:
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(200):
                store.append("t", b"x")
        except mqstore.StoreClosedError:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)] + [threading.Thread(target=store.close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert errors == []


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_permission_denied(filled: Path) -> None:
    (filled / "commitlog").chmod(0)
    try:
        with pytest.raises(PermissionError) as caught:
            mqstore.open(filled)
        assert isinstance(caught.value, mqstore.StorePermissionError)
    finally:
        (filled / "commitlog").chmod(0o755)


def test_read_only_mount_is_enough(filled: Path) -> None:
    before = tree_hash(filled)
    for path in sorted(filled.rglob("*"), reverse=True):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with mqstore.open(filled) as store:
            assert len(list(store.read("orders"))) == 40
    finally:
        for path in [filled, *sorted(filled.rglob("*"))]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert tree_hash(filled) == before


def test_spawned_children_open_it_themselves(filled: Path) -> None:
    command = [sys.executable, "-c", "import sys, mqstore; print(len(list(mqstore.open(sys.argv[1]).read('orders'))))"]
    with mqstore.open(filled, "rw"):
        done = subprocess.run([*command, filled], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "40", done.stderr


def test_a_store_without_files_keeps_its_sizes(home: Path) -> None:
    sizes = {"segment_size": 1 << 16, "queue_file_entries": 100, "index_slots": 50, "index_entries": 200}
    mqstore.open(home, "create", **sizes).close()
    mqstore.open(home, "rw").close()
    with mqstore.open(home, "rw", queue_file_entries=30) as store:
        store.append("t", b"x", keys=["k"])
    sizes = {
        path.parts[-2]: path.stat().st_size
        for name in ("commitlog", "consumequeue", "index")
        for path in (home / name).rglob("*")
        if path.name.isdigit() and path.is_file()
    }
    assert sizes == {"commitlog": 1 << 16, "0": 30 * 20, "index": 40 + 4 * 50 + 20 * 200}


LEFT_OPEN = """
import gc, shutil, sys
import mqstore

gc.disable()  # Only the end of the interpreter collects the cycle.
store = mqstore.open(sys.argv[1], "create", segment_size=1 << 16, queue_file_entries=100)
store.append("t", b"x")
cycle = [store]
cycle.append(cycle)
if sys.argv[2] == "delivery":
    consumer = store.consumer("g", "t")
    queue = store.work_queue("jobs")
    queue.put(b"job")
    cycle += [consumer, consumer.poll(timeout=0), queue, queue.get(), iter(store.read("t")), store.scan()]
    del consumer, queue
while shutil.os.path.exists(sys.argv[1]):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
del store, cycle
"""


@pytest.mark.parametrize("kind", ["store", "delivery"])
def test_a_store_that_was_left_open_does_not_abort_the_process(home: Path, kind: str) -> None:
    run = [sys.executable, "-c", LEFT_OPEN, str(home), kind]
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "panicked" not in done.stderr


GEVENT = """
import sys, types, warnings
if sys.argv[1] != "absent":
    monkey = sys.modules["gevent.monkey"] = types.ModuleType("gevent.monkey")
    monkey.is_module_patched = lambda name: name == sys.argv[1]
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    import mqstore
print([(one.category.__name__, one.filename, "threadpool.apply" in str(one.message)) for one in found])
"""


@pytest.mark.parametrize("patched", ["threading", "socket", "absent"])
def test_an_import_warns_of_threads_of_gevent(patched: str) -> None:
    done = python(GEVENT, patched)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([("RuntimeWarning", "<string>", True)] if patched == "threading" else [])


def test_a_warning_names_the_line_of_the_program(filled: Path, tmp_path: Path) -> None:
    """However many functions of mqstore are between the two."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    damaged = tmp_path / "damaged"
    shutil.copytree(filled, damaged)
    with mqstore.open(damaged) as store:
        message = next(store.read("orders"))
    mqstore.testing.damage.flip_body_bit(damaged, message)
    (filled / "mqstore" / "queues").unlink()
    shutil.rmtree(filled / "consumequeue")
    conf = tmp_path / "broker.conf"
    conf.write_text("flushDiskTyp=SYNC_FLUSH\n")
    calls: list[Callable[[], object]] = [
        lambda: mqstore.open(filled).close(),
        lambda: mqstore.open(filled, "rw", lock_timeout=1).close(),
        lambda: mqstore.sql("price > 5 nonsense"),
        lambda: mqstore.StoreOptions.from_broker_conf(conf),
        lambda: mqstore.scan([filled, tmp_path / "absent"], on_error="skip").to_arrow(),
        lambda: mqstore.scan(damaged, on_damage="skip").to_arrow(),
        lambda: list(mqstore.scan(damaged, on_damage="skip")),
        lambda: pyarrow.table(mqstore.scan(damaged, on_damage="skip")),
        lambda: mqstore.copy_topic(damaged, tmp_path / "target", "orders"),
    ]
    for number, call in enumerate(calls):
        if number == 1:
            shutil.rmtree(filled / "consumequeue", ignore_errors=True)
        with pytest.warns(mqstore.StoreWarning) as found:
            call()
        assert {one.filename for one in found} == {__file__}, number
