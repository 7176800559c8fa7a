"""Servers that fail, and lists that are wrong: every answer is that of the directory, or a typed error."""

from __future__ import annotations

import shutil
import socket
import warnings
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL
from mqstore._remote import object_store
from mqstore._remote.failure import Row
from remote_stores import (
    ACCESS_KEY,
    BUCKET,
    SECRET_KEY,
    Bucket,
    Fault,
    Faulty,
    Requests,
    answers,
    files_of,
    needs_versitygw,
    versitygw_bucket,
)

pytest.importorskip("obstore")

MIB = 1 << 20
# A test should not wait for the repetitions.
IMPATIENT = {
    "max_retries": 1,
    "backoff": {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=1),
        "base": 2,
    },
}

Start = Callable[..., Any]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("failures") / "store"
    with mqstore.open(path, "create", options=SMALL, segment_size=MIB) as store:
        store.create_topic("orders", queues=2)
        messages = [mqstore.Message(b"%d" % number * 500, keys=f"k{number}") for number in range(800)]
        for queue in range(2):
            store.append_many("orders", messages, queue_id=queue)
    return path


@pytest.fixture(scope="module")
def url(stored: Path, s3: Bucket) -> str:
    return s3.upload(stored, "failing")


def status(code: int, name: str) -> Fault:
    """Answers like S3 with an error."""

    def answer(request: dict[str, Any], start: Start) -> Iterable[bytes]:
        start(f"{code} {name}", [("Content-Type", "application/xml")])
        return [f"<Error><Code>{name}</Code><Message>{SECRET_KEY}</Message></Error>".encode()]

    return answer


def headers_of(request: dict[str, Any]) -> tuple[dict[str, str], bytes]:
    """The headers and the body of a correct answer."""
    path = Path(request["test.file"])
    begin, end = map(int, request["HTTP_RANGE"].removeprefix("bytes=").split("-"))
    body, size = path.read_bytes()[begin : end + 1], path.stat().st_size
    headers = {
        "Content-Range": f"bytes {begin}-{min(end, size - 1)}/{size}",
        "ETag": request["HTTP_IF_MATCH"],
        "Last-Modified": "Thu, 26 Nov 2026 00:00:00 GMT",
    }
    return headers, body


def changed(change: Callable[[dict[str, str], bytes], tuple[str, dict[str, str], bytes]]) -> Fault:
    """Answers with other bytes than the requested ones."""

    def answer(request: dict[str, Any], start: Start) -> Iterable[bytes]:
        code, headers, body = change(*headers_of(request))
        start(code, [*headers.items(), ("Content-Length", str(len(body)))])
        return [body]

    return answer


def shorter(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str], bytes]:
    begin, _, rest = headers["Content-Range"].partition("-")
    end, _, size = rest.partition("/")
    return "206 Partial Content", {**headers, "Content-Range": f"{begin}-{int(end) - 1}/{size}"}, body[:-1]


def elsewhere(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str], bytes]:
    size = headers["Content-Range"].partition("/")[2]
    return "206 Partial Content", {**headers, "Content-Range": f"bytes 7-{6 + len(body)}/{size}"}, body


def without_range(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str], bytes]:
    return "200 OK", {name: value for name, value in headers.items() if name != "Content-Range"}, body


def empty(headers: dict[str, str], body: bytes) -> tuple[str, dict[str, str], bytes]:
    return "206 Partial Content", headers, b""


def reset(request: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Ends the connection in the middle of the body."""
    headers, body = headers_of(request)
    start("206 Partial Content", [*headers.items(), ("Content-Length", str(len(body)))])
    yield body[: len(body) // 2]
    request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)


def refused(request: dict[str, Any], start: Start) -> Iterable[bytes]:
    """Ends the connection before an answer."""
    request["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    return []


DENIED, FAILED, CHANGED = mqstore.StorePermissionError, mqstore.StoreIOError, mqstore.StoreChangedError

READS: dict[str, tuple[Fault, type[mqstore.MQStoreError]]] = {
    "400 expired credentials": (status(400, "ExpiredToken"), DENIED),
    "400 invalid token": (status(400, "InvalidToken"), DENIED),
    "401": (status(401, "Unauthorized"), DENIED),
    "403": (status(403, "AccessDenied"), DENIED),
    "403 archived": (status(403, "InvalidObjectState"), DENIED),
    "404": (status(404, "NoSuchKey"), CHANGED),
    "412": (status(412, "PreconditionFailed"), CHANGED),
    "416": (status(416, "InvalidRange"), CHANGED),
    "429": (status(429, "TooManyRequests"), FAILED),
    "500": (status(500, "InternalError"), FAILED),
    "503": (status(503, "SlowDown"), FAILED),
    "a shorter range": (changed(shorter), FAILED),
    "another range": (changed(elsewhere), FAILED),
    "no range": (changed(without_range), FAILED),
    "no bytes": (changed(empty), CHANGED),
    "a reset in the middle": (reset, FAILED),
    "a reset before the answer": (refused, FAILED),
}


@pytest.mark.parametrize("name", READS)
def test_a_failed_read_is_a_typed_error(name: str, stored: Path, url: str, s3: Bucket) -> None:
    fault, error = READS[name]
    options = {"storage_options": {**s3.options, "retry_config": IMPATIENT}}
    wanted = mqstore.scan(stored).to_arrow()
    count = 0

    def on_segments(request: dict[str, Any], start: Start) -> Iterable[bytes] | None:
        nonlocal count
        path = request["PATH_INFO"].removeprefix(f"/{BUCKET}/failing/")
        if request["REQUEST_METHOD"] != "GET" or not path.startswith("commitlog/"):
            return None
        count += 1
        # The first read of the log succeeds.
        return fault({**request, "test.file": str(stored / path)}, start) if count > 1 else None

    with mqstore.open(url, **options) as store:
        s3.fault = on_segments
        try:
            with pytest.raises(error) as told:
                store.scan().to_arrow()
        finally:
            s3.fault = None
        assert count > 1
        assert type(told.value) is error
        assert url in str(told.value)
        for text in (str(told.value), repr(told.value), repr(told.value.__cause__)):
            assert SECRET_KEY not in text
            assert ACCESS_KEY not in text
        with pytest.raises(error):
            list(store.read("orders"))
    assert mqstore.scan(url, **options).to_arrow() == wanted


LISTS: dict[str, tuple[Fault, type[mqstore.MQStoreError]]] = {
    "400 expired credentials": (status(400, "ExpiredToken"), DENIED),
    "403": (status(403, "AccessDenied"), DENIED),
    "404": (status(404, "NoSuchBucket"), mqstore.NotAStoreError),
    "429": (status(429, "TooManyRequests"), FAILED),
    "500": (status(500, "InternalError"), FAILED),
    "a reset in the middle": (reset, FAILED),
    "no XML": (changed(without_range), FAILED),
}


@pytest.mark.parametrize("name", LISTS)
def test_a_failed_list_is_a_typed_error(name: str, stored: Path, url: str, s3: Bucket) -> None:
    fault, error = LISTS[name]
    options = {"storage_options": {**s3.options, "retry_config": IMPATIENT}}

    def on_lists(request: dict[str, Any], start: Start) -> Iterable[bytes] | None:
        if "list-type=2" not in request["QUERY_STRING"]:
            return None
        filled = {"HTTP_RANGE": "bytes=0-9", "HTTP_IF_MATCH": '"x"', "test.file": str(files_of(stored)[0])}
        return fault({**request, **filled}, start)

    s3.fault = on_lists
    try:
        verbs: tuple[Callable[..., object], ...] = (mqstore.open, mqstore.info, mqstore.verify)
        for verb in verbs:
            with pytest.raises(error) as told:
                verb(url, **options)
            assert type(told.value) is error
            assert url in str(told.value)
            assert SECRET_KEY not in str(told.value) + repr(told.value)
    finally:
        s3.fault = None


def test_the_transport_repeats_a_failed_request(stored: Path, url: str, s3: Bucket) -> None:
    failed: set[str] = set()

    def once(request: dict[str, Any], start: Start) -> Iterable[bytes] | None:
        key = "{REQUEST_METHOD} {PATH_INFO} {QUERY_STRING}".format(**request) + request.get("HTTP_RANGE", "")
        if key in failed:
            return None
        failed.add(key)
        return status(503, "SlowDown")(request, start)

    s3.fault = once
    try:
        found = mqstore.scan(url, storage_options={**s3.options, "retry_config": IMPATIENT}).to_arrow()
    finally:
        s3.fault = None
    assert failed
    assert found == mqstore.scan(stored).to_arrow()


def test_wrong_keys_are_denied(stored: Path, tmp_path: Path) -> None:
    """A server that checks signatures."""
    needs_versitygw()
    with versitygw_bucket(tmp_path / "objects") as server:
        url = server.upload(stored, "store")
        for name in ("access_key_id", "secret_access_key"):
            wrong = {**server.options, name: "NOT" + server.options[name]}
            with pytest.raises(mqstore.StorePermissionError, match="check the credentials") as told:
                mqstore.open(url, storage_options=wrong)
            assert wrong[name] not in str(told.value) + repr(told.value)
        assert mqstore.verify(url, storage_options=server.options).ok


def test_the_permissions_of_the_documentation(filled: Path, tmp_path: Path) -> None:
    """`docs/bucket.md`: every verb that reads needs s3:ListBucket and s3:GetObject, and nothing else."""
    needs_versitygw()
    verbs: tuple[Callable[..., object], ...] = (mqstore.open, mqstore.info, mqstore.verify)
    with versitygw_bucket(tmp_path / "objects") as server:
        allowed_url, other_url = server.upload(filled, "allowed/store"), server.upload(filled, "other/store")
        options = {"storage_options": server.anonymous}
        server.allow("s3:ListBucket", "s3:GetObject", below="allowed/")
        assert answers(allowed_url, **options) == answers(filled)
        pattern = f"s3://{BUCKET}/allowed/*"
        assert mqstore.scan(pattern, columns=["body"], **options).to_arrow().num_rows == 45
        mqstore.export(allowed_url, tmp_path / "out.jsonl", **options)
        refused = [(other_url, ("s3:ListBucket", "s3:GetObject"))]
        refused += [(allowed_url, (action,)) for action in ("s3:ListBucket", "s3:GetObject")]
        for url, actions in refused:
            server.allow(*actions, below="allowed/")
            for verb in verbs:
                with pytest.raises(mqstore.StorePermissionError, match="permissions to list and read"):
                    verb(url, **options)


class Listed(Faulty):
    """A transport whose list can be wrong."""

    def __init__(self, home: Path, change: Callable[[list[Row]], list[Row]]) -> None:
        super().__init__(home)
        self._change = change

    def files(self) -> list[Row]:
        return self._change(super().files())


def outcome(place: Any) -> object:
    """The answer of a scan and a verify, or the type of the error."""
    from mqstore._admin.directories import verified
    from mqstore._read.scan import Scan, request_of

    request = {
        **dict.fromkeys(("queue_id", "start", "end", "start_time", "end_time", "keys", "filter", "columns", "topics")),
        "batch_size": 1000,
        "body": "binary",
        "threads": 1,
    }
    found: list[object] = []
    for call in (
        lambda: Scan(place, request_of(**request)).to_arrow().to_pylist(),
        lambda: [(problem["kind"], problem["offset"]) for problem in verified(place, None)["problems"]],
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mqstore.StoreWarning)
                found.append(call())
        except mqstore.MQStoreError as error:
            found.append(type(error))
    return found


def test_a_list_without_a_file_is_a_directory_without_it(filled: Path, tmp_path: Path) -> None:
    for path in files_of(filled):
        name = path.relative_to(filled).as_posix()
        copy = tmp_path / "copy"
        shutil.copytree(filled, copy)
        (copy / name).unlink()
        # A bucket has no empty folders.
        for folder in (copy / name).parents:
            if folder == copy or any(folder.iterdir()):
                break
            folder.rmdir()
        without = Listed(filled, lambda rows, name=name: [row for row in rows if row[0] != name])  # type: ignore[misc]
        assert outcome(without.place()) == outcome(str(copy)), name
        shutil.rmtree(copy)


def test_a_list_that_repeats_files_names_them_once(filled: Path) -> None:
    wanted = outcome(str(filled))
    assert outcome(Listed(filled, lambda rows: rows * 2).place()) == wanted
    assert outcome(Listed(filled, lambda rows: rows[::-1]).place()) == wanted


def test_a_list_with_a_wrong_length_is_an_error_or_a_found_problem(filled: Path) -> None:
    wanted = outcome(str(filled))
    for path in files_of(filled):
        name, size = path.relative_to(filled).as_posix(), path.stat().st_size
        if size == 0:
            continue

        def longer(rows: list[Row], name: str = name) -> list[Row]:
            return [(row[0], row[1] + 4096, *row[2:]) if row[0] == name else row for row in rows]

        # The answer has all messages, or the read of the bytes that do not exist is an error.
        found = outcome(Listed(filled, longer).place())
        assert isinstance(found, list)
        assert found[0] in (wanted[0], mqstore.StoreChangedError), name  # type: ignore[index]


@pytest.mark.slow
def test_a_bucket_with_many_other_objects(stored: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has the objects below the path only, not those with a similar name."""
    url = s3.upload(stored, "many/store")
    for number in range(100):
        for other in ("many/store-2", "many/storex", "many/a", "many/z"):
            s3.put(f"{other}/commitlog/{number:020}", b"x")
    s3.put("many/store.txt", b"x")
    requests = Requests(monkeypatch)
    with mqstore.open(url, storage_options=s3.options) as store:
        assert requests.lists == 1
        assert store.topics() == ["orders"]
        assert set(requests._listed) == {path.relative_to(stored).as_posix() for path in files_of(stored)}
    assert mqstore.scan(url, storage_options=s3.options).to_arrow() == mqstore.scan(stored).to_arrow()
    # A URL above the stores lists too much, and its list is bounded.
    monkeypatch.setattr(object_store, "_MOST_FILES", 100)
    with pytest.raises(mqstore.StoreIOError, match="give the URL of one store"):
        mqstore.open(f"s3://{BUCKET}/many", storage_options=s3.options)


@pytest.mark.parametrize("name", ["file", "commitlog", "00000000000000000000"])
def test_an_object_of_another_kind(name: str, s3: Bucket) -> None:
    """An object instead of the folder of a store, or instead of its folder `commitlog`, or no segment."""
    at = f"other-{name}" if name == "commitlog" else f"other/{name}"
    if name == "commitlog":
        s3.put(f"{at}/commitlog", b"x" * 5000)
    else:
        s3.put(at, b"x" * 5000)
    verbs: tuple[Callable[..., object], ...] = (mqstore.open, mqstore.info, mqstore.verify)
    for verb in verbs:
        with pytest.raises(mqstore.MQStoreError) as told:
            verb(f"s3://{BUCKET}/{at}", storage_options=s3.options)
        assert not isinstance(told.value, mqstore.StoreIOError)
        assert at in str(told.value)
