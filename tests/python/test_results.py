"""Results at URLs: one commit or none, whatever fails; what is fetched is what was written."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import damaged_stores
import mqstore
import mqstore.aio
from conftest import SMALL, Cli
from failing_requests import WAYS, KilledError, failing
from mqstore._admin import directories
from mqstore._admin.export import file_export
from mqstore._admin.export import parts as export_parts
from mqstore._publish import clean as cleaning
from mqstore._publish import fetch as fetching
from mqstore._publish import target as targets
from mqstore._publish.publication import Publication
from mqstore._publish.target import Target, target_of
from mqstore._remote.failure import RequestFailure
from mqstore._remote.manifest import NAME, Entry, Manifest, ManifestError
from remote_stores import ACCESS_KEY, SECRET_KEY, Bucket, answers

pytest.importorskip("obstore")
pytest.importorskip("fsspec")
pyarrow = pytest.importorskip("pyarrow")

FORMATS: list[Any] = ["jsonl", "parquet", "arrow"]


@pytest.fixture
def empty() -> str:
    """A URL without objects in the memory of `fsspec`."""
    return f"memory://{uuid.uuid4().hex}/out"


def memory(url: str) -> dict[str, bytes]:
    """The objects below a URL in the memory of `fsspec`."""
    import fsspec

    system = fsspec.filesystem("memory")
    root = "/" + url.partition("://")[2]
    return {name.removeprefix(f"{root}/"): system.cat_file(name) for name in system.find(root)}


def put(url: str, path: str, content: bytes) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file(f"/{url.partition('://')[2]}/{path}", content)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with several segments."""
    home = tmp_path_factory.mktemp("large") / "store"
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=2)
        for number in range(400):
            store.append("orders", bytes([number % 251]) * 1000, keys=f"k{number}", queue_id=number % 2)
    return home


def joined(kind: str, paths: list[Path]) -> Any:
    """All rows of files, or all lines."""
    if kind == "jsonl":
        return b"".join(path.read_bytes() for path in paths)
    dataset = pytest.importorskip("pyarrow.dataset")
    return dataset.dataset(paths, format=kind).to_table().to_pylist()


@pytest.mark.parametrize("kind", ["memory", "file", pytest.param("s3", marks=pytest.mark.slow)])
def test_an_export_is_that_of_a_file(
    large: Path, kind: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in FORMATS:
        mqstore.export(large, tmp_path / f"local.{form}")
    monkeypatch.setattr(file_export, "_PART_BYTES", 100_000)
    for form in FORMATS:
        url = {"memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{tmp_path}/{form}", "s3": "s3://stores/x"}[
            kind
        ]
        url += f"/{form}"
        options = s3.options if kind == "s3" else None
        report = mqstore.export(large, url, format=form, target_options=options)
        assert (report.path, report.format, report.messages, report.resumed) == (url, form, 400, False)
        found = mqstore.published(url, storage_options=options)
        assert (found.url, found.format, found.bytes) == (url, form, report.bytes)
        assert [file.path for file in found.files] == [f"part-{n:05}.{form}" for n in range(len(found.files))]
        assert len(found.files) >= 3
        assert found.urls == [file.url for file in found.files]
        home = tmp_path / f"fetched {form}"
        fetched = mqstore.fetch(url, home, storage_options=options)
        assert (fetched.files, fetched.bytes, fetched.kept) == (len(found.files), report.bytes, 0)
        assert sorted(home.iterdir()) == [home / file.path for file in found.files]
        assert joined(form, sorted(home.iterdir())) == joined(form, [tmp_path / f"local.{form}"])
        assert not list(tmp_path.glob("*.partial*"))
        # The same result again is a success; another one is not.
        again = mqstore.export(large, url, format=form, target_options=options)
        assert again.resumed
        assert again.to_dict() == {**report.to_dict(), "resumed": True}
        with pytest.raises(mqstore.ResultExistsError, match="is there since") as told:
            mqstore.export(large, url, format=form, keys="k1", target_options=options)
        assert told.value.path == url
        assert mqstore.published(url, storage_options=options) == found
        assert not mqstore.clean(url, older_than=0, storage_options=options).objects


def test_other_libraries_read_the_objects(large: Path, tmp_path: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    url = f"file://{tmp_path}/out"
    mqstore.export(large, url, format="parquet")
    urls = mqstore.published(url).urls
    assert polars.read_parquet(urls).height == 400
    with duckdb.connect() as connection:
        assert connection.read_parquet(urls).count("*").fetchall() == [(400,)]
    paths = [one.removeprefix("file://") for one in urls]
    assert pytest.importorskip("pyarrow.dataset").dataset(paths).count_rows() == 400


def test_an_export_without_messages_has_one_part(filled: Path, empty: str) -> None:
    for kind in FORMATS:
        assert mqstore.export(filled, f"{empty}/{kind}", format=kind, keys="none").messages == 0
        assert len(mqstore.published(f"{empty}/{kind}").files) == 1


def _copies(home: Path) -> dict[str, Callable[..., Any]]:
    def snapshot(dest: Any, **options: Any) -> Any:
        with mqstore.open(home) as store:
            return store.snapshot(dest, **options)

    return {
        "export": lambda dest, **options: mqstore.export(home, dest, format="store", **options),
        "compact": lambda dest, **options: mqstore.compact(home, output=dest, force=True, **options),
        "repair": lambda dest, **options: mqstore.repair(home, output=dest, **options),
        "snapshot": snapshot,
    }


def _contents(home: Any, **options: Any) -> list[Any]:
    table = mqstore.scan(home, columns=["topic", "queue_id", "keys", "body"], **options).to_arrow()
    return sorted(table.to_pylist(), key=repr)


@pytest.mark.parametrize("verb", ["export", "compact", "repair", "snapshot"])
def test_a_copy_at_a_url_is_that_of_a_directory(filled: Path, verb: str, empty: str, tmp_path: Path) -> None:
    copy = _copies(filled)[verb]
    local = copy(tmp_path / "local")
    report = copy(empty)
    if verb == "repair":
        assert report.output == empty
    elif verb != "compact":
        assert report.path == empty
    fetched = mqstore.fetch(empty, tmp_path / "fetched")
    assert fetched.format == "store"
    assert mqstore.verify(tmp_path / "fetched").ok
    assert _contents(tmp_path / "fetched") == _contents(tmp_path / "local")
    if verb == "export":
        mapping = (tmp_path / "fetched.mapping.jsonl").read_bytes()
        assert mapping.count(b"\n") == report.messages == local.messages
    # A store can also be read at the URL. The zeros at the ends of files are not uploaded.
    wanted = answers(tmp_path / "fetched")
    found = answers(empty)
    for verb_, answer in wanted.items():
        assert found[verb_] == answer, verb_
    assert mqstore.published(empty).bytes < sum(
        path.stat().st_size for path in (tmp_path / "fetched").rglob("*") if path.is_file()
    )
    # A writer opens what was fetched.
    with mqstore.open(tmp_path / "fetched", "rw") as store:
        store.append("orders", b"one more")
    with pytest.raises(mqstore.ResultExistsError):
        copy(empty, **({"waiting": "drop"} if verb == "export" else {}))


def test_a_snapshot_does_not_change_the_store_that_it_shares_files_with(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder can be on the same disk, so that files of the snapshot are hard links."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sizes = {path: path.stat().st_size for path in large.rglob("*") if path.is_file()}
    with mqstore.open(large) as store:
        store.snapshot(f"file://{tmp_path}/out")
    assert {path: path.stat().st_size for path in large.rglob("*") if path.is_file()} == sizes
    assert mqstore.verify(f"file://{tmp_path}/out").ok
    assert not list(tmp_path.glob("mqstore-*"))


@pytest.mark.slow
def test_a_store_in_a_bucket(large: Path, s3: Bucket, tmp_path: Path) -> None:
    url = "s3://stores/published"
    mqstore.export(large, url, format="store", target_options=s3.options)
    assert mqstore.verify(url, storage_options=s3.options).ok
    assert _contents(url, storage_options=s3.options) == _contents(large)
    mqstore.fetch(url, tmp_path / "fetched", storage_options=s3.options)
    assert _contents(tmp_path / "fetched") == _contents(large)
    with pytest.raises(mqstore.StoreIOError, match="bucket or container does not exist"):
        mqstore.export(large, "s3://missing/x", format="store", target_options=s3.options)


def test_a_pattern_matches_published_stores(filled: Path, empty: str) -> None:
    for name in ("a", "b"):
        mqstore.export(filled, f"{empty}/{name}", format="store")
    mqstore.export(filled, f"{empty}/c", format="jsonl")
    found = mqstore.scan(f"{empty}/*", topics="orders", columns=["body"]).to_arrow()
    assert found.num_rows == 80
    assert set(found["store"].to_pylist()) == {f"{empty}/a", f"{empty}/b"}
    with pytest.raises(mqstore.NotAStoreError, match=r"has the format jsonl: mqstore\.published"):
        mqstore.open(f"{empty}/c")


# Refused before work starts.


def test_a_target_without_create_if_absent_is_refused(filled: Path, tmp_path: Path) -> None:
    calls: list[Callable[[str], object]] = [
        lambda url: mqstore.export(filled, url, format="jsonl"),
        lambda url: mqstore.repair(filled, output=url),
        lambda url: mqstore.compact(filled, output=url),
        mqstore.clean,
    ]
    for call in calls:
        for url in ("sftp://user:secret@host/out", "https://host/out"):
            with pytest.raises(mqstore.RemoteStoreError, match="use s3://, gs://, az://, hdfs://, file://") as told:
                call(url)
            assert "secret" not in str(told.value)
    for call in (
        lambda _: mqstore.export(filled, tmp_path / "x.jsonl", target_options={}),
        lambda _: mqstore.repair(filled, output=tmp_path / "x", target_options={}),
        lambda _: mqstore.compact(filled, output=tmp_path / "x", target_options={}),
    ):
        with pytest.raises(mqstore.InvalidOptionError, match="target_options"):
            call("")
    for wrong in (lambda: mqstore.fetch("plain", tmp_path / "x"), lambda: mqstore.clean("plain")):
        with pytest.raises(ValueError, match="not a URL"):
            wrong()
    with pytest.raises(ValueError, match="omit mapping"):
        mqstore.export(filled, "memory://x", format="store", mapping=tmp_path / "m")


class Wrapped:
    """A target. `before` and `after` get the number and the name of each request, and can raise an error."""

    def __init__(self, target: Target) -> None:
        self.shown = target.shown
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
        self.made.append(Wrapped(target_of(url, options, action)))
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


def test_a_server_that_ignores_the_condition_is_refused(
    filled: Path, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqstore._publish.local import Memory

    def overwrite(self: Any, path: str, content: bytes) -> bool:
        put(empty, path, content)
        return True

    monkeypatch.setattr(Memory, "put_if_absent", overwrite)
    with pytest.raises(mqstore.RemoteStoreError, match="If-None-Match"):
        mqstore.export(filled, empty, format="jsonl")
    assert memory(empty) == {}


def test_other_objects_are_refused(filled: Path, empty: str) -> None:
    put(empty, "notes/a.txt", b"mine")
    with pytest.raises(mqstore.ResultExistsError, match="other objects, such as 'notes'"):
        mqstore.export(filled, empty, format="jsonl")
    assert memory(empty) == {"notes/a.txt": b"mine"}


# One commit or none.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["jsonl", "store"])
def test_one_commit_or_none_whichever_request_fails(
    filled: Path, way: str, kind: str, faults: Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One upload at a time, so that the requests have an order.
    monkeypatch.setattr("mqstore._publish.publication._UPLOADS", 1)

    def write(url: str) -> object:
        if kind == "jsonl":
            return mqstore.export(filled, url, format="jsonl").resumed
        with mqstore.open(filled) as store:
            return store.snapshot(url)

    root = f"memory://{uuid.uuid4().hex}"
    write(f"{root}/counted")
    requests = faults.made[-1].calls
    assert requests.count("put_if_absent") == 3
    last = len(requests) - 1
    # The snapshot adds the failures during many uploads.
    numbers = range(len(requests)) if kind == "jsonl" else (requests.index("put") + 1, last - 1, last)
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
            assert bool(memory(url)) == (fails == last), (fails, requests[fails])
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


def test_a_failed_work_removes_its_objects(large: Path, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_export, "_PART_BYTES", 50_000)

    class StopError(Exception):
        pass

    def stop(step: mqstore.Progress) -> None:
        if step.done > step.total // 2:
            assert len(memory(empty)) > 0
            raise StopError

    with pytest.raises(StopError):
        mqstore.export(large, empty, format="jsonl", progress=stop)
    assert memory(empty) == {}


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
    target = target_of("s3://stores/race", s3.options, "test")
    (tmp_path / "file").write_bytes(b"content")
    with Publication(target, "jsonl") as first, Publication(target, "jsonl") as second:
        for one in (first, second):
            assert one.begin() is None
            one.add("part", tmp_path / "file")
        first.commit({})
        with pytest.raises(mqstore.ResultExistsError):
            second.commit({})
    assert mqstore.published("s3://stores/race", storage_options=s3.options).files[0].path == "part"
    assert not mqstore.clean("s3://stores/race", older_than=0, storage_options=s3.options).objects


def test_a_conflict_with_a_request_in_progress_is_repeated(
    filled: Path, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server answers 409 to both of two simultaneous requests, or to one before the other has ended."""
    from mqstore._publish.local import Memory

    monkeypatch.setattr("mqstore._publish.create._PAUSES", (0, 0))
    plain = Memory.put_if_absent
    conflicts = 0

    def conflict(self: Memory, path: str, content: bytes) -> bool:
        nonlocal conflicts
        if path == NAME and conflicts > 0:
            conflicts -= 1
            return False
        return plain(self, path, content)

    monkeypatch.setattr(Memory, "put_if_absent", conflict)
    conflicts = 3
    with pytest.raises(mqstore.StoreIOError, match="does not end: try again"):
        mqstore.export(filled, empty, format="jsonl")
    assert NAME not in memory(empty)
    conflicts = 2
    assert not mqstore.export(filled, empty, format="jsonl").resumed


def test_large_files_are_uploaded_in_parts(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3 accepts no smaller parts.
    monkeypatch.setattr("mqstore._remote.object_store._PART_BYTES", 5 << 20)
    content = os.urandom(11 << 20)
    (tmp_path / "file").write_bytes(content + bytes(1 << 20))
    with Publication(target_of("s3://stores/parts", s3.options, "test"), "store") as attempt:
        attempt.begin()
        attempt.add("file", tmp_path / "file", trims=True)
        attempt.commit({})
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
    filled: Path, empty: str, cause: Any, error: type[Exception], request_: str, faults: Faults
) -> None:
    def setup(target: Wrapped) -> None:
        def fail(_number: int, name: str) -> None:
            if name == request_ and (name != "put_if_absent" or target.calls.count(name) == 3):
                raise RequestFailure(cause, "", "as the test wants")

        target.before = fail

    with faults.during(setup), pytest.raises(error) as told:
        mqstore.export(filled, empty, format="jsonl")
    assert empty in str(told.value)
    assert NAME not in memory(empty)
    # Only a manifest that may still arrive keeps its objects.
    assert bool(memory(empty)) == (request_ == "put_if_absent" and cause != "denied")


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


def test_an_attempt_whose_objects_were_removed_publishes_nothing(empty: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with (
        pytest.raises(mqstore.StoreIOError, match="write the result again"),
        Publication(target_of(empty, None, "test"), "jsonl") as attempt,
    ):
        attempt.begin()
        attempt.add("part", tmp_path / "file")
        assert len(mqstore.clean(empty, older_than=0).objects) == 2
        attempt.commit({})
    assert memory(empty) == {}


# Damage.


def _damage(url: str, path: str, change: Callable[[bytes], bytes | None]) -> None:
    import fsspec

    content = change(memory(url)[path])
    if content is None:
        fsspec.filesystem("memory").rm_file(f"/{url.partition('://')[2]}/{path}")
    else:
        put(url, path, content)


DAMAGES: dict[str, tuple[bool, Callable[[bytes], bytes | None]]] = {
    "empty manifest": (True, lambda _: b""),
    "half a manifest": (True, lambda content: content[: len(content) // 2]),
    "a changed digit": (True, lambda content: content.replace(b'"bytes": 1', b'"bytes": 2', 1)),
    "a newer version": (True, lambda content: content.replace(b'"version": 1', b'"version": 2')),
    "another document": (True, lambda _: b"[]"),
    "a missing object": (False, lambda _: None),
    "a short object": (False, lambda content: content[:-1]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_result_is_a_typed_error(filled: Path, name: str, empty: str, tmp_path: Path) -> None:
    mqstore.export(filled, empty, format="store")
    is_manifest, change = DAMAGES[name]
    victim = next(file for file in mqstore.published(empty).files if file.bytes > 100)
    assert b'"bytes": 1' in memory(empty)[NAME]
    path = NAME if is_manifest else victim.url.removeprefix(f"{empty}/")
    _damage(empty, path, change)
    count = len(memory(empty))
    for call in (lambda: mqstore.published(empty), lambda: mqstore.fetch(empty, tmp_path / "out")):
        with pytest.raises(mqstore.CorruptionError) as told:
            call()
        assert told.value.path == f"{empty}/{path}"
    with pytest.raises(mqstore.StoreIOError, match="manifest"):
        mqstore.open(empty)
    if is_manifest:
        for refused in (
            lambda: mqstore.clean(empty, older_than=0),
            lambda: mqstore.export(filled, empty, format="store"),
        ):
            with pytest.raises(mqstore.CorruptionError):
                refused()
    assert len(memory(empty)) == count
    assert not list(tmp_path.glob("out*"))


def test_other_bytes_are_never_fetched(filled: Path, empty: str, tmp_path: Path) -> None:
    mqstore.export(filled, empty, format="jsonl")
    _damage(empty, mqstore.published(empty).files[0].url.removeprefix(f"{empty}/"), lambda content: content[::-1])
    with pytest.raises(mqstore.CorruptionError, match="does not match its digest"):
        mqstore.fetch(empty, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_manifest_names_only_files_of_its_directory() -> None:
    entry = {"object": f"attempt-{'0' * 32}/0", "bytes": 1, "zeros": 0, "sha256": "0" * 64}

    def decoded(*paths: str, folders: tuple[str, ...] = (), **changes: Any) -> Manifest:
        files = tuple(Entry(**{"path": path, **entry, **changes}) for path in paths)
        made = Manifest("store", f"attempt-{'0' * 32}", None, 1, {}, files, folders)
        return Manifest.decoded(made.encoded())

    assert decoded("a/b", "c", folders=("d/e",)).files[0].length == 1
    for paths in (("../a",), ("/a",), ("a/../b",), ("",), ("a//b",), ("a\0",), ("a", "a"), ("a", "a/b"), (1,)):
        with pytest.raises(ManifestError):
            decoded(*paths)  # type: ignore[arg-type]
    for change in (
        {"object": "../x"},
        {"object": f"attempt-{'0' * 32}/../x"},
        {"bytes": -1},
        {"zeros": True},
        {"sha256": "0"},
    ):
        with pytest.raises(ManifestError):
            decoded("a", **change)
    for folder in ("..", "a", "/x"):
        with pytest.raises(ManifestError):
            decoded("a/b" if folder == "a" else "a", "a" if folder == "a" else "c", folders=(folder,))


# Fetch.


def test_a_fetch_resumes_and_refuses_what_is_there(
    large: Path, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mqstore.export(large, empty, format="store")
    monkeypatch.setattr(fetching, "_REQUESTS", 1)
    out = tmp_path / "out"

    class StopError(Exception):
        pass

    def stop(step: mqstore.Progress) -> None:
        if step.done > step.total // 2:
            raise StopError

    with pytest.raises(StopError):
        mqstore.fetch(empty, out, progress=stop)
    assert not out.exists()
    partial = tmp_path / "out.partial"
    (partial / "left over").write_bytes(b"")
    (partial / "link").symlink_to(tmp_path)
    complete = next(path for path in sorted(partial.rglob("*")) if path.is_file() and path.stat().st_size > 1000)
    with complete.open("r+b") as file:
        file.write(b"damage")
    steps: list[mqstore.Progress] = []
    out.mkdir()
    report = mqstore.fetch(empty, out, progress=steps.append)
    assert 0 < report.kept < report.files
    assert steps[-1].done == steps[-1].total
    assert not partial.exists()
    assert not (out / "left over").exists()
    assert not (out / "link").is_symlink()
    assert _contents(out) == _contents(large)
    (tmp_path / "file").write_bytes(b"")
    for taken in (out, tmp_path / "file"):
        with pytest.raises(FileExistsError, match="not empty"):
            mqstore.fetch(empty, taken)
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.fetch(f"{empty}/nothing", tmp_path / "nothing")
    (tmp_path / "other.mapping.jsonl").write_text("mine")
    with pytest.raises(FileExistsError, match="mapping"):
        mqstore.fetch(empty, tmp_path / "other")


def test_empty_folders_and_strange_names_survive(filled: Path, empty: str, tmp_path: Path) -> None:
    with mqstore.open(filled, "rw") as store:
        store.append("%RETRY%group", b"x")
        (filled / "mqstore" / "tmp").mkdir(exist_ok=True)
        store.snapshot(empty)
    assert mqstore.scan(empty, topics="%RETRY%group").to_arrow().num_rows == 1
    mqstore.fetch(empty, tmp_path / "out")
    assert (tmp_path / "out/consumequeue/%RETRY%group/0").is_dir()
    home = tmp_path / "home"
    (home / "empty/inner").mkdir(parents=True)
    (home / "a b#ü?%41").write_bytes(b"1\0\0")
    with Publication(target_of(f"{empty}2", None, "test"), "store") as attempt:
        attempt.begin()
        attempt.add_directory(home)
        attempt.commit({})
    mqstore.fetch(f"{empty}2", tmp_path / "again")
    assert (tmp_path / "again/empty/inner").is_dir()
    assert (tmp_path / "again/a b#ü?%41").read_bytes() == b"1\0\0"


def test_a_full_disk_is_a_typed_error(
    filled: Path, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(export_parts, "write_part", fill)
        with pytest.raises(mqstore.DiskFullError, match="while preparing the result: free space on the disk, then"):
            mqstore.export(filled, empty, format="parquet")
    assert memory(empty) == {}
    mqstore.export(filled, empty, format="parquet")
    with monkeypatch.context() as patch:
        patch.setattr(fetching._File, "add", fill)
        with pytest.raises(mqstore.DiskFullError, match="while fetching the result") as told:
            mqstore.fetch(empty, tmp_path / "out")
    assert told.value.path == str(tmp_path / "out.partial")
    assert mqstore.fetch(empty, tmp_path / "out").files == 1


def test_a_link_to_a_folder_is_refused(empty: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/link").symlink_to(tmp_path)
    with (
        pytest.raises(mqstore.UnsupportedFormatError, match="symbolic link"),
        Publication(target_of(empty, None, "test"), "store") as attempt,
    ):
        attempt.begin()
        attempt.add_directory(tmp_path / "home")
    assert memory(empty) == {}


def test_another_process_reads_the_listed_versions(filled: Path, empty: str) -> None:
    """A task of a job reads the list of its driver, which names the objects."""
    from mqstore._remote.place import pinned

    with mqstore.open(filled) as store:
        store.snapshot(empty)
    first, kept = pinned(empty, {}, None)
    wanted = mqstore._native.verify(first, None)
    assert wanted["ok"]
    listing = kept.listing()
    second, _ = pinned(empty, {}, listing)
    assert mqstore._native.verify(second, None) == wanted
    victim = next(file for file in mqstore.published(empty).files if file.path.startswith("commitlog/"))
    put(empty, victim.url.removeprefix(f"{empty}/"), b"replaced")
    with pytest.raises(mqstore.StoreChangedError):
        mqstore._native.verify(pinned(empty, {}, listing)[0], None)


# Clean.


def test_clean_keeps_young_attempts_and_named_objects(filled: Path, tmp_path: Path, cli: Cli) -> None:
    url, root = f"file://{tmp_path}/out", tmp_path / "out/_mqstore"
    mqstore.export(filled, url, format="jsonl")
    named = sorted(path for path in root.rglob("*") if path.is_file())
    ages = {"old": (90_000, 100_000), "mixed": (10, 100_000), "young": (10, 20)}
    files = {}
    for name, seconds in ages.items():
        folder = root / f"attempt-{uuid.uuid4().hex}"
        folder.mkdir()
        for number, age in enumerate(seconds):
            files[name, number] = folder / f"{number}"
            files[name, number].write_bytes(b"12345")
            now = folder.stat().st_mtime - age
            os.utime(files[name, number], (now, now))
    (tmp_path / "out/mine.txt").write_text("mine")
    old = [files["old", 0], files["old", 1]]
    plan = json.loads(cli("clean", url, "--dry-run", "--format", "json").stdout)
    assert sorted(one["path"] for one in plan["objects"]) == sorted(
        str(path.relative_to(tmp_path / "out")) for path in old
    )
    assert (plan["bytes"], plan["kept"], plan["dry_run"]) == (10, 4, True)
    refused = cli("clean", url)
    assert refused.returncode == 2
    assert "pass --yes" in refused.stderr
    assert all(path.exists() for path in old)
    done = cli("clean", url, "--yes")
    assert done.returncode == 0
    assert "removed 2 objects" in done.stderr
    assert not any(path.exists() for path in old)
    assert files["mixed", 1].exists()
    report = mqstore.clean(url, older_than="5s")
    assert (len(report.objects), report.kept, report.bytes) == (4, 0, 20)
    assert sorted(path for path in root.rglob("*") if path.is_file()) == named
    assert (tmp_path / "out/mine.txt").exists()
    assert not mqstore.clean(f"file://{tmp_path}/nothing", dry_run=True).objects
    assert cleaning.clean is mqstore.clean


# The command line, asyncio, secrets.


@pytest.mark.slow
def test_the_command_line_writes_and_fetches(filled: Path, tmp_path: Path, cli: Cli) -> None:
    for verb in (
        ("export", filled, "OUT", "--to", "jsonl"),
        ("compact", filled, "--output", "OUT", "--force"),
        ("repair", filled, "--output", "OUT"),
        ("snapshot", filled, "OUT"),
    ):
        url = f"file://{tmp_path}/{verb[0]}"
        done = cli(*(url if word == "OUT" else word for word in verb))
        assert done.returncode == 0, done.stderr
        assert mqstore.published(url).format == ("jsonl" if verb[0] == "export" else "store")
    done = cli("fetch", url, tmp_path / "fetched", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(tmp_path / "fetched")
    assert mqstore.verify(tmp_path / "fetched").ok
    again = cli("fetch", url, tmp_path / "fetched")
    assert again.returncode == 3
    assert "not empty" in again.stderr
    assert cli("fetch", "plain", tmp_path / "x").returncode == 2


def test_asyncio_writes_and_fetches(filled: Path, empty: str, tmp_path: Path) -> None:
    async def run() -> None:
        await mqstore.aio.export(filled, empty, format="jsonl")
        assert (await mqstore.aio.published(empty)).format == "jsonl"
        assert (await mqstore.aio.fetch(empty, tmp_path / "out")).files == 1
        assert not (await mqstore.aio.clean(empty)).objects
        async with mqstore.aio.open(filled) as store:
            assert (await store.snapshot(f"{empty}2")).path == f"{empty}2"

    asyncio.run(run())


def test_secrets_are_in_no_text(filled: Path, s3: Bucket) -> None:
    texts = []
    wrong = {**s3.options, "endpoint": "http://127.0.0.1:1", "retry_config": {"max_retries": 0}}
    for call in (
        lambda: mqstore.export(filled, "s3://key:secret@bucket/x", format="jsonl"),
        lambda: mqstore.export(filled, "s3://stores/x", format="jsonl", target_options=wrong),
        lambda: mqstore.fetch("s3://stores/x", filled.with_name("y"), storage_options=wrong),
        lambda: mqstore.clean("s3://stores/x", storage_options=wrong),
        lambda: mqstore.published("s3://stores/x?secret=1"),
    ):
        with pytest.raises(mqstore.MQStoreError) as told:
            call()
        texts += [str(told.value), repr(told.value), repr(told.value.__cause__)]
    for text in texts:
        assert "secret" not in text
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


@pytest.mark.slow
def test_a_repaired_copy_of_a_damaged_store(tmp_path: Path, empty: str) -> None:
    home = tmp_path / "store"
    damaged_stores.ours(home)
    segment = min((home / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff" * 20)
    report = mqstore.repair(home, output=empty)
    assert report.lost
    assert report.output == empty
    mqstore.fetch(empty, tmp_path / "fetched")
    assert mqstore.verify(tmp_path / "fetched").ok
    assert directories.repair is mqstore.repair
    plan = mqstore.repair(home, output=f"{empty}2", dry_run=True)
    assert plan.dry_run
    assert memory(f"{empty}2") == {}


def test_writers_that_remove_empty_folders_do_not_disturb_each_other(tmp_path: Path) -> None:
    from mqstore._publish.local import Directory

    target = Directory(str(tmp_path / "target"))
    problems: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for number in range(300):
                path = f"v1/shared/{name}-{number}"
                assert target.put_if_absent(path, b"probe")
                target.delete([path])
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
