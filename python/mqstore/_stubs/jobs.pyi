"""Stubs of the native module for jobs on whole directories; a part of `_mqstore.pyi`."""

from collections.abc import Callable
from typing import Any, Self, TypeAlias, final

from mqstore._mqstore import NativeStore, StoredMessage

_Tell: TypeAlias = Callable[[int, int], object]

@final
class RemoteDirectory:
    """A store at a URL. Its files are listed at the first use; all later uses see the same versions."""

    def __new__(cls, url: str, source: object) -> Self: ...
    @property
    def url(self) -> str:
        """The URL, without secrets."""
    def again(self) -> RemoteDirectory:
        """Returns the same store, whose files are listed again."""

def config_json(store: NativeStore, name: str) -> str | None:
    """Returns a file of `config/`, or its backup, as plain JSON; None without a file."""

def saved_offsets(store: NativeStore, group: str) -> list[tuple[tuple[str, int], int]]:
    """Returns the saved offsets of a group, each with its topic and queue."""

def check_division(store: NativeStore) -> None:
    """Raises `UnsupportedFormatError` for a store that several processes cannot read together."""

def writer_pid(path: str) -> int | None:
    """Returns the process that has the store at `path` open for writing, if the system reports it."""

def lock_holder(path: str) -> tuple[int | None, bool] | None:
    """Returns the process that holds the lock of the store in a directory, and whether it shares the store.

    None if no process has it open for writing; the id is None if the system does not report it.
    """

_Process: TypeAlias = tuple[int, str, list[tuple[str, str]], list[tuple[str, list[tuple[str, int]]]], int]

def processes(store: NativeStore) -> tuple[int, list[_Process]]:
    """Returns the process id of the owner of a shared store, and its clients.

    Each with its process id, its version, its work queues, its consumers with their queues, and the number of its
    transactions.
    """

def verify(path: str | RemoteDirectory, progress: _Tell | None) -> dict[str, Any]: ...
def verify_log_bytes(path: str) -> tuple[int, bool]: ...
def verify_plan(path: str, cut: tuple[int, int, int], job: str, attempt: str) -> bytes | None: ...
def verify_steps(plan: bytes) -> list[tuple[int, bytes]]: ...
def verify_run_step(step: bytes, attempt: str, progress: _Tell | None) -> bytes: ...
def verify_assemble(plan: bytes, answers: list[bytes], progress: _Tell | None) -> dict[str, Any]: ...
def rebuild(path: str, options: dict[str, Any], dry_run: bool, progress: _Tell | None) -> dict[str, Any]: ...
def repair(
    path: str,
    options: dict[str, Any],
    output: str | None,
    dry_run: bool,
    progress: _Tell | None,
) -> dict[str, Any]: ...
def copy_store(path: str, output: str, progress: _Tell | None) -> None: ...
def info(path: str | RemoteDirectory) -> dict[str, Any]: ...
def pop_record(message: StoredMessage) -> dict[str, Any] | None: ...
def waiting_record(message: StoredMessage, store: NativeStore | None = None) -> dict[str, Any] | None: ...

@final
class CompactionJob:
    """A compaction whose steps run in other processes."""

    def __new__(cls, path: str, topics: list[str] | None, options: str) -> Self: ...
    @property
    def id(self) -> str:
        """Id of the job."""
    @property
    def dir(self) -> str:
        """Folder of the job."""
    @property
    def total_bytes(self) -> int:
        """Estimated bytes that all steps read."""
    def start(self, strategy: str, parts: int) -> list[tuple[int, bytes]]:
        """Returns the first round of steps for about `parts` workers. `strategy` is `auto`, `partition` or `ranged`."""
    def next(self, answers: list[bytes]) -> list[tuple[int, bytes]]:
        """Takes the answers of a round in the order of its steps. Returns the next round, empty after the last one."""
    def publish(self, dry_run: bool) -> str:
        """Publishes the job, or only checks it if `dry_run` is set. Returns the report as JSON."""
    def abandon(self) -> None:
        """Ends a job that will not be published. Does nothing if the job is over."""

def compaction_run_step(step: bytes, staging: str, progress: _Tell | None) -> bytes: ...
def compaction_report(path: str, job_id: str) -> str | None: ...
def compaction_run(
    path: str,
    topics: list[str] | None,
    options: str,
    threads: int,
    bytes_per_second: int,
    progress: _Tell | None,
) -> str: ...
def compaction_restore(
    path: str,
    source: NativeStore,
    request: tuple[list[str] | None, str, int, int],
    progress: _Tell | None,
) -> str: ...
def compaction_end(store: NativeStore, topic: str, queue_id: int) -> int | None: ...
