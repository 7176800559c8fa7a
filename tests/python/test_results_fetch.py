"""Results at URLs: damage is found, and `fetch` resumes, refuses and restores what was published."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

import mqstore
from mqstore._admin.export import parts as export_parts
from mqstore._publish import fetch as fetching
from mqstore._publish.target import result_target
from mqstore._remote.manifest import NAME
from published_results import contents, memory, put

pytest.importorskip("obstore")
pytest.importorskip("fsspec")
pytest.importorskip("pyarrow")


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
    "a newer version": (True, lambda content: content.replace(b'"version": 2', b'"version": 3')),
    "another document": (True, lambda _: b"[]"),
    "a missing object": (False, lambda _: None),
    "a short object": (False, lambda content: content[:-1]),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_result_is_a_typed_error(filled: Path, name: str, empty_url: str, tmp_path: Path) -> None:
    mqstore.export(filled, empty_url, format="store")
    is_manifest, change = DAMAGES[name]
    victim = next(file for file in mqstore.published(empty_url).files if file.bytes > 100)
    assert b'"bytes": 1' in memory(empty_url)[NAME]
    path = NAME if is_manifest else victim.url.removeprefix(f"{empty_url}/")
    _damage(empty_url, path, change)
    count = len(memory(empty_url))
    for call in (lambda: mqstore.published(empty_url), lambda: mqstore.fetch(empty_url, tmp_path / "out")):
        with pytest.raises(mqstore.CorruptionError) as told:
            call()
        assert told.value.path == f"{empty_url}/{path}"
    with pytest.raises(mqstore.StoreIOError, match="manifest"):
        mqstore.open(empty_url)
    if is_manifest:
        for refused in (
            lambda: mqstore.clean(empty_url, older_than=0),
            lambda: mqstore.export(filled, empty_url, format="store"),
        ):
            with pytest.raises(mqstore.CorruptionError):
                refused()
    assert len(memory(empty_url)) == count
    assert not list(tmp_path.glob("out*"))


def test_other_bytes_are_never_fetched(filled: Path, empty_url: str, tmp_path: Path) -> None:
    mqstore.export(filled, empty_url, format="jsonl")
    _damage(
        empty_url,
        mqstore.published(empty_url).files[0].url.removeprefix(f"{empty_url}/"),
        lambda content: content[::-1],
    )
    with pytest.raises(mqstore.CorruptionError, match="does not match its digest"):
        mqstore.fetch(empty_url, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Fetch.


def test_a_fetch_resumes_and_refuses_what_is_there(
    large_store: Path, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mqstore.export(large_store, empty_url, format="store")
    monkeypatch.setattr(fetching, "_REQUESTS", 1)
    out = tmp_path / "out"

    class StopError(Exception):
        pass

    def stop(step: mqstore.Progress) -> None:
        if step.done > step.total // 2:
            raise StopError

    with pytest.raises(StopError):
        mqstore.fetch(empty_url, out, progress=stop)
    assert not out.exists()
    partial = tmp_path / "out.partial"
    (partial / "left over").write_bytes(b"")
    (partial / "link").symlink_to(tmp_path)
    complete = next(path for path in sorted(partial.rglob("*")) if path.is_file() and path.stat().st_size > 1000)
    with complete.open("r+b") as file:
        file.write(b"damage")
    steps: list[mqstore.Progress] = []
    out.mkdir()
    report = mqstore.fetch(empty_url, out, progress=steps.append)
    assert 0 < report.kept < report.files
    assert steps[-1].done == steps[-1].total
    assert not partial.exists()
    assert not (out / "left over").exists()
    assert not (out / "link").is_symlink()
    assert contents(out) == contents(large_store)
    (tmp_path / "file").write_bytes(b"")
    for taken in (out, tmp_path / "file"):
        with pytest.raises(FileExistsError, match="not empty"):
            mqstore.fetch(empty_url, taken)
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.fetch(f"{empty_url}/nothing", tmp_path / "nothing")
    (tmp_path / "other.mapping.jsonl").write_text("mine")
    with pytest.raises(FileExistsError, match="mapping"):
        mqstore.fetch(empty_url, tmp_path / "other")


def test_empty_folders_and_strange_names_survive(filled: Path, empty_url: str, tmp_path: Path) -> None:
    with mqstore.open(filled, "rw") as store:
        store.append("%RETRY%group", b"x")
        (filled / "mqstore" / "tmp").mkdir(exist_ok=True)
        store.snapshot(empty_url)
    assert mqstore.scan(empty_url, topics="%RETRY%group").to_arrow().num_rows == 1
    mqstore.fetch(empty_url, tmp_path / "out")
    assert (tmp_path / "out/consumequeue/%RETRY%group/0").is_dir()
    home = tmp_path / "home"
    (home / "empty/inner").mkdir(parents=True)
    (home / "a b#ü?%41").write_bytes(b"1\0\0")
    with result_target(f"{empty_url}2", None, "test").publication("store", None) as attempt:
        attempt.begin()
        attempt.add_directory(home, 4)
        attempt.commit("{}")
    mqstore.fetch(f"{empty_url}2", tmp_path / "again")
    assert (tmp_path / "again/empty/inner").is_dir()
    assert (tmp_path / "again/a b#ü?%41").read_bytes() == b"1\0\0"


def test_a_full_disk_is_a_typed_error(
    filled: Path, empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(export_parts, "write_part", fill)
        with pytest.raises(mqstore.DiskFullError, match="while preparing the result: free space on the disk, then"):
            mqstore.export(filled, empty_url, format="parquet")
    assert memory(empty_url) == {}
    mqstore.export(filled, empty_url, format="parquet")
    assert mqstore.fetch(empty_url, tmp_path / "out").files == 1


def test_a_link_to_a_folder_is_refused(empty_url: str, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/link").symlink_to(tmp_path)
    with (
        pytest.raises(mqstore.UnsupportedFormatError, match="symbolic link"),
        result_target(empty_url, None, "test").publication("store", None) as attempt,
    ):
        attempt.begin()
        attempt.add_directory(tmp_path / "home", 4)
    assert memory(empty_url) == {}


def test_another_process_reads_the_listed_versions(filled: Path, empty_url: str) -> None:
    """A task of a job reads the list of its driver, which names the objects."""
    from mqstore._remote.place import pinned

    with mqstore.open(filled) as store:
        store.snapshot(empty_url)
    first, kept = pinned(empty_url, {}, None)
    wanted = mqstore._native.verify(first, None)
    assert wanted["ok"]
    listing = kept.listing()
    second, _ = pinned(empty_url, {}, listing)
    assert mqstore._native.verify(second, None) == wanted
    victim = next(file for file in mqstore.published(empty_url).files if file.path.startswith("commitlog/"))
    put(empty_url, victim.url.removeprefix(f"{empty_url}/"), b"replaced")
    with pytest.raises(mqstore.StoreChangedError):
        mqstore._native.verify(pinned(empty_url, {}, listing)[0], None)
