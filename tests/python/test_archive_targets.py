"""Targets of archives: requests that fail, two runs at the same time, damaged objects, and `clean`."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, target_at
from failing_requests import WAYS, KilledError, failing
from mqstore._archive import run
from mqstore._archive.manifest import decoded
from mqstore._remote.failure import RequestFailure
from restored_stores import SEGMENT, assert_identical, fill, filled_store, keeping, segments

pytest.importorskip("pyarrow")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqstore.Store]:
    """An open store with messages in several segments."""
    with filled_store(tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("kind", ["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def test_targets_at_urls(store: mqstore.Store, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("obstore")
    url, options = target_at(kind, request, tmp_path)
    store.append("%RETRY%group", b"again" * 100)
    fill(store, start=450)
    store.archive.configure(url, target_options=options)
    report = store.archive.run(target_options=options)
    assert report.target == url
    assert store.archive.verify(target_options=options).ok
    assert all(one.startswith(f"{url}/v1/topic=") for one in store.archive.paths(target_options=options))
    store.archive.restore(tmp_path / "restored", target_options=options)
    assert_identical(Path(store.path), tmp_path / "restored")
    assert store.archive.run(target_options=options).segments == 0
    cleaned = mqstore.Archive(url, target_options=options).clean(older_than=0)
    assert [one.path for one in cleaned.objects] == []


def test_a_target_must_create_if_absent(store: mqstore.Store, tmp_path: Path) -> None:
    with pytest.raises(mqstore.RemoteStoreError):
        store.archive.configure("ftp://host/archive")
    with pytest.raises(mqstore.InvalidOptionError, match="target_options"):
        store.archive.configure(tmp_path / "archive", target_options={"key": "secret"})


class Requests:
    """The requests that change or read objects of an archive, with failures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from mqstore._publish.local import Directory

        self.calls: list[str] = []
        self.before: Callable[[int, str], None] = lambda _number, _name: None
        self.after: Callable[[int, str], None] = lambda _number, _name: None
        for name in ("listed", "get", "put", "put_if_absent", "delete"):
            monkeypatch.setattr(Directory, name, self._wrapped(name, getattr(Directory, name)))

    def _wrapped(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *arguments: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            self.before(number, name)
            found = plain(target, *arguments)
            self.after(number, name)
            return found

        return call

    def fail(self, way: str, fails: int) -> None:
        """Lets one request fail, before or after it is carried out. After a kill, no request has an effect."""
        self.calls.clear()
        failing(way, fails)(self)

    def heal(self) -> None:
        self.before = self.after = lambda _number, _name: None
        self.calls.clear()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_whichever_request_fails_nothing_is_lost(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each failure, retention deletes only what a readable archive has, and the next run continues."""
    # One range and one upload at a time, so that the requests have an order.
    monkeypatch.setattr(run, "_MOST_WRITERS", 1)
    monkeypatch.setattr(run, "_COMMIT_BYTES", 3 * SEGMENT)
    monkeypatch.setattr("mqstore._publish.create._PAUSES", (0,))
    requests = Requests(monkeypatch)
    origin = tmp_path / "origin"
    with mqstore.open(origin, "create", options=SMALL) as opened:
        fill(opened, 350)
        opened.archive.run_to(tmp_path / "counted")
        count = len(requests.calls)
    assert requests.calls.count("put_if_absent") >= 4
    assert count < 80
    options = keeping(1)
    for fails in range(count):
        home, target, restored = (tmp_path / f"{name}{fails}" for name in ("store", "archive", "restored"))
        shutil.copytree(origin, home)
        with mqstore.open(home, "rw", options=options) as opened:
            opened.archive.configure(target)
            requests.fail(way, fails)
            with contextlib.suppress(mqstore.StoreIOError, KilledError):
                opened.archive.run()
            requests.heal()
            archived_to = opened.archive.archived_to
            assert archived_to is not None
            opened.expire()
            assert int(segments(home)[0].name) == archived_to
            opened.archive.run()
            opened.expire()
            assert mqstore.Archive(target).verify().ok
            opened.archive.restore(restored)
        assert [one.name for one in segments(restored)] == [one.name for one in segments(origin)][:-1]
        assert_identical(origin, restored)
        if not way.startswith("kill") and fails:
            unused = mqstore.Archive(target).clean(older_than=0, dry_run=True).objects
            # A run that failed removes its files, unless its manifest may still arrive.
            assert not [one for one in unused if "/topic=" in one.path] or way == "lost request"
        mqstore.Archive(target).clean(older_than=0)
        assert mqstore.Archive(target).verify().ok
        for one in (home, target, restored):
            shutil.rmtree(one)


@pytest.mark.parametrize(
    ("cause", "error"),
    [("denied", mqstore.StorePermissionError), ("full", mqstore.DiskFullError), ("other", mqstore.StoreIOError)],
)
@pytest.mark.parametrize("name", ["listed", "get", "put", "put_if_absent"])
def test_a_failed_request_is_a_typed_error(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Any, error: type[Exception], name: str
) -> None:
    from mqstore._publish.local import Directory

    def fail(_self: object, *_arguments: object) -> None:
        raise RequestFailure(cause, "", "as the test wants")

    monkeypatch.setattr("mqstore._publish.create._PAUSES", (0,))
    with monkeypatch.context() as failing:
        failing.setattr(Directory, name, fail)
        with pytest.raises(error):
            store.archive.run_to(tmp_path / "archive")
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.Archive(tmp_path / "archive").files()
    assert store.archive.run_to(tmp_path / "archive").segments > 0


def test_a_target_that_returns_half_a_file_gets_no_manifest(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqstore._publish.local import Directory

    plain = Directory.get

    def half(self: Directory, path: str) -> bytes | None:
        content = plain(self, path)
        return content[: len(content) // 2] if content and path.endswith(".parquet") else content

    store.archive.configure(tmp_path / "archive")
    with monkeypatch.context() as failing:
        failing.setattr(Directory, "get", half)
        with pytest.raises(mqstore.CorruptionError, match="differs from what was written"):
            store.archive.run()
    assert store.archive.archived_to == 0
    with pytest.raises(mqstore.ResultNotFoundError):
        store.archive.files()
    assert not list((tmp_path / "archive").rglob("*.parquet"))


def test_of_two_runs_one_wins(store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(monkeypatch)
    meeting = threading.Barrier(2, timeout=60)
    store.flush()

    def meet(_number: int, name: str) -> None:
        if name == "put_if_absent" and threading.current_thread().name.startswith("run"):
            counts[threading.current_thread().name] += 1
            if counts[threading.current_thread().name] == 3:
                meeting.wait()

    counts = {"run 0": 0, "run 1": 0}
    outcomes: list[Any] = []

    def archive() -> None:
        with mqstore.open(store.path) as reader:
            try:
                outcomes.append(reader.archive.run_to(tmp_path / "archive"))
            except mqstore.StoreBusyError as error:
                outcomes.append(error)

    requests.before = meet
    threads = [threading.Thread(target=archive, name=f"run {number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests.heal()
    [report] = [one for one in outcomes if isinstance(one, mqstore.ArchiveReport)]
    [error] = [one for one in outcomes if isinstance(one, mqstore.StoreBusyError)]
    assert "another run has extended the archive" in str(error)
    archive_ = mqstore.Archive(tmp_path / "archive")
    assert len(archive_.files()) == report.files
    assert archive_.verify().ok
    # The files of the other run are gone.
    assert not archive_.clean(older_than=0).objects
    archive_.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    assert store.archive.run_to(tmp_path / "archive").segments == 0


def test_damaged_archives_are_typed_errors(store: mqstore.Store, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    store.archive.configure(target)
    store.archive.run()
    archive = mqstore.Archive(target)
    path = Path(archive.paths()[0])
    content = path.read_bytes()
    for damage in (content[:-1], content[:50] + b"\0" + content[51:], b"", None):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        report = archive.verify()
        assert (report.ok, len(report.problems)) == (False, 1)
        assert path.name in report.problems[0]
        with pytest.raises(mqstore.CorruptionError):
            archive.restore(tmp_path / "restored")
        assert not (tmp_path / "restored").exists()
    path.write_bytes(content)
    archive.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    [manifest] = (target / "v1/_manifest").iterdir()
    content = manifest.read_bytes()
    for damage in (
        content[:-9],
        content.replace(b'"rows":', b'"rows ":', 1),
        b"{}",
        content.replace(b"topic=", b"../..="),
    ):
        manifest.write_bytes(damage)
        for verb in (archive.files, archive.verify, store.archive.run):
            with pytest.raises(mqstore.CorruptionError, match="manifest"):
                verb()
    manifest.write_bytes(content)
    assert archive.verify().ok


def test_a_manifest_names_only_files_of_its_folder(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    [path] = (tmp_path / "archive/v1/_manifest").iterdir()
    manifest = decoded("m", path.read_bytes())
    assert decoded("m", manifest.encoded()) == manifest
    file, segment = manifest.files[0], manifest.segments[0]
    for wrong in (
        replace(manifest, files=(replace(file, path="../../etc/passwd"),)),
        replace(manifest, files=(replace(file, path="topic=a/../x.parquet"),)),
        replace(manifest, files=(replace(file, rows=-1),)),
        replace(manifest, files=(file, file)),
        replace(manifest, segments=(segment, segment)),
        replace(manifest, segments=(replace(segment, bytes=0),)),
        replace(manifest, archive="x"),
    ):
        with pytest.raises(RequestFailure, match="cannot be used"):
            decoded("m", wrong.encoded())


def test_clean_removes_what_no_manifest_names(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    fill(store, start=450)
    store.archive.run()
    archive = mqstore.Archive(tmp_path / "archive")
    path = Path(archive.paths()[0])
    stray = path.with_name(path.name.replace(path.stem[-8:], "0123abcd"))
    shutil.copy(path, stray)
    (path.parent / "notes.txt").write_text("mine")
    assert not archive.clean().objects
    plan = archive.clean(older_than=0, dry_run=True)
    assert len(plan.objects) == 2
    assert archive.clean(older_than=0).objects == plan.objects
    assert not stray.exists()
    assert (path.parent / "notes.txt").exists()
    assert archive.verify().ok
