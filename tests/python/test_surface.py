"""The public surface of the package: names, signatures, docs, the cost of the import."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.metrics
from conftest import python

# A name in this list is public from now on. A name that appears by accident fails the test.
PUBLIC = {
    "AppendResult",
    "AppendResults",
    "Archive",
    "ArchiveFile",
    "ArchiveQueue",
    "ArchiveReport",
    "ArchiveRestoreReport",
    "ArchiveVerifyReport",
    "Backup",
    "BackupReport",
    "BackupRestoreReport",
    "BackupState",
    "BackupStatus",
    "BackupVerifyReport",
    "BrokerOptions",
    "Change",
    "CleanReport",
    "CompactionReport",
    "Consumer",
    "ConsumerClosedError",
    "CopyGap",
    "CorruptionError",
    "Delay",
    "DelayStats",
    "DelayedInfo",
    "DiskFullError",
    "DledgerInfo",
    "DledgerTerm",
    "Empty",
    "ExpireReport",
    "ExpiredFile",
    "ExpiredTopic",
    "ExportReport",
    "FetchReport",
    "FollowStatus",
    "Follower",
    "FollowerInfo",
    "ForkedProcessError",
    "Full",
    "GroupInfo",
    "GroupOffset",
    "HourRate",
    "ImportReport",
    "InvalidFilterError",
    "InvalidMessageError",
    "InvalidOptionError",
    "Lease",
    "KeptSegment",
    "LeaseLostError",
    "LeasedMessage",
    "LogicMessage",
    "LogicPart",
    "LogicQueue",
    "LogicQueues",
    "LostOffsets",
    "LostRange",
    "MQStoreError",
    "Master",
    "Message",
    "MessageTooLargeError",
    "MissingPackageError",
    "MovedGroup",
    "NamespaceInfo",
    "NotAStoreError",
    "OffsetCommit",
    "OffsetOutOfRangeError",
    "PartSize",
    "PendingTransaction",
    "PoppedInfo",
    "Problem",
    "Progress",
    "PublishedFile",
    "PublishedResult",
    "QueueInfo",
    "QueueNotAssignedError",
    "QuotaFull",
    "QueueRange",
    "RebuildReport",
    "ReclaimReport",
    "ReclaimedSegment",
    "ReclaimedTopic",
    "RefusedError",
    "RemoteStoreError",
    "RepairReport",
    "RestoreReport",
    "RestoredQueue",
    "RunningBackup",
    "ResultExistsError",
    "ResultNotFoundError",
    "ShutDown",
    "SnapshotReport",
    "SqlFilter",
    "Scan",
    "SegmentHolder",
    "Store",
    "StoreArchive",
    "StoreBusyError",
    "StoreChangedError",
    "StoreClosedError",
    "StoreEvent",
    "StoreIOError",
    "StoreInfo",
    "StoreLockedError",
    "StoreOptions",
    "StorePermissionError",
    "StorePoisonedError",
    "StoreReadOnlyError",
    "StoreStats",
    "StoreTimeoutError",
    "StoreWarning",
    "StoredMessage",
    "Table",
    "TopicCopyReport",
    "TieredInfo",
    "TopicInfo",
    "TopicNotFoundError",
    "TopicQuota",
    "TopicRetention",
    "Transaction",
    "UndecidedInfo",
    "UnsupportedFormatError",
    "UnusedObject",
    "VerifyReport",
    "WorkQueue",
    "WorkQueueCounts",
    "WorkQueueInfo",
    "__version__",
    "backup",
    "clean",
    "compact",
    "copy_topic",
    "demote",
    "errors",
    "export",
    "fetch",
    "follow",
    "import_",
    "info",
    "open",
    "open_logic_queues",
    "promote",
    "published",
    "rebuild",
    "repair",
    "restore_compaction",
    "scan",
    "sql",
    "types",
    "verify",
}


def shown_default(field: dataclasses.Field[Any]) -> str:
    return "BrokerOptions()" if field.default is dataclasses.MISSING else repr(field.default)


SIGNATURES = {
    "repair": "(path, *, output=None, in_place=False, dry_run=False, options=None, progress=None, target_options=None)",
    "Store.snapshot": "(self, dest, *, progress=None, target_options=None)",
    "fetch": "(url, directory, *, progress=None, storage_options=None)",
    "published": "(url, *, storage_options=None)",
    "clean": "(url, *, older_than='1d', dry_run=False, storage_options=None)",
    "rebuild": "(path, *, dry_run=False, threads=None, options=None, progress=None)",
    "Store.rebuild": "(self, *, progress=None)",
    "open": "(path, mode='r', *, options=None, progress=None, lock_timeout=0, or None with mode \"share\", own=True, "
    "storage_options=None, cache=None, cache_size=1073741824, archive=None, archive_options=None, "
    + ", ".join(f"{field.name}={shown_default(field)}" for field in dataclasses.fields(mqstore.StoreOptions))
    + ")",
    "Store.append": "(self, /, topic, body=None, *, json=None, keys=(), tags=None, properties=None, queue_id=None, "
    "flag=0, born_timestamp=None, durable=False, replicated=False, delay=None, deliver_at=None, delay_level=None, "
    "light_queues=(), compression=None, compress_over=None)",
    "Store.append_many": "(self, /, topic, messages, *, queue_id=None, durable=False, replicated=False, "
    "compression=None, compress_over=None)",
    "Store.append_batch": "(self, /, topic, bodies, keys=None, tags=None, properties=None, *, queue_id=None, "
    "durable=False, replicated=False, compression=None, compress_over=None)",
    "Store.append_arrow": "(self, /, topic, table_or_stream, *, queue_id=None, durable=False, compression=None, "
    "compress_over=None)",
    "Message": "(body=None, *, json=None, keys=(), tags=None, properties=None, flag=0, born_timestamp=None)",
    "Store.read": "(self, /, topic, queue_id=None, start=None, end=None, *, filter=None, follow=False, timeout=None, "
    "on_damage='raise')",
    "Store.lookup": "(self, /, topic, key, *, start_time=None, end_time=None, limit=None, newest_first=False)",
    "Store.message_at": "(self, /, topic, queue_id, queue_offset)",
    "Store.messages_at": "(self, /, topic, queue_id, queue_offsets)",
    "Store.tail": "(self, /, topic, n=10, *, queue_id=None, filter=None, on_damage='raise')",
    "Store.count": "(self, /, topic)",
    "Store.wait": "(self, /, topic, queue_id=None, offset=None, timeout=None)",
    "Store.get": "(self, /, id)",
    "Store.get_at": "(self, /, commit_log_offset)",
    "Store.offset_for_time": "(self, /, topic, queue_id, time, *, boundary='lower')",
    "Store.create_topic": "(self, /, topic, queues=None, *, attributes=None, max_messages=None, expire_after=None)",
    "Store.topics": "(self, /)",
    "Store.update_topic": "(self, topic, *, read_queues=None, write_queues=None, perm=None, max_messages=None, "
    "expire_after=None)",
    "Store.table": "(self, topic, *, bodies='memory', on_damage='raise', expire_after=None)",
    "Store.quotas": "(self)",
    "Store.set_retention": "(self, topic, *, keep=None, max_bytes=None, max_messages=None)",
    "Store.retention": "(self)",
    "Store.delete_topic": "(self, topic, *, erase=False)",
    "Store.reclaim": "(self, *, dry_run=False, erase=None, max_bytes_per_second=None)",
    "Store.namespaces": "(self)",
    "Store.delete_namespace": "(self, namespace)",
    "Store.expire": "(self, *, dry_run=False, compact=False)",
    "Archive": "(target, *, target_options=None)",
    "Archive.restore": "(self, directory, *, topics=None, since=None, until=None, options=None, progress=None)",
    "StoreArchive.configure": "(self, target, *, older_than=0, topics=None, level=3, target_options=None)",
    "StoreArchive.run": "(self, *, target_options=None, progress=None)",
    "Store.set_confirm_offset": "(self, /, offset)",
    "Store.flush": "(self, /)",
    "Store.consumer": "(self, group, topics, filter=None, start='earliest', *, ordered=False, broadcast=False, "
    "name=None, commit_interval=0.1, on_lost='continue', history=False, on_damage='raise', create=True)",
    "Store.work_queue": "(self, topic, group=None, *, visibility_timeout=30.0, max_attempts=16, backoff=None, "
    "maxsize=0, on_damage='raise', create=True)",
    "Store.transaction": "(self, group='DEFAULT_PRODUCER', *, check=None, durable=False)",
    "Store.check_transactions": "(self, check, group='DEFAULT_PRODUCER', *, check_after=6.0, check_interval=30.0, "
    "check_max=15)",
    "Store.pending_transactions": "(self)",
    "Transaction.append": "(self, /, topic, body=None, *, json=None, keys=(), tags=None, properties=None, "
    "queue_id=None, flag=0, born_timestamp=None, compression=None, compress_over=None)",
    "Transaction.commit": "(self, /)",
    "Transaction.rollback": "(self, /)",
    "Consumer.poll": "(self, /, max_messages=1000, timeout=None)",
    "Consumer.commit": "(self, /, offsets=None, *, durable=False)",
    "Consumer.seek": "(self, /, topic, queue_id, offset)",
    "Consumer.seek_to_time": "(self, /, time)",
    "Consumer.reset": "(self, /, to, *, durable=False)",
    "Consumer.lag": "(self, /)",
    "WorkQueue.put": "(self, /, body=None, *, json=None, keys=(), tags=None, properties=None, delay=None, "
    "deliver_at=None, dedup_id=None, durable=False, block=True, timeout=None, compression=None, compress_over=None)",
    "WorkQueue.put_nowait": "(self, body=None, *, json=None, keys=(), tags=None, properties=None, delay=None, "
    "deliver_at=None, dedup_id=None, durable=False, compression=None, compress_over=None)",
    "WorkQueue.put_many": "(self, /, messages, *, delay=None, deliver_at=None, durable=False, block=True, "
    "timeout=None, compression=None, compress_over=None)",
    "WorkQueue.get": "(self, /, block=True, timeout=None)",
    "WorkQueue.get_nowait": "(self)",
    "WorkQueue.get_many": "(self, /, count, timeout=None)",
    "WorkQueue.ack": "(self, /, message, *, durable=False)",
    "WorkQueue.nack": "(self, /, message, delay=None, *, reason=None)",
    "WorkQueue.extend": "(self, /, message, duration=None)",
    "WorkQueue.peek": "(self, /, count=1)",
    "WorkQueue.purge": "(self, /)",
    "WorkQueue.leased": "(self)",
    "LeasedMessage.ack": "(self, /, *, durable=False)",
    "LeasedMessage.nack": "(self, /, delay=None, *, reason=None)",
    "LeasedMessage.extend": "(self, /, duration=None)",
    "Table.set": "(self, key, value, *, durable=False, compression=None, compress_over=None)",
    "Table.delete": "(self, key, *, durable=False)",
    "WorkQueue.task_done": "(self, /, message=None)",
    "WorkQueue.join": "(self, /, timeout=None)",
    "WorkQueue.shutdown": "(self, /, immediate=False)",
    "WorkQueue.redrive": "(self, /, limit=None, *, ids=None)",
    "Store.close": "(self, /)",
}


def test_public_names() -> None:
    assert set(mqstore.__all__) == PUBLIC
    # Names with @ come from pytest, which rewrites the assertions of distributions with a plugin.
    shown = {name for name in dir(mqstore) if not name.startswith(("_", "@"))}
    # Submodules appear after the first import.
    modules = {name for name in shown if f"mqstore.{name}" in sys.modules}
    assert shown - modules == PUBLIC - modules - {"__version__"}
    assert {"errors", "types"} <= modules


METRICS = {
    "StoreCollector": "(store, *, labels=None, queues=False, groups=True)",
    "StoreCollector.add": "(self, store, *, labels=None)",
    "StoreCollector.remove": "(self, store)",
    "StoreObserver.add": "(self, store, *, labels=None)",
    "StoreObserver.remove": "(self, store)",
    "observe": "(store, meter, *, labels=None, queues=False, groups=True)",
}


@pytest.mark.parametrize("name", sorted(METRICS))
def test_metrics(name: str) -> None:
    assert mqstore.metrics.__all__ == sorted({full.partition(".")[0] for full in METRICS})
    thing = _named(mqstore.metrics, name)
    assert inspect.getdoc(thing)
    assert thing.__module__ == "mqstore.metrics"
    assert _bare_signature(thing) == METRICS[name]


@pytest.mark.parametrize("name", sorted(PUBLIC - {"__version__", "errors", "types"}))
def test_names_are_documented_and_importable(name: str) -> None:
    thing = getattr(mqstore, name)
    assert inspect.getdoc(thing)
    assert thing.__module__ == "mqstore"
    assert pickle.loads(pickle.dumps(thing)) is thing


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signatures(name: str) -> None:
    assert _bare_signature(_named(mqstore, name)) == SIGNATURES[name]


def _named(thing: Any, name: str) -> Any:
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


def _bare_signature(thing: Any) -> str:
    signature = inspect.signature(thing)
    bare = signature.replace(
        parameters=[
            parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()
        ],
        return_annotation=inspect.Signature.empty,
    )
    return str(bare)


@pytest.mark.parametrize(
    "kind",
    [
        mqstore.Store,
        mqstore.Message,
        mqstore.StoredMessage,
        mqstore.AppendResult,
        mqstore.AppendResults,
        mqstore.Consumer,
        mqstore.WorkQueue,
        mqstore.LeasedMessage,
        mqstore.Archive,
        mqstore.StoreArchive,
    ],
)
def test_members_are_documented(kind: type) -> None:
    for name, member in inspect.getmembers(kind):
        assert name.startswith("_") or inspect.getdoc(member), name


def test_typed() -> None:
    assert (Path(mqstore.__file__).parent / "py.typed").is_file()


def test_version() -> None:
    assert mqstore.__version__.count(".") == 2


LIGHT = """
import os, sys, threading
before = set(sys.modules)
import mqstore
new = set(sys.modules) - before
assert threading.active_count() == 1
assert not os.path.isdir("/proc/self/task") or len(os.listdir("/proc/self/task")) == 1
print(*sorted(new))
"""

MOST_MODULES = 80

HEAVY = {
    "asyncio",
    "concurrent",
    "json",
    "logging",
    "multiprocessing",
    "opentelemetry",
    "pandas",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "rich",
    "socket",
    "subprocess",
    "typer",
}


def test_import_is_light_and_starts_no_thread() -> None:
    done = python(LIGHT)
    assert done.returncode == 0, done.stderr
    modules = done.stdout.split()
    assert not HEAVY & {name.partition(".")[0] for name in modules}
    # The time of an import grows with the number of modules. The time itself depends on the machine.
    assert len(modules) <= MOST_MODULES


def test_native_docs_are_those_of_the_stub() -> None:
    """``help()`` reads the native module, and editors read the stub. Both have the same text."""
    package = Path(mqstore.__file__).parent
    stubs = [package / "_mqstore.pyi", *sorted(package.glob("_stubs/*.pyi"))]
    native = vars(sys.modules["mqstore._mqstore"])
    nodes = [node for stub in stubs for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ClassDef)]
    classes = {node.name: node for node in nodes}
    assert len(classes) > 10
    for name, node in classes.items():
        # A private class is only in the stub, for what several classes share.
        if name.startswith("_"):
            continue
        kind = native[name]
        assert inspect.getdoc(kind) == ast.get_docstring(node), name
        shared = [classes[base] for base in map(private_base, node.bases) if base is not None]
        for member in itertools.chain.from_iterable(each.body for each in (node, *shared)):
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                assert inspect.getdoc(getattr(kind, member.name)) == ast.get_docstring(member), member.name


def private_base(base: ast.expr) -> str | None:
    """Returns the name of a base class whose name begins with `_`."""
    name = base.value if isinstance(base, ast.Subscript) else base
    return name.id if isinstance(name, ast.Name) and name.id.startswith("_") else None


def test_only_native_imports_the_native_module() -> None:
    package = Path(mqstore.__file__).parent
    users = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "from mqstore._mqstore" in path.read_text() or "import mqstore._mqstore" in path.read_text()
    ]
    assert users == ["_native.py"]


def test_python_is_new_enough() -> None:
    assert sys.version_info >= (3, 11)
