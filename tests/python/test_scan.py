"""`scan`: every column, both plans, push-downs, order, threads, damage, and libraries that read the result."""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
import rocketmq_bytes as rmq
from conftest import SMALL
from scan_rows import NAMES, in_log, mixed_store, offsets, rows

pa = pytest.importorskip("pyarrow")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def expected(message: mqstore.StoredMessage) -> dict[str, Any]:
    """The expected row of a message."""
    row = {name: getattr(message, name) for name in NAMES if name != "body_size"}
    row["keys"] = list(message.keys)
    row["properties"] = list(message.properties.items())
    for name in ("born_timestamp", "store_timestamp"):
        row[name] = EPOCH + timedelta(milliseconds=row[name])
    row["body_size"] = len(message.body)
    return {name: row[name] for name in NAMES}


KINDS: list[dict[str, object]] = [
    {"body": b"plain"},
    {"body": b""},
    {"topic": "größe%RETRY", "body": "päckchen".encode()},
    {"topic": "x" * 200, "queue_id": 7, "queue_offset": 3},
    {"properties": rmq.properties(KEYS="a b  c", TAGS="T", UNIQ_KEY="U1", own="ü")},
    {"properties": rmq.properties(**{f"name{n}": f"value{n}" for n in range(500)})},
    # A name twice: the later value counts, at the place of the first. An entry that is not UTF-8 does not count.
    {"properties": rmq.properties(a="1", b="2") + b"a\x013\x02c\x01\xff\x02b\x014"},
    {"properties": b"KEYS\x01\xff\x02TAGS\x01\xfe\x02UNIQ_KEY\x01\xfd\x02"},
    {"properties": b"novalue\x02\x01noname\x02last\x01unended"},
    {"host": ("2001:db8::1", 70000), "flag": -5, "reconsume": 16, "prepared": 99},
    {"host": ("::1", -1), "flag": -(1 << 31), "reconsume": -1, "prepared": -(1 << 63)},
    {"queue_id": -1, "queue_offset": -7, "born": -1, "stored": -86_400_000},
    {"body": rmq.zlib_body(b"z" * 5000), "sys_flag": rmq.COMPRESSED | rmq.ZLIB},
    {"body": rmq.lz4_body(b"l" * 500), "sys_flag": rmq.COMPRESSED | rmq.LZ4},
    {"body": rmq.zstd_body(b"s" * 200), "sys_flag": rmq.COMPRESSED | rmq.ZSTD},
    {"sys_flag": 4, "body": b"half"},
    {"sys_flag": 12, "body": b"rolled back"},
]


@pytest.fixture
def kinds(tmp_path: Path) -> Path:
    """A foreign log with a message of each kind, twice."""
    rmq.write_log(tmp_path / "kinds", KINDS + KINDS, segment_size=128 << 10)
    return tmp_path / "kinds"


def plans(path: Path, **request: Any) -> Iterator[mqstore.Scan]:
    """The same scan with each of its plans."""
    scan = mqstore.scan(path, **request)
    for plan in ("log", "queues"):
        for threads in (1, 3):
            yield scan._narrowed(plan=plan, threads=threads)


def test_every_column_is_the_message(kinds: Path) -> None:
    messages = in_log(kinds)
    assert len(messages) == 2 * len(KINDS)
    for threads in (1, 2, 8):
        assert rows(mqstore.scan(kinds, threads=threads)) == [expected(message) for message in messages]
    for name in NAMES:
        assert rows(mqstore.scan(kinds, columns=[name])) == [{name: expected(one)[name]} for one in messages]


def test_columns_in_the_order_asked_for(kinds: Path) -> None:
    scan = mqstore.scan(kinds, columns=["tags", "body", "queue_id"])
    assert scan.schema.names == ["tags", "body", "queue_id"] == scan.to_arrow().schema.names
    none = mqstore.scan(kinds, columns=[]).to_arrow()
    assert none.num_rows == 2 * len(KINDS)
    assert none.num_columns == 0


def test_the_schema_is_the_documented_one(kinds: Path) -> None:
    time_type, text = pa.timestamp("us", tz="UTC"), pa.string()
    kinds_of = {
        **dict.fromkeys(["topic", "message_id", "unique_id", "tags", "born_host", "store_host"], text),
        **dict.fromkeys(
            ["queue_id", "size", "flag", "sys_flag", "reconsume_times", "body_crc", "body_size"], pa.int32()
        ),
        **dict.fromkeys(["queue_offset", "commit_log_offset", "prepared_transaction_offset"], pa.int64()),
        **dict.fromkeys(["born_timestamp", "store_timestamp"], time_type),
        "keys": pa.list_(text),
        "properties": pa.map_(text, text),
        "body": pa.binary(),
    }
    schema = mqstore.scan(kinds).schema
    assert schema == pa.schema([(name, kinds_of[name]) for name in NAMES])
    page = (Path(__file__).parents[2] / "docs" / "arrow.md").read_text().partition("### Columns")[2].partition("###")[0]
    table = [line.split("|")[1:3] for line in page.splitlines() if line.startswith("| `")]
    documented = {name.strip(" `"): kind.strip() for names, kind in table for name in names.split(",")}
    assert list(documented) == NAMES
    assert documented == {name: str(kinds_of[name]).replace("string", "utf8") for name in NAMES}


def test_bodies_as_text_and_json(tmp_path: Path) -> None:
    bodies = [b"text", "ü".encode(), b"\xff", b"", b'{"a": [1, 2]}', b"3", b"{", b"1 2", b'"\xff"']
    packed = {"body": rmq.zlib_body(b"[true]"), "sys_flag": rmq.COMPRESSED | rmq.ZLIB}
    broken = {"body": b"no zlib", "sys_flag": rmq.COMPRESSED | rmq.ZLIB}
    rmq.write_log(tmp_path, [*({"body": body} for body in bodies), packed, broken])

    def column(form: Any) -> list[object]:
        scan = mqstore.scan(tmp_path, columns=["body"], body=form)
        assert scan.schema.field("body").type == (pa.binary() if form == "binary" else pa.string())
        return [row["body"] for row in rows(scan)]

    assert column("binary") == [*bodies, b"[true]", None]
    assert column("text") == ["text", "ü", None, "", '{"a": [1, 2]}', "3", "{", "1 2", None, "[true]", None]
    assert column("json") == [None, None, None, None, '{"a": [1, 2]}', "3", None, None, None, "[true]", None]
    sizes = [row["body_size"] for row in rows(mqstore.scan(tmp_path, columns=["body_size"]))]
    assert sizes == [*map(len, bodies), 6, None]


def test_a_time_beyond_microseconds_is_null(tmp_path: Path) -> None:
    rmq.write_log(tmp_path, [{"born": 1 << 62}, {"born": -(1 << 63)}, {"born": 5}])
    born = mqstore.scan(tmp_path, columns=["born_timestamp"]).to_arrow()["born_timestamp"]
    assert born.cast(pa.int64()).to_pylist() == [None, None, 5000]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_store(tmp_path_factory.mktemp("mixed") / "store")


REQUESTS: list[dict[str, Any]] = [
    {"topics": ["orders"]},
    {"topics": "t1"},
    {"topics": ["t1", "t2", "t1"]},
    {"topics": ["orders"], "queue_id": 1},
    {"topics": ["orders"], "queue_id": 2, "start": 10, "end": 20},
    {"topics": ["orders"], "start": 50},
    {"topics": ["orders"], "start": 10_000},
    {"topics": ["orders"], "end": -3},
    # Two tags with the same hash.
    {"topics": ["orders"], "filter": "AaAa"},
    {"topics": ["orders", "t3"], "filter": "paid || BBBB"},
    {"topics": ["orders"], "keys": ["mod3", "k17"]},
    {"topics": []},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_both_plans_give_the_same_rows(mixed: Path, request_: dict[str, Any]) -> None:
    names = request_["topics"]
    names = [names] if isinstance(names, str) else names
    tags = request_.get("filter")
    wanted = [
        message.commit_log_offset
        for message in in_log(mixed)
        if message.topic in names
        and request_.get("queue_id") in (None, message.queue_id)
        and request_.get("start", 0) <= message.queue_offset < request_.get("end", 1 << 40)
        and (tags is None or message.tags in tags.split(" || "))
        and ("keys" not in request_ or set(request_["keys"]) & set(message.keys))
    ]
    for scan in plans(mixed, **request_):
        assert offsets(scan) == wanted
        for batch_size in (1, 7):
            assert offsets(scan._narrowed(batch_size=batch_size)) == wanted


def test_few_entries_are_followed_and_many_are_not(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", options=SMALL) as store:
        for number in range(2000):
            store.append("many", bytes(500))
            if number % 500 == 0:
                store.append("few", b"x")
        for opened in (store, None):
            scan = mqstore.scan(tmp_path / "s", topics="few") if opened is None else opened.scan(topics="few")
            stream = scan._open()
            assert stream.follows_entries
            stream.close()
            assert len(offsets(scan)) == 4
        stream = store.scan(topics="many")._open()
        assert not stream.follows_entries
        stream.close()


def test_times(mixed: Path) -> None:
    messages = in_log(mixed)
    times = sorted({message.store_timestamp for message in messages})
    assert len(times) > 3
    points = [times[0] - 1, times[0], times[len(times) // 2], times[-1], times[-1] + 1]
    for start in (None, *points):
        for end in (None, *points):
            wanted = [
                one.commit_log_offset
                for one in messages
                if (start is None or one.store_timestamp >= start) and (end is None or one.store_timestamp < end)
            ]
            assert offsets(mqstore.scan(mixed, start_time=start, end_time=end)) == wanted
    when = EPOCH + timedelta(milliseconds=points[2])
    assert offsets(mqstore.scan(mixed, start_time=when)) == offsets(mqstore.scan(mixed, start_time=points[2]))


def test_times_of_many_segments(tmp_path: Path) -> None:
    """Segments completely before or after the times are not read. A clock that moves back a little hides nothing."""
    hour, size = 3_600_000, 4096
    log = tmp_path / "commitlog"
    log.mkdir()
    stored: list[tuple[int, int]] = []
    for segment in range(20):
        content = b""
        for number in range(5):
            when = segment * hour + number * 1000 - (300_000 if number == 3 else 0)
            offset = segment * size + len(content)
            stored.append((offset, when))
            content += rmq.record(offset, stored=when, body=bytes(300))
        rest = size - len(content)
        content += rest.to_bytes(4, "big") + rmq.MAGIC_BLANK.to_bytes(4, "big")
        (log / f"{segment * size:020d}").write_bytes(content.ljust(size, b"\0"))
    for start, end in [
        (5 * hour, 7 * hour),
        (0, 1),
        (19 * hour, None),
        (None, 3 * hour),
        (8 * hour - 300_000, 8 * hour),
    ]:
        wanted = [at for at, when in stored if (start is None or when >= start) and (end is None or when < end)]
        scan = mqstore.scan(tmp_path, start_time=start, end_time=end)
        assert offsets(scan) == wanted
        stream = scan._open()
        assert stream.limit - stream.start <= (len({at // size for at in wanted}) + 2) * size or None in (start, end)
        stream.close()


def test_order_does_not_depend_on_threads(mixed: Path) -> None:
    one = mqstore.scan(mixed, threads=1).to_arrow()
    for threads in range(2, 9):
        assert mqstore.scan(mixed, threads=threads).to_arrow().equals(one)
        assert mqstore.scan(mixed, threads=threads, batch_size=3).to_arrow().equals(one)


@pytest.mark.slow
def test_the_push_downs_are_filters(mixed: Path) -> None:
    hypothesis = pytest.importorskip("hypothesis")
    given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies
    messages = in_log(mixed)
    times = sorted({message.store_timestamp for message in messages})

    @settings(max_examples=60, deadline=None, database=None)
    @given(
        topics=st.none() | st.lists(st.sampled_from(["orders", "t0", "t1", "t2", "t6"]), unique=True, max_size=4),
        keys=st.none() | st.lists(st.sampled_from([f"mod{n}" for n in range(10)] + ["k5", "none"]), min_size=1),
        tags=st.none() | st.sampled_from(["paid", "paid || open", "AaAa", "nobody", "*"]),
        start=st.none() | st.sampled_from(times),
        end=st.none() | st.sampled_from(times),
        plan=st.sampled_from([None, "log", "queues"]),
        threads=st.integers(1, 4),
        batch_size=st.integers(1, 500),
    )
    def check(**drawn: Any) -> None:
        topics, keys, tags, start, end = (drawn[name] for name in ("topics", "keys", "tags", "start", "end"))
        plan = drawn["plan"] if topics is not None else None
        scan = mqstore.scan(
            mixed,
            topics=topics,
            keys=keys,
            filter=tags,
            start_time=start,
            end_time=end,
            threads=drawn["threads"],
            batch_size=drawn["batch_size"],
            columns=["commit_log_offset"],
        )._narrowed(plan=plan)
        wanted = [
            one.commit_log_offset
            for one in messages
            if (topics is None or one.topic in topics)
            and (keys is None or set(keys) & {*one.keys, one.unique_id})
            and (tags in (None, "*") or one.tags in tags.split(" || "))
            and (start is None or one.store_timestamp >= start)
            and (end is None or one.store_timestamp < end)
        ]
        assert offsets(scan) == wanted

    check()


def test_batches_are_bounded(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create") as store:
        for _ in range(30):
            store.append("t", bytes(3 << 20))
            store.append("t", b"small")
    for threads in (1, 2):
        batches = list(mqstore.scan(tmp_path / "s", threads=threads))
        assert sum(batch.num_rows for batch in batches) == 60
        assert all(sum(batch["body_size"].to_pylist()) <= 32 << 20 for batch in batches)
    assert {batch.num_rows for batch in mqstore.scan(tmp_path / "s", batch_size=1)} == {1}


@pytest.mark.parametrize("threads", [1, 2])
def test_memory_of_dropped_batches_is_used_again_and_of_kept_ones_is_not(tmp_path: Path, threads: int) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create") as store:
        store.append_many("orders", [mqstore.Message(b"%08d" % n * 8192) for n in range(256)])

    def places(batches: list[Any]) -> list[int]:
        return [batch.column("body").buffers()[2].address for batch in batches]

    scan = mqstore.scan(path, columns=["body"], batch_size=16, threads=threads)
    dropped = [place for batch in scan for place in places([batch])]
    assert len(set(dropped)) < len(dropped)
    kept = list(scan)
    assert len(set(places(kept))) == len(kept) == len(dropped)
    bodies = [body for batch in kept for body in batch.column("body").to_pylist()]
    assert bodies == [b"%08d" % n * 8192 for n in range(256)]


def test_bodies_that_unpack_to_much_are_bounded_too(tmp_path: Path) -> None:
    body = rmq.zlib_body(bytes(20 << 20))
    rmq.write_log(
        tmp_path, [{"body": body, "sys_flag": rmq.COMPRESSED | rmq.ZLIB} for _ in range(6)], segment_size=1 << 20
    )
    for threads in (1, 4):
        assert [batch.num_rows for batch in mqstore.scan(tmp_path, threads=threads)] == [1] * 6


def test_it_can_be_read_again_and_sees_more_then(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("t", b"1")
        outside, inside = mqstore.scan(home), store.scan(topics="t")
        assert len(rows(outside)) == len(rows(inside)) == 1
        store.append("t", b"2")
        for _ in range(2):
            assert [row["body"] for row in rows(outside)] == [b"1", b"2"]
            assert pa.table(inside)["body"].to_pylist() == [b"1", b"2"]
    with pytest.raises(mqstore.StoreClosedError):
        rows(inside)
    assert len(rows(outside)) == 2


def workers() -> int:
    names = [task / "comm" for task in Path("/proc/self/task").iterdir()]
    return sum(name.read_text().startswith("mq-scan") for name in names if name.exists())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_thread_stays_behind(mixed: Path) -> None:
    before = threading.active_count()
    scan = mqstore.scan(mixed, threads=4, batch_size=1)
    batches = iter(scan)
    next(batches)
    assert workers() > 0
    del batches
    gc.collect()
    assert workers() == 0
    capsule = scan.__arrow_c_stream__()
    # A new thread gets its name a moment after its start.
    deadline = time.monotonic() + 30
    while workers() == 0:
        assert time.monotonic() < deadline
    del capsule
    assert workers() == 0
    reader = pa.RecordBatchReader.from_stream(scan)
    reader.read_next_batch()
    del reader
    gc.collect()
    assert workers() == 0
    assert threading.active_count() == before


def test_beside_a_writer(home: Path) -> None:
    """A scan returns a prefix of the appended messages, and all messages that existed when it began."""
    with mqstore.open(home, "create", options=SMALL) as store:
        # A scan of a topic needs the topic, and the thread may start late.
        store.create_topic("t")
        done = threading.Event()

        def append() -> None:
            number = 0
            while not done.is_set():
                store.append("t", number.to_bytes(8, "big"))
                number += 1
                time.sleep(0.0005)

        writer = threading.Thread(target=append)
        writer.start()
        try:
            for _ in range(20):
                for scan in (store.scan(), mqstore.scan(home), store.scan(topics="t")):
                    least = store.queues("t")[0].max_offset if store.topics() else 0
                    found = [int.from_bytes(row["body"], "big") for row in rows(scan)]
                    assert found == list(range(len(found)))
                    assert len(found) >= least
        finally:
            done.set()
            writer.join()


def test_a_store_closed_meanwhile(filled: Path) -> None:
    store = mqstore.open(filled)
    batches = iter(store.scan(threads=1, batch_size=1))
    next(batches)
    store.close()
    with pytest.raises(mqstore.StoreClosedError):
        for _ in store.scan() if store.closed else ():
            pass
    batches.close()


def test_damage_is_passed_over_and_said_once(mixed: Path, tmp_path: Path) -> None:
    import shutil

    home = tmp_path / "damaged"
    shutil.copytree(mixed, home)
    messages = in_log(home)
    orders = [message for message in messages if message.topic == "orders"]
    victim = orders[len(orders) // 2]
    size = SMALL.segment_size
    path = home / "commitlog" / f"{victim.commit_log_offset // size * size:020d}"
    with path.open("r+b") as file:
        file.seek(victim.commit_log_offset % size + 60)
        file.write(b"\xff" * 4)
    left = [one.commit_log_offset for one in messages if one.commit_log_offset != victim.commit_log_offset]
    for threads in (1, 3):
        with pytest.warns(mqstore.StoreWarning, match="skipped") as said:
            assert offsets(mqstore.scan(home, threads=threads, on_damage="skip")) == left
        assert len([one for one in said if "skipped" in str(one.message)]) == 1
    wanted = [one.commit_log_offset for one in orders if one.commit_log_offset != victim.commit_log_offset]
    for scan in plans(home, topics=["orders"], on_damage="skip"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mqstore.StoreWarning)
            assert offsets(scan) == wanted
    with pytest.warns(mqstore.StoreWarning, match="skipped"):
        assert pa.table(mqstore.scan(home, on_damage="skip")).num_rows == len(left)


def test_lost_and_damaged_queues_do_not_matter(mixed: Path, tmp_path: Path) -> None:
    import shutil

    wanted = offsets(mqstore.scan(mixed, topics=["orders"]))
    bare = tmp_path / "bare"
    (bare / "commitlog").mkdir(parents=True)
    for segment in (mixed / "commitlog").iterdir():
        shutil.copy(segment, bare / "commitlog")
    spoilt = tmp_path / "spoilt"
    shutil.copytree(mixed, spoilt)
    for file in (spoilt / "consumequeue" / "orders" / "1").iterdir():
        content = bytearray(file.read_bytes())
        content[200:208] = (64).to_bytes(8, "big")
        file.write_bytes(content)
    for home in (bare, spoilt):
        for scan in plans(home, topics=["orders"]):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mqstore.StoreWarning)
                assert offsets(scan) == wanted


def test_a_torn_tail_ends_the_log(tmp_path: Path) -> None:
    places = rmq.write_log(tmp_path, [{"body": bytes(100)}] * 3)
    path = tmp_path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as file:
        file.seek(places[2] + 50)
        file.write(bytes(4000))
    with pytest.warns(mqstore.StoreWarning, match="the log ends there"):
        assert offsets(mqstore.scan(tmp_path)) == places[:2]


def test_an_empty_store(home: Path) -> None:
    mqstore.open(home, "create", options=SMALL).close()
    scan = mqstore.scan(home)
    assert list(scan) == []
    assert scan.to_arrow().schema == scan.schema
    assert pa.table(scan).num_rows == 0


def test_what_is_wrong_is_said(filled: Path, tmp_path: Path) -> None:
    bad: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"columns": ["nope"]}, mqstore.InvalidOptionError, "there is no column"),
        ({"columns": ["body", "body"]}, mqstore.InvalidOptionError, "twice"),
        ({"columns": "body"}, TypeError, "iterable"),
        ({"body": "xml"}, mqstore.InvalidOptionError, "xml"),
        ({"topics": [1]}, TypeError, "topics"),
        ({"keys": b"k"}, TypeError, "keys"),
        ({"start": 1}, ValueError, "one topic"),
        ({"end": 1, "topics": ["a", "b"]}, ValueError, "one topic"),
        ({"queue_id": 1}, ValueError, "topics"),
        ({"queue_id": True, "topics": "t"}, TypeError, "int"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"threads": 65}, ValueError, "threads"),
        ({"start_time": datetime(2026, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001
        ({"filter": 3}, TypeError, "filter"),
    ]
    for arguments, kind, text in bad:
        with pytest.raises(kind, match=text):
            mqstore.scan(filled, **arguments)
    with pytest.raises(mqstore.TopicNotFoundError):
        rows(mqstore.scan(filled, topics="nope"))
    with pytest.raises(mqstore.TopicNotFoundError):
        rows(mqstore.scan(filled, topics="orders", queue_id=9))
    with pytest.raises(mqstore.NotAStoreError):
        rows(mqstore.scan(tmp_path / "nothing"))
    assert repr(str(filled)) in repr(mqstore.scan(filled, topics="orders"))
