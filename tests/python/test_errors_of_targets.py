"""Errors of calls that create a file or a folder: they name it, never the names that it has until it is complete."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore
from loop_device import Disk, obstacle
from mqstore._admin.files import creating

pytestmark = pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")

Verb = Callable[[Path, Path, Path], Any]


def _snapshot(home: Path, _around: Path, target: Path) -> object:
    with mqstore.open(home) as store:
        return store.snapshot(target)


def _restore(home: Path, around: Path, target: Path) -> object:
    cold = around / "cold"
    if not cold.exists():
        with mqstore.open(home, "rw") as store:
            store.archive.configure(cold)
            store.archive.run()
    return mqstore.Archive(cold).restore(target)


def _fetch(home: Path, around: Path, target: Path) -> object:
    url = f"file://{around}/published"
    if not (around / "published").exists():
        mqstore.export(home, url, format="jsonl")
    return mqstore.fetch(url, target)


VERBS: dict[str, Verb] = {
    "lines": lambda home, _, target: mqstore.export(home, target, format="jsonl"),
    "parquet": lambda home, _, target: mqstore.export(home, target, format="parquet"),
    "parts": lambda home, _, target: mqstore.export(home, target, format="parquet", parts=True),
    "store": lambda home, _, target: mqstore.export(home, target, format="store"),
    "snapshot": _snapshot,
    "restore": _restore,
    "fetch": _fetch,
    "compact": lambda home, _, target: mqstore.compact(home, output=target),
    "repair": lambda home, _, target: mqstore.repair(home, output=target),
    "copy": lambda home, _, target: mqstore.copy_topic(home, target, "orders"),
}


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of 8 MiB whose bodies do not get smaller if they are compressed."""
    home = tmp_path_factory.mktemp("large") / "store"
    with mqstore.open(home, "create", segment_size=1 << 20) as store:
        for _ in range(500):
            store.append("orders", os.urandom(16 << 10))
    return home


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_target_is_named(verb: str, large: Path, tmp_path: Path) -> None:
    """With the bytes, and without an option of the store, which would not help."""
    if (reason := obstacle("tmpfs")) is not None:
        pytest.skip(reason)
    disk = Disk(tmp_path, "tmpfs", 1 << 20)
    try:
        target = disk.path / "target"
        with pytest.raises(mqstore.DiskFullError) as raised:
            VERBS[verb](large, tmp_path, target)
    finally:
        disk.remove()
    assert raised.value.path == str(target)
    assert raised.value.option == ""
    assert raised.value.errno == errno.ENOSPC
    assert str(raised.value).startswith(f"{target}: no space left on the device while ")
    assert str(raised.value).endswith(": free space on the disk, then try again")
    assert ".partial" not in str(raised.value)


@pytest.mark.parametrize("verb", ["rebuild", "repair", "import", "compact"])
def test_a_change_of_a_directory_names_no_option(verb: str, tmp_path: Path) -> None:
    """It takes none that makes the store smaller."""
    if (reason := obstacle("tmpfs")) is not None:
        pytest.skip(reason)
    rows = tmp_path / "rows.jsonl"
    disk = Disk(tmp_path, "tmpfs", 8 << 20)
    home = disk.path / "store"
    calls: dict[str, Callable[[], object]] = {
        "rebuild": lambda: mqstore.rebuild(home),
        "repair": lambda: mqstore.repair(home, in_place=True),
        "import": lambda: mqstore.import_(home, rows),
        "compact": lambda: mqstore.compact(home, in_place=True),
    }
    try:
        with mqstore.open(home, "create", segment_size=1 << 20) as store:
            store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
            store.append_many("prices", [mqstore.Message(bytes(50_000), keys=f"k{number}") for number in range(19)])
        mqstore.export(home, rows)
        if verb == "repair":
            shutil.rmtree(home / "consumequeue")
        disk.fill()
        with pytest.raises(mqstore.DiskFullError) as raised:
            calls[verb]()
    finally:
        disk.remove()
    assert raised.value.option == ""
    assert raised.value.path.startswith(str(home))
    assert str(raised.value).endswith(": free space on the disk, then try again")


@pytest.mark.parametrize("verb", VERBS)
def test_a_target_below_a_file(verb: str, large: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(OSError, match=r"file/target|file:") as raised:
        VERBS[verb](large, tmp_path, tmp_path / "file" / "target")
    assert ".partial" not in str(raised.value)


@pytest.mark.parametrize("verb", ["lines", "parts", "restore", "fetch"])
def test_a_target_that_another_call_writes(verb: str, large: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    partial = tmp_path / "target.partial"
    if verb == "lines":
        partial.touch()
    else:
        partial.mkdir()
    lock = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(mqstore.StoreBusyError) as raised:
            VERBS[verb](large, tmp_path, target)
    finally:
        os.close(lock)
    assert str(raised.value) == f"{target}: another call is writing this; wait for it, or choose another name"


def test_errors_keep_their_kind_and_values(tmp_path: Path) -> None:
    target = tmp_path / "a"

    def raised(error: Exception) -> Exception:
        with pytest.raises(type(error)) as found, creating(target):
            raise error
        return found.value

    noted = mqstore.StoreIOError(f"{target}.partial/b", "reading", errno.EIO, "bad")
    noted.add_note("in row 7")
    found = raised(noted)
    assert found.__notes__ == ["in row 7"]
    assert found == mqstore.StoreIOError(f"{target}/b", "reading", errno.EIO, "bad")
    assert pickle.loads(pickle.dumps(found)) == found
    missing = raised(FileNotFoundError(errno.ENOENT, "no such file", f"{target}.partial.state"))
    assert isinstance(missing, OSError)
    assert (missing.errno, missing.strerror, missing.filename) == (errno.ENOENT, "no such file", str(target))
    for other in (
        mqstore.DiskFullError("/another", "flushing"),
        mqstore.DiskFullError(f"{target}-old/commitlog", "flushing"),
        mqstore.CorruptionError("/another.partial", 7, "bad"),
        ValueError(f"{target}.partial"),
        KeyboardInterrupt(),
    ):
        assert raised(other) is other  # type: ignore[arg-type]
