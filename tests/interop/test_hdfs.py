"""Stores and results in HDFS: a real name node and data node, read and written by `hdfs-native`."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

import mqstore

from .driver import java_executable
from .java_build import JavaMissingError, build_hdfs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop

MIB = 1 << 20

FEW_ATTEMPTS = {"dfs.client.failover.max.attempts": "1", "ipc.client.connect.max.retries": "1"}
"""Otherwise, the library tries for minutes to reach a name node."""


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty HDFS."""
    pytest.importorskip("hdfs_native")
    try:
        program = ["-cp", build_hdfs(), "org.mqstore.hdfs.Main"]
    except JavaMissingError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("hdfs")
    command = [java_executable(), f"-Djava.io.tmpdir={folder}", *program, str(folder / "data")]
    with ExitStack() as ended:
        log = ended.enter_context((folder / "log").open("wb"))
        process = ended.enter_context(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder)
        )
        ended.callback(process.kill)
        assert process.stdout is not None
        port = process.stdout.readline().decode().strip()
        assert port.isdigit(), (folder / "log").read_text(errors="replace")[-4000:]
        yield f"hdfs://127.0.0.1:{port}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A closed store with 40 messages in "orders", and with more in "events"."""
    path = tmp_path / "store"
    sizes = {"segment_size": 8 * MIB, "queue_file_entries": 1000, "index_slots": 100, "index_entries": 1000}
    with mqstore.open(path, "create", default_queues=1, **sizes) as store:
        store.create_topic("orders", queues=2)
        for number in range(40):
            store.append("orders", b"%d" % number, queue_id=number % 2, keys=f"k{number}")
        for number in range(48):
            store.append("events", bytes([number]) * MIB)
    return path


def test_a_store_goes_to_hdfs_and_back(hdfs: str, home: Path, tmp_path: Path) -> None:
    url = f"{hdfs}/backups/a store"
    with mqstore.open(home) as store:
        store.snapshot(url)
    assert mqstore.verify(url).ok
    with mqstore.open(url) as store:
        assert [message.body for message in store.lookup("orders", "k7")] == [b"7"]
        assert len(list(store.read("orders", 0))) == 20
    mqstore.fetch(url, tmp_path / "fetched")
    assert mqstore.verify(tmp_path / "fetched").messages == 88
    with mqstore.open(home) as store, pytest.raises(mqstore.ResultExistsError):
        store.snapshot(url)


def test_a_plain_copy_is_read(hdfs: str, home: Path) -> None:
    from hdfs_native import Client, WriteOptions

    client = Client(hdfs)
    for path in home.rglob("*"):
        if path.is_file():
            with client.create(f"/plain/{path.relative_to(home)}") as file:
                file.write(path.read_bytes())
    url = f"{hdfs}/plain"
    with mqstore.open(url) as store:
        assert store.count("orders") == 40
        # If another program replaces a file, with the same length, no bytes of the new one are used.
        for segment in (home / "commitlog").iterdir():
            with client.create(f"/plain/commitlog/{segment.name}", WriteOptions(overwrite=True)) as file:
                file.write(segment.read_bytes())
        with pytest.raises(mqstore.StoreChangedError, match="replaced"):
            list(store.read("events", 0))


def test_one_of_two_writers_publishes(hdfs: str, home: Path) -> None:
    from mqstore._publish.target import target_of

    target = target_of(f"{hdfs}/race", None, "write")
    assert target is not None
    wins = [target.put_if_absent("_mqstore/manifest.json", content) for content in (b"first", b"second")]
    assert wins == [True, False]
    assert target.get("_mqstore/manifest.json") == b"first"
    assert target.get("_mqstore/missing") is None
    # Nothing else is left.
    assert [path for path, *_ in target.listed("_mqstore/")] == ["_mqstore/manifest.json"]
    target.delete(["_mqstore/manifest.json", "_mqstore/missing"])
    assert target.entries("") == ([], [])

    report = mqstore.export(home, f"{hdfs}/race", format="jsonl")
    assert report.messages == 88
    with pytest.raises(mqstore.ResultExistsError):
        mqstore.export(home, f"{hdfs}/race", format="parquet")


def test_what_the_user_may_not_write(hdfs: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    # fsspec would use the connection of the other user.
    options = {"skip_instance_cache": True}
    with pytest.raises(mqstore.StorePermissionError, match="access denied"):
        mqstore.export(home, f"{hdfs}/forbidden", format="jsonl", target_options=options)


def test_a_server_that_does_not_answer(home: Path) -> None:
    pytest.importorskip("hdfs_native")
    with pytest.raises(mqstore.StoreIOError, match=r"^hdfs://127\.0\.0\.1:1/out.*refused"):
        mqstore.export(home, "hdfs://127.0.0.1:1/out", format="jsonl", target_options=FEW_ATTEMPTS)
