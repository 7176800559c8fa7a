"""The likeliest mistakes of a new user: the last line of each traceback says what is wrong and what to do.

The mistakes with Spark are in `spark/test_mistakes.py`.
"""

from __future__ import annotations

import os
import subprocess
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli, python
from loop_device import Disk, obstacle
from test_names_in_errors import INTERNAL

Mistake = Callable[[Path, mqstore.Store], object]


def as_reader(home: Path, call: Callable[[mqstore.Store], object]) -> None:
    with mqstore.open(home) as reader:
        call(reader)


# By mistake: the call, the error, the words of the cause, the words of the remedy.
MISTAKES: dict[str, tuple[Mistake, type[Exception], str, str]] = {
    "a mode of Python": (
        lambda home, _: mqstore.open(home, "w"),  # type: ignore[arg-type]
        *(ValueError, 'not "w"', 'mode must be "r", "rw" or "create"'),
    ),
    "an append to a reader": (
        lambda home, _: as_reader(home, lambda reader: reader.append("orders", b"x")),
        *(mqstore.StoreReadOnlyError, "opened read-only", 'open it with mode "rw" to append'),
    ),
    "a queue of a reader": (
        lambda home, _: as_reader(home, lambda reader: reader.work_queue("orders")),
        *(mqstore.StoreReadOnlyError, "opened read-only", 'open it with mode "rw" to change topics, groups or'),
    ),
    "a typo in an option": (
        lambda home, _: mqstore.open(home, "rw", segmentsize=1 << 20),  # type: ignore[call-arg]
        *(mqstore.InvalidOptionError, "segmentsize", "did you mean segment_size?"),
    ),
    "a typo in StoreOptions": (
        lambda _, __: mqstore.StoreOptions(retentoin=5),  # type: ignore[call-arg]
        *(mqstore.InvalidOptionError, "retentoin", "did you mean retention?"),
    ),
    "an option of a broker": (
        lambda home, _: mqstore.open(home, "rw", prewarm=False),  # type: ignore[call-arg]
        *(mqstore.InvalidOptionError, "prewarm", "advanced=mqstore.BrokerOptions(prewarm=...)"),
    ),
    "a value of an option": (
        lambda home, _: mqstore.open(home, "rw", durability="fsync"),  # type: ignore[arg-type]
        *(mqstore.InvalidOptionError, '"fsync"', '"sync", "async", "manual", "pooled"'),
    ),
    "a duration": (
        lambda home, _: mqstore.open(home, "rw", retention="7 days"),
        *(mqstore.InvalidOptionError, "'7 days' is no duration", '"7d"'),
    ),
    "text as body": (
        lambda _, store: store.append("orders", "text"),  # type: ignore[arg-type]
        *(TypeError, "not str", "body.encode()"),
    ),
    "text in a queue": (
        lambda _, store: store.work_queue("jobs").put("text"),  # type: ignore[arg-type]
        *(TypeError, "not str", "body.encode()"),
    ),
    "text in a message": (
        lambda _, __: mqstore.Message("text"),  # type: ignore[arg-type]
        *(TypeError, "not str", "body.encode()"),
    ),
    "a dictionary as body": (
        lambda _, store: store.append("orders", {"amount": 5}),  # type: ignore[arg-type]
        *(TypeError, "not dict", "convert it to bytes, for example with json"),
    ),
    "a time without a time zone": (
        lambda _, store: store.read("orders", start=datetime(2026, 1, 1)),  # noqa: DTZ001
        *(mqstore.InvalidOptionError, "without a time zone", "pass tzinfo=timezone.utc, or call astimezone()"),
    ),
    "text without a time zone": (
        lambda _, store: store.append("orders", b"x", deliver_at="2026-01-01"),
        *(mqstore.InvalidOptionError, "has no time zone", "2026-01-01T00:00:00Z"),
    ),
    "seconds as milliseconds": (
        lambda _, store: store.append("orders", b"x", deliver_at=1_764_150_000),
        *(mqstore.InvalidOptionError, "in 1970", "multiply it by 1000"),
    ),
    "an unknown topic": (
        lambda _, store: store.read("order"),
        *(mqstore.TopicNotFoundError, "no topic order", "orders"),
    ),
    "an offset without a queue": (
        lambda _, store: store.read("orders", start=5),
        *(mqstore.InvalidOptionError, "5 is an offset of one queue", "give queue_id, or a time"),
    ),
    "an offset after the end": (
        lambda _, store: store.read("orders", 0, 100),
        *(mqstore.OffsetOutOfRangeError, "offset 100", "holds 0 to 1"),
    ),
    "a second writer in the same process": (
        lambda home, _: mqstore.open(home, "rw"),
        *(
            mqstore.StoreLockedError,
            f"locked by process {os.getpid()} (this one)",
            "use the store that is already open",
        ),
    ),
    "the parent folder": (
        lambda home, _: mqstore.open(home.parent),
        *(mqstore.NotAStoreError, "it has no commitlog folder", "did you mean"),
    ),
    "a new store in the parent folder": (
        lambda home, _: mqstore.open(home.parent, "create"),
        *(mqstore.NotAStoreError, "it is not empty", "did you mean"),
    ),
    "another folder": (
        lambda home, _: mqstore.open(home / "mqstore"),
        *(mqstore.NotAStoreError, "it has no commitlog folder", "name the folder that contains commitlog"),
    ),
    "a missing folder": (
        lambda home, _: mqstore.open(home.parent / "elsewhere", "rw"),
        *(mqstore.NotAStoreError, "elsewhere: not a store: it does not exist", 'create a store there (mode "create"'),
    ),
    "a file": (
        lambda home, _: mqstore.open(home / "lock"),
        *(mqstore.NotAStoreError, "it is a file", "name the folder of the store"),
    ),
    "a closed store": (
        lambda _, store: (store.close(), store.append("orders", b"x")),
        *(mqstore.StoreClosedError, "the store is closed", "open it again with mqstore.open()"),
    ),
    "a condition as tags": (
        lambda _, store: store.read("orders", filter="price > 5"),
        *(mqstore.InvalidFilterError, "looks like a condition on properties", 'write mqstore.sql("price > 5")'),
    ),
    "tags with one bar": (
        lambda _, store: store.read("orders", filter="paid | open"),
        *(mqstore.InvalidFilterError, 'tags are separated by "||"', 'write "a || b"'),
    ),
    "a list of tags": (
        lambda _, store: store.read("orders", filter=["paid", "open"]),  # type: ignore[arg-type]
        *(TypeError, "not list", 'a str of tags as "a || b"'),
    ),
    "a body that is too large": (
        lambda _, store: store.append("orders", bytes(5 << 20)),
        *(mqstore.MessageTooLargeError, "the limit is 4194304", "a larger max_message_size"),
    ),
    "a body that is too large for a segment": (
        lambda _, store: store.append("orders", bytes(1 << 20)),
        *(mqstore.MessageTooLargeError, "the record is", "a larger segment_size"),
    ),
    "a key with a space": (
        lambda _, store: store.append("orders", b"x", keys="a b"),
        *(mqstore.InvalidMessageError, "contains a space", "give several keys as a list"),
    ),
}


def check(message: str, *parts: str) -> None:
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert len(message) < 300, message
    assert not INTERNAL.search(message.replace("PySpark", "")), message


def last_line(error: BaseException) -> str:
    """The text after the stack of a traceback, notes included."""
    return "".join(traceback.format_exception_only(error)).rstrip("\n")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_explained(mistake: str, store: mqstore.Store, home: Path) -> None:
    call, kind, cause, remedy = MISTAKES[mistake]
    store.append("orders", b"x", tags="paid")
    store.flush()
    with pytest.raises(kind) as raised:
        call(home, store)
    check(last_line(raised.value).replace(str(home.parent), ""), cause, remedy)


def test_a_writer_in_another_process_is_named(home: Path, store: mqstore.Store) -> None:
    done = python("import sys, mqstore; mqstore.open(sys.argv[1], 'rw')", home)
    line = done.stderr.strip().splitlines()[-1]
    check(
        line, f"mqstore.StoreLockedError: {home}/lock: locked by process {os.getpid()}: close it there, or open it here"
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_is_told_to_open_its_own_store(store: mqstore.Store) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            store.append("orders", b"x")
        except mqstore.ForkedProcessError as error:
            os.write(write, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    check(os.read(read, 4096).decode(), "cannot be used after a fork", "open the path again in the child")
    os.close(read)
    os.close(write)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    if reason := obstacle("tmpfs"):
        pytest.skip(reason)
    disk = Disk(tmp_path, "tmpfs", 8 << 20)
    yield disk
    disk.remove()


FILL = """
import sys, mqstore
with mqstore.open(sys.argv[1], "create") as store:
    while True:
        store.append("orders", bytes(100_000))
"""


def test_a_full_disk_is_named_with_its_remedy(small_disk: Disk, cli: Cli) -> None:
    home = small_disk.path / "store"
    done = python(FILL, home, PYTHONWARNINGS="ignore")
    # The file that needs space first differs from run to run, and so does the option.
    line = done.stderr.splitlines()[-1].replace(str(small_disk.path), "")
    remedy = "free space on the disk, or change the option "
    check(line, "mqstore.DiskFullError", "no space left on the device", f" bytes free: {remedy}")
    small_disk.fill()
    done = cli("append", home, "orders", "--body", "x")
    assert done.returncode == 3
    # The command line has no option that makes a store smaller.
    check(done.stderr.splitlines()[-1].replace(str(small_disk.path), ""), "mqstore: ", "free space on the disk, then")


def test_a_read_only_file_system_is_named_with_its_remedy(small_disk: Disk, cli: Cli) -> None:
    home, new = small_disk.path / "store", small_disk.path / "new"
    assert python("import sys, mqstore; mqstore.open(sys.argv[1], 'create').append('t', b'x')", home).returncode == 0
    subprocess.run(["mount", "-o", "remount,ro", small_disk.path], check=True)
    for path, mode in ((home, "rw"), (new, "create")):
        with pytest.raises(mqstore.StoreIOError) as raised:
            mqstore.open(path, mode)  # type: ignore[arg-type]
        remedy = "or choose a folder on a file system that is not read-only"
        check(last_line(raised.value), str(path), "Read-only file system", f'open the store with mode "r", {remedy}')
        done = cli("append", path, "t", "--body", "x", "--create")
        assert done.returncode == 3
        (line,) = done.stderr.splitlines()
        check(line, f"mqstore: {path}", "Read-only file system", f"use a verb that only reads, {remedy}")
    with mqstore.open(home) as store:
        assert store.count("t") == 1


def test_a_folder_of_another_user_is_named_with_its_remedy(home: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    home.parent.chmod(0o500)
    try:
        with pytest.raises(PermissionError) as raised:
            mqstore.open(home, "create", options=SMALL)
        check(last_line(raised.value), str(home), "give this user access to it, or choose another folder")
    finally:
        home.parent.chmod(0o700)


# By module that is missing: a program, and the extra that its error names.
EXTRAS = {
    "typer": ("import runpy; sys.argv = ['mqstore']; runpy.run_module('mqstore', run_name='__main__')", "mqstore[cli]"),
    "pyarrow": ("import mqstore; mqstore.scan(sys.argv[1]).to_arrow()", "mqstore[arrow]"),
    "pandas": ("import mqstore; mqstore.info(sys.argv[1]).to_pandas()", "mqstore[pandas]"),
    "polars": ("import mqstore; mqstore.scan(sys.argv[1]).to_polars()", "mqstore[polars]"),
    "pyspark": ("import mqstore.spark; mqstore.spark.verify(None, sys.argv[1])", "mqstore[spark]"),
    "prometheus_client": (
        "import mqstore, mqstore.metrics; mqstore.metrics.StoreCollector(mqstore.open(sys.argv[1])).collect()",
        "mqstore[prometheus]",
    ),
}


HIDE = """
import importlib.machinery, os, sys

find = importlib.machinery.PathFinder.find_spec

def find_other(name, path=None, target=None):
    return None if name.partition(".")[0] == os.environ["HIDDEN"] else find(name, path, target)

importlib.machinery.PathFinder.find_spec = find_other
"""


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_extra_is_named(module: str, filled: Path) -> None:
    code, extra = EXTRAS[module]
    done = python(HIDE + code, filled, HIDDEN=module)
    assert done.returncode != 0
    check(done.stderr.strip().splitlines()[-1], "pip install", extra)


# By command: its exit status, the cause, the remedy. STORE is the store, PARENT its folder.
COMMANDS: dict[str, tuple[int, str, str]] = {
    "info PARENT": (3, "PARENT: not a store", "did you mean STORE?"),
    "append PARENT orders --body x --create": (3, "it is not empty", "did you mean STORE?"),
    "verify PARENT/elsewhere": (3, "it does not exist", "check the path"),
    "append PARENT/elsewhere orders --body x": (3, "it does not exist", "pass --create to create a store there"),
    "import PARENT/elsewhere PARENT/none.jsonl": (3, "it does not exist", "pass --create to create a store there"),
    "import STORE PARENT/none.jsonl --dry-run": (3, "PARENT/none.jsonl: no such file", "check the path"),
    "export STORE STORE/lock/x.jsonl": (3, "STORE/lock/x.jsonl: not a directory", "a part of the path is a file"),
    "export STORE STORE/lock/x.parquet": (3, "STORE/lock/x.parquet: not a directory", "a part of the path is a file"),
    "export STORE STORE/none/x.parquet": (3, "STORE/none/x.parquet: no such file or directory", "check the path"),
    "export STORE STORE/lock/x --to parquet --partition-by day": (3, "STORE/lock/x: not a dir", "choose another path"),
    "get STORE n\udcf6": (2, r"the argument 'n\udcf6' is not UTF-8", "check the encoding"),
    "lookup STORE orders n\udcf6": (2, r"the argument 'n\udcf6' is not UTF-8", "check the encoding"),
    "tail STORE n\udcf6": (2, r"the argument 'n\udcf6' is not UTF-8", "check the encoding"),
    "tail STORE order": (3, "no topic order", "orders"),
    "topic delete STORE order --yes": (3, "no topic order", "orders"),
    "append STORE orders --body x": (3, f"locked by process {os.getpid()}", "close it there"),
    "rebuild STORE": (3, f"locked by process {os.getpid()}", "close it there"),
    "cat STORE --filter price>5": (3, "a condition on properties", "or --sql on the command line"),
    "cat STORE --topic orders --sql price>": (2, "expected a property, a value, NOT or (, found the end", "--help"),
    "cat STORE --since 2026-02-30": (2, "'2026-02-30' does not exist", "use a date such as 2026-01-31"),
    "cat STORE --since yesterday": (2, "'yesterday' is no time", "an age such as 24h"),
    "cat STORE --limt 3": (2, "No such option: --limt", "--limit"),
    "verfy STORE": (2, "No such command 'verfy'", "Did you mean 'verify'?"),
    "append STORE orders": (2, "give a FILE", "--body TEXT"),
    "repair STORE": (2, "give --output OUT", "--in-place"),
    "expire STORE": (2, "give at least one of", "--retention"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_on_the_command_line_is_explained(command: str, store: mqstore.Store, home: Path, cli: Cli) -> None:
    status, *parts = COMMANDS[command]
    store.append("orders", b"x")
    store.flush()

    def named(text: str) -> str:
        return text.replace("STORE", str(home)).replace("PARENT", str(home.parent))

    done = cli(*map(named, command.split()), columns=200)
    assert (done.returncode, done.stdout) == (status, "")
    assert "Traceback" not in done.stderr
    assert not INTERNAL.search(done.stderr)
    if status == 3:
        (line,) = done.stderr.splitlines()
        assert line.startswith("mqstore: ")
    for part in parts:
        assert named(part) in done.stderr
