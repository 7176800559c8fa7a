"""Stores at URLs: the answers are those of the directory, or a typed error; requests and secrets are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import damaged_stores
import mqstore
import mqstore.aio
from conftest import SMALL, Cli, python, tree_hash
from mqstore import _store
from mqstore._paths import is_url, shown_url
from remote_stores import (
    ACCESS_KEY,
    SECRET_KEY,
    Bucket,
    Faulty,
    Requests,
    answers,
    failing,
    in_memory,
)

pytest.importorskip("obstore")
pytest.importorskip("fsspec")

MIB = 1 << 20


def _deleted_and_delayed(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("table", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(200):
            store.append("gone" if number % 3 == 0 else "orders", b"%d" % number, keys=f"k{number}", tags="paid")
            store.append("table", b"value %d" % number, keys=f"key{number % 7}")
        store.append("orders", b"later", keys="later", delay=5 * 3600)
        store.delete_topic("gone")
        store.compact()
        store.append("table", b"newest", keys="key3")


STORES: dict[str, Callable[[Path], object]] = {
    "mqstore": damaged_stores.ours,
    "rocketmq": damaged_stores.unpacked,
    "compacted": _deleted_and_delayed,
}


@pytest.fixture(scope="module", params=list(STORES))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name: str = request.param
    home = tmp_path_factory.mktemp("golden") / name
    STORES[name](home)
    return name, home


@pytest.mark.parametrize(
    "kind", ["memory", "file", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("s3", "versitygw", "cache"))]
)
def test_the_answers_are_those_of_the_directory(
    golden: tuple[str, Path], kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    name, home = golden
    options: dict[str, Any] = {}
    if kind == "memory":
        url = in_memory(home, name)
    elif kind == "file":
        url = f"file://{home}"
    else:
        server: Bucket = request.getfixturevalue("versity" if kind == "versitygw" else "s3")
        url, options["storage_options"] = server.upload(home, name), server.options
    if kind == "cache":
        options |= {"cache": tmp_path / "cache", "cache_size": MIB}
    wanted = answers(home)
    # The second time, the cache has blocks.
    for _ in range(2 if kind == "cache" else 1):
        found = answers(url, **options)
        assert found.keys() == wanted.keys()
        for verb, answer in wanted.items():
            assert found[verb] == answer, verb


def test_exports_are_those_of_the_directory(golden: tuple[str, Path], tmp_path: Path) -> None:
    name, home = golden
    url = in_memory(home, name)
    for ending in ("jsonl", "parquet"):
        mqstore.export(home, tmp_path / f"a.{ending}")
        mqstore.export(url, tmp_path / f"b.{ending}")
        assert (tmp_path / f"a.{ending}").read_bytes() == (tmp_path / f"b.{ending}").read_bytes()
    reports = [
        mqstore.export(place, tmp_path / f"{number}", format="store") for number, place in enumerate((home, url))
    ]
    assert reports[0].messages == reports[1].messages > 0
    assert mqstore.scan(tmp_path / "0").to_arrow()["body"] == mqstore.scan(tmp_path / "1").to_arrow()["body"]


def test_libraries_read_a_scan_of_a_url(filled: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    url = in_memory(filled, "libraries")
    scan = mqstore.scan(url, topics="orders")
    assert scan.to_polars().height == 40
    assert scan.to_polars_lazy().filter(polars.col("queue_id") == 1).collect().height == 20
    with duckdb.connect() as connection:
        assert scan.to_duckdb(connection).count("*").fetchall() == [(40,)]
    table = scan.to_arrow()
    assert table.num_rows == 40
    # These read the stream in one call, perhaps with the interpreter, which the workers of the scan need.
    assert polars.DataFrame(scan).height == 40
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow.table(scan) == table
    # A stream that is dropped before its end stops its workers.
    stream = pyarrow.RecordBatchReader.from_stream(mqstore.scan(url, batch_size=1))
    stream.read_next_batch()
    del stream
    batches = iter(mqstore.scan(url, batch_size=1))
    next(batches)
    del batches
    assert mqstore.scan(filled, topics="orders").to_arrow() == table


@pytest.mark.soak
def test_the_command_line_reads_a_url(filled: Path, s3: Bucket, cli_process: Cli) -> None:
    import os

    url = s3.upload(filled, "command line")
    environment = {**os.environ, **s3.environment}
    key_of = json.loads(cli_process("cat", filled, "--topic", "orders", "--limit", 1, "--format", "jsonl").stdout)
    for verb in (
        ("info", "--format", "json"),
        ("topics", "--format", "json"),
        ("verify", "--format", "json"),
        ("cat", "--format", "jsonl"),
        ("cat", "--log", "--tags", "paid", "--format", "jsonl"),
        ("tail", "orders", "--format", "jsonl"),
        ("get", key_of["message_id"], "--format", "jsonl"),
        ("lookup", "orders", "k7", "--format", "jsonl"),
        ("group", "lag", "--format", "json"),
    ):
        at = 2 if verb[0] == "group" else 1
        local = cli_process(*verb[:at], filled, *verb[at:])
        remote = cli_process(*verb[:at], url, *verb[at:], env=environment)
        assert (remote.returncode, remote.stderr) == (local.returncode, local.stderr), verb
        if verb[0] != "info":
            assert remote.stdout == local.stdout, verb
    refused = cli_process("tail", url, "orders", "-f", env=environment)
    assert refused.returncode == 3
    assert "can only be read" in refused.stderr
    refused = cli_process("repair", url, "--in-place", "--yes", env=environment)
    assert refused.returncode == 3
    assert "copy it to a directory first" in refused.stderr


def test_asyncio_reads_a_url(filled: Path) -> None:
    url = in_memory(filled, "asyncio")

    async def run() -> int:
        async with mqstore.aio.open(url) as store:
            read = [message async for message in store.read("orders", 0)]
            assert len([message async for message in store.lookup("orders", "all")]) == 40
        assert (await mqstore.aio.verify(url)).ok
        return len(read)

    assert asyncio.run(run()) == 20


def test_what_writes_or_waits_refuses_a_url(filled: Path, tmp_path: Path) -> None:
    url = in_memory(filled, "refused")
    before = tree_hash(filled)
    with mqstore.open(url) as store:
        calls: list[Callable[[], object]] = [
            lambda: mqstore.open(url, "rw"),
            lambda: mqstore.open(url, "create"),
            lambda: mqstore.rebuild(url),
            lambda: mqstore.repair(url, in_place=True),
            lambda: mqstore.repair(url, output=tmp_path / "out"),
            lambda: mqstore.compact(url, in_place=True),
            lambda: mqstore.import_(url, tmp_path / "x.jsonl"),
            lambda: mqstore.restore_compaction(url, filled),
            lambda: store.snapshot(tmp_path / "snapshot"),
            lambda: store.read("orders", 0, follow=True),
            lambda: store.wait("orders"),
        ]
        (tmp_path / "x.jsonl").write_text("")
        for call in calls:
            with pytest.raises(mqstore.RemoteStoreError, match="can only be read; copy it to a directory first"):
                call()
        with pytest.raises(mqstore.StoreReadOnlyError):
            store.append("orders", b"x")
        assert repr(store) == f"<mqstore.Store {url!r} mode='r'>"
        assert not store.expire(dry_run=True).files
        assert store.stats().segments >= 1
    assert tree_hash(filled) == before
    with pytest.raises(mqstore.InvalidOptionError, match="only for a store at a URL"):
        mqstore.open(filled, storage_options={})


@pytest.mark.parametrize("url", ["memory://nothing/here", "s3://stores/nothing", "s3://no-such-bucket/store"])
def test_a_url_without_a_store_is_told(url: str, server: Bucket) -> None:
    options = server.options if url.startswith("s3") else None
    verbs: tuple[Callable[..., object], ...] = (mqstore.info, mqstore.verify, mqstore.open)
    for verb in verbs:
        with pytest.raises(mqstore.NotAStoreError) as told:
            verb(url, storage_options=options)
        assert told.value.path == url


def test_a_log_without_a_store_can_be_read(filled: Path) -> None:
    in_memory(filled, "alone")
    with pytest.warns(mqstore.StoreWarning, match="no queue files"):
        opened = mqstore.open("memory://alone/commitlog")
    with opened as store:
        assert sum(1 for _ in store._scan_log()) == 45


def test_a_changed_file_is_an_error(tmp_path: Path, server: Bucket) -> None:
    home = tmp_path / "large"
    with mqstore.open(home, "create", options=SMALL, segment_size=8 * MIB) as store:
        store.append_many("orders", [mqstore.Message(bytes(5000), keys="k") for _ in range(1000)], queue_id=0)
    segment = min((home / "commitlog").iterdir())
    whole = segment.read_bytes()
    for change, content in (("replaced", whole[::-1]), ("shorter", whole[:4096]), ("removed", None)):
        url = server.upload(home, change)
        with mqstore.open(url, storage_options=server.options) as store:
            name = f"{change}/commitlog/{segment.name}"
            if content is None:
                server.store.delete(name)
            else:
                server.put(name, content)
            with pytest.raises(mqstore.StoreChangedError, match="open the store again") as told:
                store.scan(topics="orders").to_arrow()
            assert told.value.path == f"{url}/commitlog/{segment.name}"
            # A store that has failed never answers with a part.
            for call in (store.topics, lambda: list(store.read("orders")), lambda: list(store.lookup("orders", "k"))):
                with pytest.raises(mqstore.StoreChangedError):
                    call()


@pytest.mark.parametrize(
    ("cause", "error"),
    [
        ("denied", mqstore.StorePermissionError),
        ("changed", mqstore.StoreChangedError),
        ("other", mqstore.StoreIOError),
    ],
)
def test_every_failed_request_is_an_error_and_never_a_part_of_the_answer(
    filled: Path, cause: str, error: type[Exception]
) -> None:
    """Whichever request fails, no verb returns an answer that differs from that of the directory."""
    transport = Faulty(filled)
    counted = 0

    def count(wanted: Any, found: bytes) -> bytes:
        nonlocal counted
        counted += 1
        return found

    def verbs(place: Any) -> Iterator[Callable[[], object]]:
        from mqstore._admin.directories import verified
        from mqstore._read.scan import Scan, request_of

        request = {
            **dict.fromkeys(("queue_id", "start", "end", "start_time", "end_time", "keys", "filter", "columns")),
            "topics": "orders",
            "batch_size": 1000,
            "body": "binary",
            "threads": 2,
        }
        yield lambda: mqstore._native.info(place())
        yield lambda: verified(place(), None)
        yield lambda: Scan(place(), request_of(**request)).to_arrow().to_pylist()

        def read() -> object:
            with _store.opened(place(), "r", None, {}) as store:
                found = [(m.queue_offset, m.body) for m in store.read("orders")]
                return found, store.topics(), [m.body for m in store.lookup("orders", "k9")]

        yield read

    for number in range(4):
        transport.fault = count
        counted = 0
        wanted = list(verbs(transport.place))[number]()
        for fails in range(counted):
            left = fails

            def fault(request: Any, found: bytes) -> bytes:
                nonlocal left
                left -= 1
                return failing(cause)(request, found) if left < 0 else found

            transport.fault = fault
            with contextlib.suppress(error):
                assert list(verbs(transport.place))[number]() == wanted, (number, fails)
                assert left >= 0, "the request failed"


def test_a_short_range_and_a_strange_exception_are_errors(filled: Path) -> None:
    transport = Faulty(filled)
    transport.fault = lambda _, found: found[:-1]
    with pytest.raises(mqstore.StoreChangedError, match="were requested and"):
        mqstore._native.info(transport.place())
    transport.fault = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
    with pytest.raises(mqstore.StoreIOError, match="ZeroDivisionError"):
        mqstore._native.info(transport.place())
    transport.list_fault = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        mqstore._native.info(transport.place())


def read_only(found: bytes) -> memoryview:
    """Returns a view of memory that can still change."""
    return memoryview(bytearray(found)).toreadonly()


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, read_only])
def test_a_transport_can_return_any_buffer(filled: Path, kind: Callable[[bytes], Any]) -> None:
    """Memory that can change is copied: this transport overwrites what it returned before."""
    returned: list[Any] = []

    class Reusing(Faulty):
        def read(self, ranges: list[Any]) -> list[Any]:
            for earlier in returned:
                owner = earlier.obj if isinstance(earlier, memoryview) else earlier
                if isinstance(owner, bytearray):
                    owner[:] = bytes(len(owner))
            found = [kind(part) for part in super().read(ranges)]
            returned.extend(found)
            return found

    with _store.opened(Reusing(filled).place(), "r", None, {}) as store, mqstore.open(filled) as local:
        for topic in local.topics():
            assert [m.body for m in store.read(topic)] == [m.body for m in local.read(topic)]
    assert len(returned) > 1


def test_wrong_credentials_are_a_permission_error(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import obstore.exceptions

    from mqstore._remote.object_store import ObjectStore

    store = ObjectStore("s3://b/x", "s3://b/x", {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY})
    for error, cause in (
        (obstore.exceptions.PermissionDeniedError("403"), "denied"),
        (obstore.exceptions.UnauthenticatedError("401"), "denied"),
        (obstore.exceptions.GenericError("Server returned non-2xx status code: 403 Forbidden: "), "denied"),
        (obstore.exceptions.PreconditionError("412"), "changed"),
        (obstore.exceptions.NotFoundError("404"), "changed"),
        (obstore.exceptions.GenericError(f"{SECRET_KEY} http://u:p@h/a?X-Amz-Signature=abc <Body>"), "other"),
    ):
        failure = store._failure(error, "commitlog/0")
        assert failure.cause == cause
        assert SECRET_KEY not in failure.reason
        assert "abc" not in failure.reason
        assert "u:p" not in failure.reason
        assert "Body" not in failure.reason


def test_versions_of_objects() -> None:
    from datetime import UTC, datetime

    from mqstore._remote.object_store import ObjectStore, _version

    def meta(tag: str | None, size: int = 5, second: int = 1) -> dict[str, Any]:
        return {"e_tag": tag, "size": size, "last_modified": datetime.fromtimestamp(second, UTC)}

    keys = {"access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}
    s3 = ObjectStore("s3://b/x", "s3://b/x", keys)
    azure = ObjectStore("az://b/x", "az://b/x", {"account_name": "a", "account_key": "a2V5"})
    google = ObjectStore("gs://b/x", "gs://b/x", {"skip_signature": True})
    for store in (s3, azure, google):
        assert store._is_version(_version(meta('"a"')), meta("a")), "with and without quotation marks"
        assert store._is_version(_version(meta(None)), meta("a")), "a list without tags"
        assert not store._is_version(_version(meta(None)), meta(None, second=2))
        assert not store._is_version(_version(meta("a")), meta("b", size=6))
    assert not s3._is_version(_version(meta("a")), meta("b"))
    # Google Cloud Storage can list another tag than a read returns.
    assert google._is_version(_version(meta("a")), meta("b"))


def test_secrets_are_in_no_text(filled: Path, s3: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    import fsspec

    url = in_memory(filled, "secret")
    with_password = url.replace("memory://", "memory://user:pa/ss:wo@rd@")
    assert shown_url("sftp://user:password@host:22/a/b?x=secret#y") == "sftp://host:22/a/b"
    assert shown_url("sftp://u:pa/ss@host/b") == "sftp://host/b"
    assert shown_url("s3://bucket/a@b/") == "s3://bucket/a@b"
    texts: list[str] = [caplog.text]
    for call in (
        lambda: mqstore.open("s3://bucket/x?secret=1"),
        lambda: mqstore.open("s3://key:secret@bucket/x"),
        lambda: mqstore.open("memory://x/y?secret=1"),
        lambda: mqstore.open("sftp://u:secret@127.0.0.1:1/x"),
        lambda: mqstore.open("s3://stores/x", storage_options={"secret_access_key": "secret", "nonsense": "secret"}),
        lambda: mqstore.open("s3://stores/x", "rw", storage_options={"secret_access_key": "secret"}),
    ):
        with pytest.raises((mqstore.MQStoreError, ImportError)) as told:
            call()
        texts += [str(told.value), repr(told.value), repr(told.value.__cause__)]
    with mqstore.open(s3.upload(filled, "secrets"), storage_options=s3.options) as store:
        scan = mqstore.scan("s3://stores/secrets", storage_options=s3.options)
        texts += [repr(store), store.path, repr(store._place), repr(scan), repr(store.scan()), str(store.stats())]
        with pytest.raises(TypeError) as unpicklable:
            pickle.dumps(scan)
        texts.append(str(unpicklable.value))
    texts.append(caplog.text)
    for text in texts:
        assert "secret=" not in text
        assert "secret" not in text.replace("secret_access_key", "").replace("secrets", "").replace("/secret", "")
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
    assert fsspec
    assert is_url("s3://x")
    assert not is_url("a/b://c")
    assert with_password


@pytest.mark.slow
def test_few_requests(tmp_path: Path, server: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The open of a closed store with many segments, a look-up and a read at an offset read only what they need."""
    home = tmp_path / "many"
    options = mqstore.StoreOptions(
        segment_size=MIB, queue_file_entries=1000, index_slots=100_000, index_entries=200_000, flush_interval=1
    )
    with mqstore.open(home, "create", options=options) as store:
        store.create_topic("orders", queues=4)
        for start in range(0, 40_000, 1000):
            messages = [
                mqstore.Message(b"%d" % number * 200, keys=f"k{number}") for number in range(start, start + 1000)
            ]
            store.append_many("orders", messages, queue_id=start // 1000 % 4)
    assert len(list((home / "commitlog").iterdir())) >= 40
    url = server.upload(home, "many")
    requests = Requests(monkeypatch)
    total = sum(path.stat().st_size for path in home.rglob("*") if path.is_file())
    with mqstore.open(url, storage_options=server.options) as store:
        count, read = requests.taken()
        assert count <= 40, count
        assert read <= 4 * MIB
        assert [m.body for m in store.lookup("orders", "k12345")] == [b"12345" * 200]
        count, read = requests.taken()
        assert count <= 8, count
        assert read <= MIB
        assert next(store.read("orders", 2, 5000)).body
        count, read = requests.taken()
        assert count <= 8, count
        assert read <= MIB
    assert mqstore.verify(url, storage_options=server.options).ok
    count, read = requests.taken()
    assert read <= 1.1 * total, (read, total)
    assert count <= 40 + total / MIB * 2
    assert mqstore.scan(url, columns=["queue_id"], storage_options=server.options).to_arrow().num_rows == 40_000
    count, read = requests.taken()
    log = 46 * MIB
    assert count <= 40 + log / MIB
    assert read <= 1.1 * log


def test_the_cache_is_bounded_and_saves_requests(
    tmp_path: Path, filled: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.upload(filled, "cached")
    cache = tmp_path / "cache"
    requests = Requests(monkeypatch)
    options: dict[str, Any] = {"storage_options": s3.options, "cache": cache, "cache_size": 16 * MIB}
    wanted = mqstore.scan(url, **options).to_arrow()
    assert requests.taken()[1] > 0
    assert mqstore.scan(url, **options).to_arrow() == wanted
    assert requests.taken() == (1, 0), "only the list"
    blocks = [path for path in cache.rglob("*") if path.is_file()]
    for path in blocks:
        path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert mqstore.scan(url, **options).to_arrow() == wanted, "damaged blocks are read again"
    for wrong in (0, MIB - 1, "1", True):
        with pytest.raises(mqstore.InvalidOptionError):
            mqstore.open(url, cache=cache, cache_size=wrong)  # type: ignore[arg-type]


def test_the_oldest_blocks_leave_the_cache(tmp_path: Path) -> None:
    from mqstore._remote.cache import Cached

    class Source:
        def files(self) -> list[Any]:
            return []

        def read(self, ranges: list[Any]) -> list[bytes]:
            return [bytes(length) for *_, length in ranges]

    cached = Cached(Source(), "x://y", str(tmp_path), MIB)
    for number in range(64):
        assert cached.read([("f", "v", number << 16, 1 << 16)]) == [bytes(1 << 16)]
        assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= MIB


@pytest.mark.parametrize("scheme", ["s3a", "S3N"])
def test_names_of_hadoop_for_s3(scheme: str, filled: Path, tmp_path: Path, s3: Bucket) -> None:
    options = s3.options
    s3.upload(filled, f"hadoop/{scheme}")
    url = f"{scheme}://stores/hadoop/{scheme}"
    with mqstore.open(url, storage_options=options) as store:
        assert store.path == f"s3://stores/hadoop/{scheme}"
    assert mqstore.verify(url, storage_options=options).ok
    pattern = mqstore.scan(f"{scheme}://stores/hadoop/{scheme}*", storage_options=options)
    assert pattern.to_arrow().num_rows == mqstore.scan(filled).to_arrow().num_rows
    target = f"{scheme}://stores/results-{scheme}"
    mqstore.export(filled, target, format="jsonl", target_options=options)
    assert mqstore.published(target, storage_options=options).urls[0].startswith("s3://stores/results-")
    assert mqstore.fetch(target, tmp_path / "fetched", storage_options=options).format == "jsonl"
    assert mqstore.clean(target, dry_run=True, storage_options=options).dry_run
    with mqstore.open(filled, "rw") as own:
        own.archive.configure(f"{scheme}://stores/cold-{scheme}", target_options=options)
        assert own.archive.run(target_options=options).target == f"s3://stores/cold-{scheme}"


@pytest.mark.parametrize("name", ["endpoint", "AWS_ENDPOINT_URL", None])
def test_an_endpoint_without_tls(name: str | None, filled: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint is enough, as an argument or in the environment."""
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    url = s3.upload(filled, f"plain-http-{name}")
    options = {key: value for key, value in s3.options.items() if key not in ("endpoint", "client_options")}
    if name is None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3.options["endpoint"])
    else:
        options[name] = s3.options["endpoint"]
    assert mqstore.verify(url, storage_options=options).ok
    with (
        pytest.raises(mqstore.StoreIOError),
        mqstore.open(url, storage_options={**options, "client_options": {"allow_http": False}}),
    ):
        raise AssertionError


@pytest.mark.parametrize(
    ("package", "url", "install"),
    [
        ("obstore", "s3a://bucket/a", '"mqstore[cloud]"'),
        ("fsspec", "memory://a", '"mqstore[cloud]"'),
        ("hdfs_native", "hdfs://host/a", '"mqstore[hdfs]"'),
        ("paramiko", "sftp://host/a", "paramiko"),
    ],
)
def test_a_missing_package(package: str, url: str, install: str) -> None:
    """The command line prints one line, and programs get an error of mqstore that is an ImportError too."""
    program = (
        "import sys; package, url = sys.argv[1:]; sys.modules[package] = None\n"
        "import mqstore; from mqstore.cli import run\n"
        "try: mqstore.open(url)\n"
        "except mqstore.MQStoreError as error: print(isinstance(error, ImportError), error.name, error.package)\n"
        "sys.exit(run(['info', url]))"
    )
    done = python(program, package, url)
    assert done.returncode == 3
    assert done.stdout.split() == ["True", package, package]
    assert done.stderr.endswith(f"{package} is not installed: run pip install {install}\n")
    assert done.stderr.count("\n") == 1
