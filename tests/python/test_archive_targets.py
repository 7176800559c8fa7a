"""Targets of archives: requests that fail, two runs at the same time, damaged objects, and `clean`."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
from archive_manifests import encoded
from conftest import SMALL, target_at
from failing_requests import KilledError, failing
from mqstore import _native
from mqstore._archive.archive import _SIZES as SIZES
from mqstore._publish import place as places
from mqstore._remote.failure import RequestFailure
from python_folders import Directory, python_transport, with_directories
from restored_stores import SEGMENT, assert_identical, fill, filled_store, keeping, segments

RARE_WAYS = ("kill before", "lost request")
"""The ways in which the request is not carried out."""

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
    # Other programs open a file of this machine by its path.
    root = url.removeprefix("file://")
    assert all(one.startswith(f"{root}/v1/topic=") for one in store.archive.paths(target_options=options))
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
        monkeypatch.setattr(places, "_transport_of", with_directories(places._transport_of))
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
@pytest.mark.parametrize(
    "way", ["kill after", "lost answer", *(pytest.param(way, marks=pytest.mark.soak) for way in RARE_WAYS)]
)
def test_whichever_request_fails_nothing_is_lost(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each failure, retention deletes only what a readable archive has, and the next run continues."""
    # One range and one upload at a time, so that the requests have an order.
    monkeypatch.setitem(SIZES, "writers", 1)
    monkeypatch.setitem(SIZES, "commit_bytes", 3 * SEGMENT)
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
    def fail(_self: object, *_arguments: object) -> None:
        raise RequestFailure(cause, "", "as the test wants")

    with monkeypatch.context() as failing, python_transport():
        failing.setattr(Directory, name, fail)
        with pytest.raises(error):
            store.archive.run_to(tmp_path / "archive")
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.Archive(tmp_path / "archive").files()
    assert store.archive.run_to(tmp_path / "archive").segments > 0


def test_a_target_that_returns_half_a_file_gets_no_manifest(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Directory.get

    def half(self: Directory, path: str) -> bytes | None:
        content = plain(self, path)
        return content[: len(content) // 2] if content and path.endswith(".parquet") else content

    store.archive.configure(tmp_path / "archive")
    with monkeypatch.context() as failing, python_transport():
        failing.setattr(Directory, "get", half)
        with pytest.raises(mqstore.CorruptionError, match="differs from what was written"):
            store.archive.run()
    assert store.archive.archived_to == 0
    with pytest.raises(mqstore.ResultNotFoundError):
        store.archive.files()
    assert not list((tmp_path / "archive").rglob("*.parquet"))


@pytest.mark.parametrize("way", ["half", "flipped", "missing"])
def test_a_target_that_keeps_a_manifest_badly_lets_nothing_be_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The server answers that it has the manifest."""
    plain = Directory.put_if_absent

    def bad(self: Directory, path: str, content: bytes) -> bool:
        if not path.endswith(".json"):
            return plain(self, path, content)
        other = b"8" if content[-9:-8] == b"7" else b"7"
        kept = {"half": content[: len(content) // 2], "flipped": content[:-9] + other + content[-8:]}.get(way)
        return kept is None or plain(self, path, kept)

    with mqstore.open(tmp_path / "store", "create", options=keeping(2 * SEGMENT)) as store:
        store.archive.configure(tmp_path / "archive")
        fill(store)
        with monkeypatch.context() as failing, python_transport():
            failing.setattr(Directory, "put_if_absent", bad)
            with pytest.raises(mqstore.CorruptionError, match="differs from what was written"):
                store.archive.run()
        assert store.expire().segments == 0
        assert store.archive.archived_to == 0
        assert store.archive.run().segments > 0
        assert store.archive.verify().ok
        assert store.expire().segments > 0


def test_a_clean_next_to_a_run_stops_it_and_nothing_is_lost(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no minimum age, a clean removes the files of a run in progress."""
    monkeypatch.setitem(SIZES, "writers", 1)
    store.archive.run_to(tmp_path / "archive")
    fill(store, 80, start=450)
    shutil.copytree(tmp_path / "archive", tmp_path / "counted")
    requests = Requests(monkeypatch)
    store.archive.run_to(tmp_path / "counted")
    outcomes = []
    for cleans in range(len(requests.calls)):
        target = tmp_path / f"archive{cleans}"
        shutil.copytree(tmp_path / "archive", target)

        def clean(number: int, _name: str, cleans: int = cleans, target: Path = target) -> None:
            if number == cleans:
                mqstore.Archive(target).clean(older_than=0)

        requests.heal()
        requests.before = clean
        try:
            store.archive.run_to(target)
            outcomes.append("archived")
        except mqstore.StoreBusyError as error:
            outcomes.append(str(error))
        requests.heal()
        assert mqstore.Archive(target).verify().ok
        store.archive.run_to(target)
        assert mqstore.Archive(target).verify().ok
    stopped = [one for one in outcomes if one != "archived"]
    assert 3 <= len(stopped) < len(outcomes)
    assert all("a clean of the archive has removed this file" in one for one in stopped)


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


def emptied(target: Path, _earlier: Path) -> None:
    shutil.rmtree(target)


def set_back(target: Path, earlier: Path) -> None:
    shutil.rmtree(target)
    shutil.copytree(earlier, target)


def replaced(target: Path, earlier: Path) -> None:
    """Mounts the archive of another store, which is as long."""
    shutil.rmtree(target)
    with mqstore.open(f"{earlier}-store", "create", options=SMALL) as other:
        fill(other, 900, start=7)
        other.archive.run_to(target)


@pytest.mark.parametrize("lose", [emptied, set_back, replaced])
def test_a_target_that_lost_the_archive_gets_no_new_one_and_nothing_is_deleted(
    tmp_path: Path, lose: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "archive"
    with mqstore.open(tmp_path / "store", "create", options=keeping(2 * SEGMENT)) as store:
        store.archive.configure(target)
        fill(store)
        earlier_end = store.archive.run().archived_to
        shutil.copytree(target, tmp_path / "earlier")
        assert store.expire().segments > 0
        fill(store, start=450)
        end = store.archive.run().archived_to
        store.flush()
        lose(target, tmp_path / "earlier")
        before, objects = segments(Path(store.path)), sorted(target.rglob("*"))
        missing = f"from offset {earlier_end if lose is set_back else 0} to {end} there"
        with mqstore.open(store.path, options=keeping(2 * SEGMENT)) as reader:
            for verb in (
                store.archive.run,
                reader.archive.run,
                lambda: store.archive.run_to(target),
                lambda: store.archive.configure(target, level=1),
            ):
                with pytest.raises(mqstore.CorruptionError, match=f"{missing}.*configure it again"):
                    verb()
            for report in (store.expire(dry_run=True), reader.expire(dry_run=True), store.expire()):
                assert report.segments == 0
                assert missing in report.kept[0]
        store.delete_topic("events")
        assert store.reclaim().segments == ()
        assert segments(Path(store.path)) == before
        assert sorted(target.rglob("*")) == objects
        assert store.archive.archived_to == end
        # A new archive begins on purpose.
        shutil.rmtree(target, ignore_errors=True)
        store.archive.configure(None)
        store.archive.configure(target)
        assert store.archive.run().segments > 0
        assert store.expire().segments > 0


def test_a_target_is_compared_with_the_record_of_an_earlier_version(tmp_path: Path) -> None:
    target = tmp_path / "archive"
    with mqstore.open(tmp_path / "store", "create", options=keeping(2 * SEGMENT)) as store:
        store.archive.configure(target)
        fill(store)
        end = store.archive.run().archived_to
        settings = {"target": str(target), "older_than": 0, "topics": None, "level": 3}
        _native.set_archive(store, (end, json.dumps(settings, sort_keys=True)))
        target.rename(tmp_path / "unmounted")
        with pytest.raises(mqstore.CorruptionError, match=f"from offset 0 to {end} there"):
            store.archive.run()
        assert store.expire().segments == 0
        (tmp_path / "unmounted").rename(target)
        assert store.expire().segments > 0
        # The next run records the archive.
        store.archive.run()
        target.rename(tmp_path / "unmounted")
        with pytest.raises(mqstore.CorruptionError, match=f"from offset 0 to {end} there"):
            store.archive.configure(target)


def test_a_target_that_does_not_answer_keeps_all_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: object, *_arguments: object) -> None:
        raise RequestFailure("denied", "", "as the test wants")

    with mqstore.open(tmp_path / "store", "create", options=keeping(2 * SEGMENT)) as store:
        store.archive.configure(tmp_path / "archive")
        fill(store)
        store.archive.run()
        with monkeypatch.context() as failing, python_transport():
            failing.setattr(Directory, "listed", fail)
            report = store.expire()
        assert (report.segments, "as the test wants" in report.kept[0]) == (0, True)
        # One of the files is gone.
        path = Path(store.archive.paths()[0])
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        report = store.expire()
        assert (report.segments, path.name in report.kept[0]) == (0, True)
        path.write_bytes(content)
        assert store.expire().segments > 0


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
    archive = mqstore.Archive(tmp_path / "archive")
    [path] = (tmp_path / "archive/v1/_manifest").iterdir()
    content = path.read_bytes()
    manifest = json.loads(content)
    assert encoded(manifest) == content
    [file, *_], [segment, *_] = manifest["files"], manifest["segments"]
    for wrong in (
        {"files": [{**file, "path": "../../etc/passwd"}]},
        {"files": [{**file, "path": "topic=a/../x.parquet"}]},
        {"files": [{**file, "rows": -1}]},
        {"files": [file, file]},
        {"segments": [segment, segment]},
        {"segments": [{**segment, "bytes": 0}]},
        {"archive": "x"},
    ):
        path.write_bytes(encoded({**manifest, **wrong}))
        with pytest.raises(mqstore.CorruptionError, match="cannot be used"):
            archive.files()


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("files", lambda files: [{name: value for name, value in one.items() if name != "queues"} for one in files]),
        ("files", lambda files: [{**one, "queues": [[0, 1, 2, 3]]} for one in files]),
        ("files", lambda files: [list(one.values()) for one in files]),
        ("segments", lambda _: ["abcd"]),
        ("segments", lambda segments: [list(one.values()) for one in segments]),
        ("last", lambda last: list(last.values())),
    ],
)
def test_a_manifest_names_each_member(
    store: mqstore.Store, tmp_path: Path, part: str, change: Callable[[Any], Any]
) -> None:
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    [path] = (tmp_path / "archive/v1/_manifest").iterdir()
    values = json.loads(path.read_bytes())
    path.write_bytes(encoded({**values, part: change(values[part])}))
    with pytest.raises(mqstore.CorruptionError, match="a member is missing or unknown"):
        mqstore.Archive(tmp_path / "archive").files()


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
