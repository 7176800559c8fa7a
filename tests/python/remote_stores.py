"""Stores at URLs for tests: two servers with the interface of S3, the memory of `fsspec`, and a transport with faults.

moto's server runs in this process, and a test can answer its requests instead (`Bucket.fault`). versitygw is a separate
program, which checks signatures.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import mqstore
from mqstore import _native
from mqstore._remote.failure import Range, RequestFailure, Row
from mqstore._remote.object_store import ObjectStore

BUCKET = "stores"
ACCESS_KEY = "AKIATESTACCESSKEY"
SECRET_KEY = "very/secret+key"


VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

Fault = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes] | None]
"""Answers a request as a WSGI application, or returns None: then the server answers."""


class Bucket:
    """A bucket of a server on this machine.

    Attributes:
        options: `storage_options` for it.
        environment: the same as environment variables.
        fault: answers requests before the server; only for moto's server.
    """

    def __init__(self, port: int) -> None:
        import obstore

        self.fault: Fault | None = None
        self._port = port
        with self.client() as client, suppress(client.exceptions.BucketAlreadyOwnedByYou):
            client.create_bucket(Bucket=BUCKET)
        self.options: dict[str, Any] = {
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

    def client(self) -> Any:
        """Returns a client of boto3, to close after use."""
        import boto3

        keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY, "region_name": "us-east-1"}
        return closing(boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self._port}", **keys))

    @property
    def anonymous(self) -> dict[str, Any]:
        """Options for requests without a signature, which may do what `allow` allows; only for versitygw."""
        return {
            "skip_signature": True,
            **{name: self.options[name] for name in ("endpoint", "region", "client_options")},
        }

    def allow(self, *actions: str, below: str = "") -> None:
        """Lets everyone do these actions, and nothing else, on the bucket and on the objects below a prefix."""
        of_bucket = f"arn:aws:s3:::{BUCKET}"
        rules = [
            {
                "Effect": "Allow",
                "Principal": "*",
                "Action": action,
                "Resource": of_bucket if action == "s3:ListBucket" else f"{of_bucket}/{below}*",
            }
            for action in actions
        ]
        with self.client() as client:
            policy = json.dumps({"Version": "2012-10-17", "Statement": rules})
            client.put_bucket_policy(Bucket=BUCKET, Policy=policy)

    def reset(self) -> None:
        """Removes all objects; only for moto's server."""
        self.fault = None
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/moto-api/reset", method="POST")
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200

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
    """Starts moto's server with an empty bucket."""
    import logging

    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    plain = DomainDispatcherApplication(create_backend_app)
    made: Bucket | None = None

    def answer(request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        faulty = made.fault(request, start) if made is not None and made.fault is not None else None
        return plain(request, start) if faulty is None else faulty

    server = make_server("127.0.0.1", 0, answer, threaded=True, request_handler=MotoRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        made = Bucket(server.server_address[1])
        yield made
    finally:
        # The servers of one process share their objects, and another module may use the same names.
        if made is not None:
            made.reset()
        server.shutdown()
        thread.join()
        server.server_close()


def versitygw() -> str | None:
    """Returns the path of the program versitygw; None if it is not installed."""
    return shutil.which("versitygw") or shutil.which(str(Path.home() / "go" / "bin" / "versitygw"))


def needs_versitygw() -> None:
    """Skips the test if versitygw is not installed. On a build machine with Go, the test fails, except if
    `MQSTORE_WITHOUT_VERSITYGW` says that it could not be installed."""
    if versitygw() is None:
        told = f"versitygw is not installed: go install {VERSITYGW}"
        is_expected = shutil.which("go") is not None and "MQSTORE_WITHOUT_VERSITYGW" not in os.environ
        if os.environ.get("CI") == "true" and is_expected:
            pytest.fail(told)
        pytest.skip(told)


@contextmanager
def versitygw_bucket(folder: Path) -> Iterator[Bucket]:
    """Starts versitygw with a bucket in a folder."""
    program = versitygw()
    assert program is not None
    folder.mkdir(exist_ok=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Not in extended attributes, which not every file system has.
    attributes = folder.with_name(f"attributes-of-{folder.name}")
    attributes.mkdir(exist_ok=True)
    command = [program, "--port", f"127.0.0.1:{port}", "--quiet", "--keep-alive"]
    command += ["posix", "--sidecar", str(attributes), str(folder)]
    keys = {"ROOT_ACCESS_KEY_ID": ACCESS_KEY, "ROOT_SECRET_ACCESS_KEY": SECRET_KEY}
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **keys}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(Path(log.name).read_text(errors="replace")) from None
                time.sleep(0.02)
        yield Bucket(port)
    finally:
        # A graceful end waits for idle connections.
        process.kill()
        process.wait()


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
    """Counts the requests to S3 and the bytes of the answers.

    Attributes:
        lists: list requests.
        reads: read requests.
        bytes: bytes of the answers of the read requests.
        files: bytes of each file that was read.
    """

    def __init__(self, monkeypatch: Any) -> None:
        self.lists = 0
        self.reads = 0
        self.bytes = 0
        self.files: dict[str, int] = {}
        self._listed: dict[str, int] = {}
        self._lock = threading.Lock()
        plain_list, plain_read = ObjectStore.files, ObjectStore._read

        def listed(source: ObjectStore) -> list[Row]:
            rows = plain_list(source)
            self.lists += max(1, -(-len(rows) // 1000))
            self._listed |= {path: size for path, size, *_ in rows}
            return rows

        def read(source: ObjectStore, wanted: Range) -> bytes:
            found = plain_read(source, wanted)
            with self._lock:
                self.reads += 1
                self.bytes += len(found)
                self.files[wanted[0]] = self._listed.get(wanted[0], 0)
            return found

        monkeypatch.setattr(ObjectStore, "files", listed)
        monkeypatch.setattr(ObjectStore, "_read", read)

    def taken(self) -> tuple[int, int]:
        """Returns the requests and the bytes since the last call."""
        found = self.lists + self.reads, self.bytes
        self.lists = self.reads = self.bytes = 0
        self.files = {}
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
    shown = str(place).rstrip("/")
    info["rocksdb_folders"] = [folder.replace(shown, "") for folder in info["rocksdb_folders"]]
    found["info"] = info
    verified = mqstore.verify(place, **options).to_dict()
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
