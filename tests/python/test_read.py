"""read, get, get_at, offset_for_time, wait: ranges, filters, following, waiting."""

from __future__ import annotations

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import mqstore
import rocketmq_bytes as raw
from conftest import SMALL


def test_ranges(filled: Path) -> None:
    with mqstore.open(filled) as store:

        def offsets(*arguments: int | None) -> list[int]:
            return [message.queue_offset for message in store.read("orders", 1, *arguments)]

        assert offsets() == list(range(20))
        assert offsets(5) == list(range(5, 20))
        assert offsets(5, 8) == [5, 6, 7]
        assert offsets(None, 3) == [0, 1, 2]
        assert offsets(5, 5) == []
        assert offsets(20) == []
        assert offsets(18, 1000) == [18, 19]


@pytest.mark.parametrize("start", [-1, 21, 1 << 40, -(1 << 63)])
def test_start_out_of_range(filled: Path, start: int) -> None:
    with mqstore.open(filled) as store:
        with pytest.raises(mqstore.OffsetOutOfRangeError) as caught:
            store.read("orders", 1, start)
        error = caught.value
        assert (error.topic, error.queue_id, error.offset) == ("orders", 1, start)
        assert (error.min_offset, error.max_offset) == (0, 20)


def test_errors_come_from_the_call(filled: Path) -> None:
    with mqstore.open(filled) as store:
        with pytest.raises(mqstore.TopicNotFoundError):
            store.read("none")
        with pytest.raises(mqstore.TopicNotFoundError) as caught:
            store.read("orders", 7)
        assert caught.value.queue_id == 7
        with pytest.raises(TypeError):
            store.read("orders", filter=5)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            store.read("orders", 0, start=0.5)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            store.read("orders", 0, start=True)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("paid", list(range(20))),
        ("open", []),
        ("open || paid", list(range(20))),
        ("open||paid", list(range(20))),
        ("*", list(range(20))),
        ("", list(range(20))),
        ("nothing", []),
        ("pai", []),
    ],
)
def test_filter(filled: Path, expression: str, expected: list[int]) -> None:
    with mqstore.open(filled) as store:
        assert [message.queue_offset for message in store.read("orders", 1, filter=expression)] == expected


def test_filter_compares_text_and_not_hashes(store: mqstore.Store) -> None:
    # "Aa" and "BB" have the same hash in Java.
    store.append("t", b"x", tags="Aa")
    store.append("t", b"y", tags="BB")
    assert [message.body for message in store.read("t", filter="Aa")] == [b"x"]


def test_end_is_the_maximum_at_the_call(store: mqstore.Store) -> None:
    store.append_many("t", [b"a", b"b"])
    found = store.read("t")
    store.append("t", b"c")
    assert [message.body for message in found] == [b"a", b"b"]
    assert next(found, None) is None


def test_own_appends_are_read_at_once(store: mqstore.Store) -> None:
    for number in range(300):
        result = store.append("t", b"x", keys=f"k{number}")
        assert store.queues("t")[0].max_offset == number + 1
        assert [message.commit_log_offset for message in store.read("t", 0, number)] == [result.commit_log_offset]
        assert len(list(store.lookup("t", f"k{number}"))) == 1


def test_follow(store: mqstore.Store) -> None:
    store.append("t", b"0", tags="a")
    found = store.read("t", follow=True, timeout=10, filter="a")
    assert next(found).body == b"0"

    def later() -> None:
        time.sleep(0.05)
        store.append_many("t", [mqstore.Message(b"skipped", tags="b"), mqstore.Message(b"1", tags="a")])
        time.sleep(0.05)
        store.append("t", b"2", tags="a")

    thread = threading.Thread(target=later)
    thread.start()
    assert [next(found).body, next(found).body] == [b"1", b"2"]
    thread.join()


def test_follow_ends(store: mqstore.Store) -> None:
    store.append_many("t", [b"a", b"b", b"c"])
    started = time.monotonic()
    assert len(list(store.read("t", follow=True, timeout=0.15))) == 3
    assert 0.1 <= time.monotonic() - started < 2
    assert len(list(store.read("t", 0, 0, 2, follow=True))) == 2
    assert len(list(store.read("t", 0, 3, follow=True, timeout=timedelta(milliseconds=1)))) == 0


def test_follow_beside_the_writer(store: mqstore.Store, home: Path) -> None:
    store.append("t", b"0")
    with mqstore.open(home) as reader:
        found = reader.read("t", follow=True, timeout=10)
        assert next(found).body == b"0"
        store.append("t", b"1")
        assert next(found).body == b"1"


def test_iterator_serves_one_thread_at_a_time(store: mqstore.Store) -> None:
    store.append_many("t", [str(number).encode() for number in range(5000)])
    found = store.read("t")
    with ThreadPoolExecutor(4) as pool:
        parts = list(pool.map(lambda _: [message.queue_offset for message in found], range(4)))
    assert sorted(offset for part in parts for offset in part) == list(range(5000))
    assert all(part == sorted(part) for part in parts)


def test_get(filled: Path) -> None:
    with mqstore.open(filled) as store:
        message = next(store.read("orders", 1, 7))
        assert store.get(message.message_id) == message
        assert store.get(message.message_id.lower()) == message
        assert message.unique_id is not None
        assert store.get(message.unique_id) == message
        assert store.get_at(message.commit_log_offset) == message
        for unknown in ("", "nothing", "0" * 32, "F" * 32, "0" * 56, message.message_id[:-1] + "F", "ключ"):
            assert store.get(unknown) is None, unknown


def test_get_at_needs_the_start_of_a_record(filled: Path) -> None:
    with mqstore.open(filled) as store:
        for offset in (1, 5, 1 << 40):
            with pytest.raises((mqstore.CorruptionError, IndexError)):
                store.get_at(offset)
        with pytest.raises(ValueError, match="negative"):
            store.get_at(-1)
        with pytest.raises(TypeError):
            store.get_at("0")  # type: ignore[arg-type]


def test_offset_for_time(store: mqstore.Store) -> None:
    stamps = []
    for _ in range(10):
        stamps.append(store.append("t", b"x").store_timestamp)
        time.sleep(0.003)
    for number, stamp in enumerate(stamps):
        for boundary in ("lower", "upper"):
            assert store.offset_for_time("t", 0, stamp, boundary=boundary) == number
    moment = next(store.read("t", 0, 4)).store_time
    assert store.offset_for_time("t", 0, moment) == 4
    assert store.offset_for_time("t", 0, 0) == 0
    assert store.offset_for_time("t", 0, stamps[-1] + 1) == 10
    with pytest.raises(ValueError, match="boundary"):
        store.offset_for_time("t", 0, 0, boundary="middle")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="time zone"):
        store.offset_for_time("t", 0, datetime(2024, 1, 1))  # noqa: DTZ001
    with pytest.raises(mqstore.TopicNotFoundError):
        store.offset_for_time("none", 0, 0)


def test_wait(store: mqstore.Store) -> None:
    store.append("t", b"x")
    assert store.wait("t", 0, 0, timeout=0) is True
    started = time.monotonic()
    assert store.wait("t", 0, 1, timeout=0.12) is False
    assert 0.1 <= time.monotonic() - started < 2
    assert store.wait("t", 0, 1, timedelta(milliseconds=1)) is False
    threading.Timer(0.05, lambda: store.append("t", b"y")).start()
    assert store.wait("t", 0, 1, timeout=10) is True
    for wrong in (b"1", [], True):
        with pytest.raises(TypeError):
            store.wait("t", 0, 0, timeout=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["wait", "follow"])
def test_close_during_a_wait(store: mqstore.Store, how: str) -> None:
    store.append("t", b"x")
    closer = threading.Timer(0.1, store.close)
    closer.start()
    with pytest.raises(mqstore.StoreClosedError):
        if how == "wait":
            store.wait("t", 0, 1)
        else:
            list(store.read("t", follow=True))
    # Its directory is removed after the test.
    closer.join()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["wait", "follow", "queued"])
def test_ctrl_c_within_100_ms(store: mqstore.Store, how: str) -> None:
    store.append("t", b"x")
    # On a busy machine, a single try measures the scheduler. The best of three measures the store.
    assert min(answer_to_ctrl_c(store, how) for _ in range(3)) < 0.1


def answer_to_ctrl_c(store: mqstore.Store, how: str) -> float:
    """Seconds from the signal to the exception."""
    raised: list[float] = []

    def interrupt() -> None:
        time.sleep(0.15)
        raised.append(time.monotonic())
        signal.raise_signal(signal.SIGINT)

    found = store.read("t", follow=True, timeout=2)
    other = threading.Thread(target=lambda: list(found))
    if how == "queued":
        other.start()
        time.sleep(0.05)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        if how == "wait":
            store.wait("t", 0, 1)
        else:
            list(found)
    answered = time.monotonic()
    thread.join()
    if how == "queued":
        other.join()
    return answered - raised[0]


def test_queue_info(filled: Path) -> None:
    with mqstore.open(filled) as store:
        infos = store.queues("orders")
        assert [(info.queue_id, info.min_offset, info.max_offset, info.count) for info in infos] == [
            (0, 0, 20, 20),
            (1, 0, 20, 20),
        ]
        messages = list(store.read("orders", 0))
        assert infos[0].min_store_timestamp == messages[0].store_timestamp
        assert infos[0].max_store_timestamp == messages[-1].store_timestamp
        assert store.topics() == ["events", "orders"]


@pytest.mark.parametrize("number", [1 << 63, -(1 << 70)])
def test_numbers_beyond_64_bits(filled: Path, number: int) -> None:
    with mqstore.open(filled) as store:
        for call in (
            lambda: store.read("orders", 0, number),
            lambda: store.read("orders", 0, 0, number),
            lambda: store.read("orders", number),
            lambda: store.wait("orders", 0, number, timeout=0),
            lambda: store.get_at(number),
            lambda: store.offset_for_time("orders", 0, number),
            lambda: store.lookup("orders", "all", limit=number),
        ):
            with pytest.raises(ValueError, match=r"64 bits|too large|negative"):
                call()
        with pytest.raises(TypeError):
            store.read("orders", True)


def test_gaps_are_passed_over(home: Path) -> None:
    raw.write_log(home, [{"queue_offset": 0}, {"queue_offset": 5, "body": b"five"}])
    with pytest.warns(mqstore.StoreWarning), mqstore.open(home) as store:
        assert [message.queue_offset for message in store.read("t")] == [0, 5]
        assert [message.queue_offset for message in store.read("t", 0, 1)] == [5]
        assert [message.queue_offset for message in store.read("t", follow=True, timeout=0)] == [0, 5]
        assert store.queues("t")[0].count == 6


def test_path_is_given_back_as_it_came(tmp_path: Path) -> None:
    odd = str(tmp_path / "caf\udce9")
    with mqstore.open(odd, "create", options=SMALL) as store:
        store.append("t", b"x")
        assert store.path == odd
        assert store.verify().ok
    assert mqstore.info(odd).messages == 1
