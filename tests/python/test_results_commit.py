"""Results at URLs: one commit or none, whichever request fails, also with two writers at the same time."""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
from failing_requests import WAYS, KilledError, failing
from mqstore._admin.export import file_export
from mqstore._publish import target as targets
from mqstore._publish.target import Target, result_target, target_of
from mqstore._remote.failure import RequestFailure
from mqstore._remote.manifest import NAME
from published_results import memory, visible
from python_folders import Directory
from remote_stores import ACCESS_KEY, SECRET_KEY, Bucket

pytest.importorskip("obstore")
pytest.importorskip("fsspec")


class Wrapped:
    """A target. `before` and `after` get the number and the name of each request, and can raise an error."""

    def __init__(self, target: Target) -> None:
        self.calls: list[str] = []
        self.before: Callable[[int, str], None] = lambda _number, _name: None
        self.after: Callable[[int, str], None] = lambda _number, _name: None
        self._target = target

    def __getattr__(self, name: str) -> Any:
        plain = getattr(self._target, name)

        def call(*arguments: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            self.before(number, name)
            found = plain(*arguments)
            self.after(number, name)
            return found

        return call


class Faults:
    """The targets of all exports of a test. `setup` prepares each of them."""

    def __init__(self) -> None:
        self.made: list[Wrapped] = []
        self.setup: Callable[[Wrapped], None] = lambda _: None

    def target(self, url: str, options: Any, action: str) -> Any:
        plain = target_of(url, options, action) or Directory(url.removeprefix("file://"))
        self.made.append(Wrapped(plain))
        self.setup(self.made[-1])
        return self.made[-1]

    @contextlib.contextmanager
    def during(self, setup: Callable[[Wrapped], None]) -> Iterator[None]:
        plain, self.setup = self.setup, setup
        try:
            yield
        finally:
            self.setup = plain


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    made = Faults()
    monkeypatch.setattr(targets, "target_of", made.target)
    return made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["jsonl", "store"])
def test_one_commit_or_none_whichever_request_fails(
    filled: Path, way: str, kind: str, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One upload at a time, so that the requests have an order.
    monkeypatch.setattr("mqstore._publish.target.UPLOADS", 1)

    def write(url: str) -> object:
        if kind == "jsonl":
            return mqstore.export(filled, url, format="jsonl").resumed
        with mqstore.open(filled) as store:
            return store.snapshot(url)

    root = f"memory://{uuid.uuid4().hex}"
    write(f"{root}/counted")
    requests = faults.made[-1].calls
    assert requests.count("put_if_absent") == 3
    # The manifest is created, then read back; then objects of other attempts go.
    last = [number for number, name in enumerate(requests) if name == "put_if_absent"][2]
    assert requests[last:] == ["put_if_absent", "get", *(["listed"] if kind == "jsonl" else []), "delete"]
    # The snapshot adds the failures during many uploads.
    numbers = (
        range(len(requests)) if kind == "jsonl" else (requests.index("put") + 1, last - 1, last, last + 1, last + 2)
    )
    commits = 0
    for fails in numbers:
        url = f"{root}/{fails}"
        done = None
        with faults.during(failing(way, fails)), contextlib.suppress(mqstore.StoreIOError, KilledError):
            done = write(url)
        is_published = NAME in memory(url)
        assert is_published or done is None, (way, fails)
        before = mqstore.published(url) if is_published else None
        commits += is_published
        if not way.startswith("kill") and not is_published:
            # A failed attempt removes its objects, unless its manifest may still arrive.
            left = memory(url) if kind == "store" else visible(url)
            assert bool(left) == (fails == last), (fails, requests[fails])
        # The same call again completes. Two snapshots are never the same.
        if kind == "store" and is_published:
            with pytest.raises(mqstore.ResultExistsError):
                write(url)
        else:
            assert write(url) == is_published or kind == "store"
        found = mqstore.published(url)
        assert before in (None, found)
        mqstore.clean(url, older_than=0)
        assert len(memory(url)) == 1 + len(found.files)
        mqstore.fetch(url, tmp_path / f"{fails}")
    assert commits > 0 or way in ("lost request", "kill before")


def test_a_failed_work_removes_its_objects(large_store: Path, empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_export, "_PART_BYTES", 50_000)

    class StopError(Exception):
        pass

    def stop(step: mqstore.Progress) -> None:
        if step.done > step.total // 2:
            assert len(memory(empty_url)) > 0
            raise StopError

    with pytest.raises(StopError):
        mqstore.export(large_store, empty_url, format="jsonl", progress=stop)
    assert memory(empty_url) == {}


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_of_two_writers_one_wins(filled: Path, kind: str, faults: Faults, tmp_path: Path) -> None:
    for are_equal in (False, True):
        url = f"file://{tmp_path}/{are_equal}" if kind == "file" else f"memory://{uuid.uuid4().hex}"
        meeting = threading.Barrier(2, timeout=60)

        def setup(target: Wrapped, meeting: threading.Barrier = meeting) -> None:
            def meet(_number: int, name: str) -> None:
                if name == "put_if_absent" and target.calls.count(name) == 3:
                    meeting.wait()

            target.before = meet

        outcomes: list[object] = []

        def write(keys: str | None, url: str = url, outcomes: list[object] = outcomes) -> None:
            try:
                outcomes.append(mqstore.export(filled, url, format="jsonl", keys=keys))
            except mqstore.ResultExistsError as error:
                outcomes.append(error)

        with faults.during(setup):
            threads = [threading.Thread(target=write, args=(keys,)) for keys in ("all", "all" if are_equal else "k1")]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        reports = [one for one in outcomes if isinstance(one, mqstore.ExportReport)]
        assert len(outcomes) == 2
        assert len(reports) == (2 if are_equal else 1)
        found = mqstore.fetch(url, tmp_path / f"{kind} {are_equal}")
        assert found.bytes == reports[0].bytes
        # The objects of the other attempt are gone.
        assert not mqstore.clean(url, older_than=0).objects


def test_of_two_attempts_in_a_bucket_the_first_wins(s3: Bucket, tmp_path: Path) -> None:
    target = result_target("s3://stores/race", s3.options, "test")
    (tmp_path / "file").write_bytes(b"content")
    with target.publication("jsonl", None) as first, target.publication("jsonl", None) as second:
        for one in (first, second):
            assert one.begin() is None
            one.add("part", tmp_path / "file")
        first.commit("{}")
        with pytest.raises(mqstore.ResultExistsError):
            second.commit("{}")
    assert mqstore.published("s3://stores/race", storage_options=s3.options).files[0].path == "part"
    assert not mqstore.clean("s3://stores/race", older_than=0, storage_options=s3.options).objects


def test_a_conflict_with_a_request_in_progress_is_repeated(
    filled: Path, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers 409 to both of two simultaneous requests, or to one before the other has ended."""
    from mqstore._publish.memory import Memory

    plain = Memory.put_if_absent
    conflicts = 0

    def conflict(self: Memory, path: str, content: bytes) -> bool:
        nonlocal conflicts
        if path == NAME and conflicts > 0:
            conflicts -= 1
            return False
        return plain(self, path, content)

    monkeypatch.setattr(Memory, "put_if_absent", conflict)
    conflicts = 2
    assert not mqstore.export(filled, empty_url, format="jsonl").resumed


def test_large_files_are_uploaded_in_parts(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3 accepts no smaller parts.
    monkeypatch.setattr("mqstore._remote.object_store._PART_BYTES", 5 << 20)
    content = os.urandom(11 << 20)
    (tmp_path / "file").write_bytes(content + bytes(1 << 20))
    with result_target("s3://stores/parts", s3.options, "test").publication("store", None) as attempt:
        attempt.begin()
        attempt.add("file", tmp_path / "file", trims=True)
        attempt.commit("{}")
    found = mqstore.published("s3://stores/parts", storage_options=s3.options)
    assert 11 << 20 >= found.bytes > (11 << 20) - 10
    mqstore.fetch("s3://stores/parts", tmp_path / "out", storage_options=s3.options)
    assert (tmp_path / "out/file").read_bytes() == content + bytes(1 << 20)


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("denied", mqstore.StorePermissionError),
        ("full", mqstore.DiskFullError),
        ("no-bucket", mqstore.StoreIOError),
        ("other", mqstore.StoreIOError),
    ],
)
@pytest.mark.parametrize("request_", ["get", "put", "put_if_absent"])
def test_a_failed_request_is_a_typed_error(
    filled: Path, empty_url: str, cause: Any, error: type[Exception], request_: str, faults: Faults
) -> None:
    def setup(target: Wrapped) -> None:
        def fail(_number: int, name: str) -> None:
            if name == request_ and (name != "put_if_absent" or target.calls.count(name) == 3):
                raise RequestFailure(cause, "", "as the test wants")

        target.before = fail

    with faults.during(setup), pytest.raises(error) as told:
        mqstore.export(filled, empty_url, format="jsonl")
    assert empty_url in str(told.value)
    assert NAME not in memory(empty_url)
    # Only a manifest that may still arrive keeps its objects.
    assert bool(visible(empty_url)) == (request_ == "put_if_absent" and cause != "denied")


def test_failed_writes_of_a_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore.exceptions

    from mqstore._remote.object_store import ObjectStore

    store = ObjectStore("s3://b/x", "s3://b/x", {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY})
    for error, cause in (
        (obstore.exceptions.PermissionDeniedError("403"), "denied"),
        (obstore.exceptions.GenericError("Server returned non-2xx status code: 403 Forbidden: "), "denied"),
        (FileNotFoundError("NoSuchBucket"), "no-bucket"),
        (obstore.exceptions.GenericError(f"{SECRET_KEY} status code: 500"), "other"),
    ):
        failure = store._write_failure(error, "x")
        assert failure.cause == cause
        assert SECRET_KEY not in failure.reason
        assert "list and read" not in failure.reason

    class Answers:
        count = 0

        def put(self, *_arguments: Any, **_options: Any) -> None:
            self.count += 1
            raise self.error

    server: Any = Answers()
    store._obstore = server
    for answer in (
        obstore.exceptions.AlreadyExistsError("412"),
        obstore.exceptions.GenericError("Server returned non-2xx status code: 409 Conflict"),
    ):
        server.error = answer
        assert not store.put_if_absent("x", b"")
    server.error = obstore.exceptions.GenericError("status code: 500")
    with pytest.raises(RequestFailure):
        store.put_if_absent("x", b"")
    # An upload in conflict with another request is repeated; the transport has repeated other failures.
    monkeypatch.setattr("mqstore._remote.object_store._PAUSES", (0, 0))
    (tmp_path / "file").write_bytes(b"x")
    for answer, count in ((obstore.exceptions.AlreadyExistsError("409"), 3), (server.error, 1)):
        server.error, server.count = answer, 0
        with pytest.raises(RequestFailure):
            store.put("x", tmp_path / "file", 1)
        assert server.count == count


def test_an_attempt_whose_objects_were_removed_publishes_nothing(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with (
        pytest.raises(mqstore.StoreIOError, match="write the result again"),
        result_target(empty_url, None, "test").publication("jsonl", None) as attempt,
    ):
        attempt.begin()
        attempt.add("part", tmp_path / "file")
        assert len(mqstore.clean(empty_url, older_than=0).objects) == 2
        attempt.commit("{}")
    assert memory(empty_url) == {}
