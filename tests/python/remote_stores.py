"""Stores at URLs for tests: a server with the interface of S3, the memory of `fsspec`, and a transport with faults."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mqstore
from mqstore import _native
from mqstore._remote.failure import Range, RequestFailure, Row
from mqstore._remote.object_store import ObjectStore

BUCKET = "stores"
ACCESS_KEY = "AKIATESTACCESSKEY"
SECRET_KEY = "very/secret+key"


class Bucket:
    """A bucket of a server on this machine."""

    def __init__(self, port: int) -> None:
        import obstore

        self.options = {
            "endpoint": f"http://127.0.0.1:{port}",
            "access_key_id": ACCESS_KEY,
            "secret_access_key": SECRET_KEY,
            "region": "us-east-1",
            "client_options": {"allow_http": True},
        }
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        self._put = obstore.put
        self.store = obstore.store.from_url(f"s3://{BUCKET}", **self.options)  # type: ignore[attr-defined]

    def upload(self, home: Path, name: str) -> str:
        """Copies a directory to the bucket. Returns its URL."""
        for path in files_of(home):
            self._put(self.store, f"{name}/{path.relative_to(home).as_posix()}", path)
        return f"s3://{BUCKET}/{name}"

    def put(self, name: str, content: bytes) -> None:
        """Replaces an object."""
        self._put(self.store, name, content)


@contextmanager
def bucket() -> Iterator[Bucket]:
    """Starts a server with an empty bucket."""
    import logging

    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        client.close()
        yield Bucket(port)
    finally:
        server.stop()


def files_of(home: Path) -> list[Path]:
    """Returns all files of a directory."""
    return sorted(Path(folder, name) for folder, _, names in os.walk(home) for name in names)


def in_memory(home: Path, name: str) -> str:
    """Copies a directory to the memory of `fsspec`. Returns its URL."""
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in files_of(home):
        memory.pipe_file(f"/{name}/{path.relative_to(home).as_posix()}", path.read_bytes())
    return f"memory://{name}"


class Requests:
    """Counts the requests to S3 and the bytes of the answers."""

    def __init__(self, monkeypatch: Any) -> None:
        self.lists = 0
        self.reads = 0
        self.bytes = 0
        self._lock = threading.Lock()
        plain_list, plain_read = ObjectStore.files, ObjectStore._read

        def listed(source: ObjectStore) -> list[Row]:
            rows = plain_list(source)
            self.lists += max(1, -(-len(rows) // 1000))
            return rows

        def read(source: ObjectStore, wanted: Range) -> bytes:
            found = plain_read(source, wanted)
            with self._lock:
                self.reads += 1
                self.bytes += len(found)
            return found

        monkeypatch.setattr(ObjectStore, "files", listed)
        monkeypatch.setattr(ObjectStore, "_read", read)

    def taken(self) -> tuple[int, int]:
        """Returns the requests and the bytes since the last call."""
        found = self.lists + self.reads, self.bytes
        self.lists = self.reads = self.bytes = 0
        return found


class Faulty:
    """A transport over a directory. `fault` gets each range, and can raise or return other bytes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.fault: Callable[[Range, bytes], bytes] | None = None
        self.list_fault: BaseException | None = None

    def files(self) -> list[Row]:
        if self.list_fault is not None:
            raise self.list_fault
        return [(path.relative_to(self.home).as_posix(), path.stat().st_size, 0, "v1") for path in files_of(self.home)]

    def read(self, ranges: list[Range]) -> list[bytes]:
        return [self._read(wanted) for wanted in ranges]

    def _read(self, wanted: Range) -> bytes:
        path, _, start, length = wanted
        with (self.home / path).open("rb") as file:
            file.seek(start)
            found = file.read(length)
        return found if self.fault is None else self.fault(wanted, found)

    def place(self, url: str = "fake://host/store") -> _native.RemoteDirectory:
        return _native.RemoteDirectory(url, self)


def failing(cause: Any, reason: str = "as the test wants") -> Callable[[Range, bytes], bytes]:
    """Returns a fault that fails every request."""

    def fault(wanted: Range, _: bytes) -> bytes:
        raise RequestFailure(cause, wanted[0], reason)

    return fault


def answers(place: Any, **options: Any) -> dict[str, Any]:
    """Returns the answers of all reading verbs, without those that name the place."""
    found: dict[str, Any] = {}
    info = mqstore.info(place, **options).to_dict()
    info["disk"] = [{**part, "disk_bytes": 0} for part in info["disk"]]
    found["info"] = info
    verified = mqstore.verify(place, **options).to_dict()
    shown = str(place).rstrip("/")
    for problem in verified["problems"]:
        problem["path"] = problem["path"].replace(shown, "")
    found["verify"] = {name: value for name, value in verified.items() if name not in ("path", "seconds")}
    found["scan"] = mqstore.scan(place, **options).to_arrow().to_pylist()
    with mqstore.open(place, **options) as store:
        found["topics"] = {topic: [queue.to_dict() for queue in store.queues(topic)] for topic in store.topics()}
        rows: list[Any] = []
        for topic in found["topics"]:
            messages = list(store.read(topic))
            found[f"read {topic}"] = [(m.queue_id, m.queue_offset, m.commit_log_offset, m.body) for m in messages]
            found[f"tail {topic}"] = [m.commit_log_offset for m in store.tail(topic, 3)]
            found[f"scan {topic}"] = (
                store.scan(topics=topic, columns=["commit_log_offset", "body"]).to_arrow().to_pylist()
            )
            for message in messages[::20]:
                keys = [key for key in message.keys if " " not in key]
                rows += [[m.commit_log_offset for m in store.lookup(topic, key)] for key in keys[:1]]
                got = store.get(message.message_id)
                rows.append(None if got is None else got.commit_log_offset)
        found["look-ups"] = rows
        if "table" in found["topics"]:
            found["table"] = {key: message.body for key, message in store.table("table").items()}
            assert len(found["table"]) == 7
        found["filter"] = {
            topic: [m.commit_log_offset for m in store.read(topic, filter="t1 || paid")] for topic in found["topics"]
        }
        found["verify of the open store"] = store.verify().ok
    return found
