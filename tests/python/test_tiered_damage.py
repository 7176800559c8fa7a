"""Damage of tiered stores: everything else is read, and each loss is reported."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import pytest

import mqstore
from tiered_stores import CODA, UNIT, Tier, convert
from tiered_stores import records as records_of_queues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Cli

    Way = Callable[[mqstore.Store, str, str], Iterator[tuple[int, bytes]]]

SHORT, LONG = "orders", f"%RETRY%{'g' * 130}"
"""The records of the long topic have two bytes for its length."""

MESSAGES = 9

OPTIONS = mqstore.StoreOptions(segment_size=1 << 20, queue_file_entries=64, index_slots=97, index_entries=400)


def flips(path: Path, first: int, end: int) -> Iterator[int]:
    """Changes one bit of each byte of a part of a file, one after the other, and gives the byte its value back."""
    intact = path.read_bytes()
    for at in range(first, end):
        try:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([intact[at] ^ 1 << at % 8]))
            yield at
        finally:
            path.write_bytes(intact)


def made(folder: Path, *, crc: bool = False, topics: tuple[str, ...] = (SHORT, LONG), count: int = MESSAGES) -> Path:
    """Makes a plain store with messages in queue 0 of some topics."""
    with mqstore.open(folder, "create", options=replace(OPTIONS, record_crc=crc)) as store:
        for topic in topics:
            store.create_topic(topic, queues=1)
            for number in range(count):
                store.append(topic, f"{number} of a queue".encode(), tags=f"t{number % 2}", keys=[f"k{number}"])
    return folder


FIELDS = (0, 4, 8, 12, 20, 28, 36, 84)
"""The first bytes of the size, magic, body checksum, queue, two offsets, flag, and length of the body."""


class Seen(NamedTuple):
    """The result of one way to read."""

    bodies: list[tuple[int, bytes]]
    told: int
    error: bool


def seen(read: Callable[[], Iterator[tuple[int, bytes]]]) -> Seen:
    """Returns the messages that a read gives, the number of its warnings, and whether it ended with an error."""
    found, error = [], False
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found.extend(read())
        except mqstore.CorruptionError:
            error = True
    return Seen(found, len(told), error)


@contextmanager
def opened(tier: Tier) -> Iterator[mqstore.Store]:
    """Opens a tiered store. Warnings of the open do not count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mqstore.open(tier.root) as store:
            yield store


def read(store: mqstore.Store, topic: str, on_damage: str, tag: str | None = None) -> Iterator[tuple[int, bytes]]:
    """Reads queue 0 of a topic."""
    for message in store.read(topic, 0, on_damage=on_damage, filter=tag):
        try:
            yield message.queue_offset, message.body
        except mqstore.CorruptionError:  # The flag of compression is set.
            yield message.queue_offset, b""


def scan(store: mqstore.Store, topic: str, on_damage: str) -> Iterator[tuple[int, bytes]]:
    """Scans the queues of a topic by the log."""
    columns = ["queue_offset", "body"]
    for row in store.scan(topics=topic, columns=columns, on_damage=on_damage).to_arrow().to_pylist():
        yield row["queue_offset"], row["body"]


@pytest.fixture(scope="module", params=[False, True], ids=["no checksum", "checksum"])
def tier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tier:
    home = tmp_path_factory.mktemp("damage")
    plain = made(home / "plain", crc=request.param)
    return convert(plain, Tier(home / "tier", log_bytes=1 << 10, units=4, coda=True))


WANTED = [(number, f"{number} of a queue".encode()) for number in range(MESSAGES)]


def record_starts(path: Path) -> list[int]:
    """Returns the positions of the records in a file of a log, and the end of the last one."""
    data, at, starts = path.read_bytes(), 0, []
    while len(data) - at > len(CODA):
        starts.append(at)
        at += int.from_bytes(data[at : at + 4])
    return [*starts, at]


def check(tier: Tier, topic: str, lost: int | None, place: str, ways: tuple[Way, ...] = (read,)) -> None:
    """Checks that only the message `lost` can be missing or changed, and that its loss is reported."""
    others = [one for one in WANTED if one[0] != lost]
    for way in ways:
        with opened(tier) as store:
            raised = seen(lambda way=way, store=store: way(store, topic, "raise"))
            skipped = seen(lambda way=way, store=store: way(store, topic, "skip"))
        assert [one for one in skipped.bodies if one[0] != lost] == others, (place, way)
        is_lost = len(skipped.bodies) < MESSAGES
        assert raised.error == is_lost, (place, way)
        assert not skipped.error, (place, way)
        assert skipped.told or not is_lost, (place, way)
        assert is_lost or skipped.bodies == WANTED or b"" in dict(skipped.bodies).values(), (place, way)
        if way is scan and is_lost:
            # With equal store times, any queue can be the last one of the log, whose damaged end is an incomplete one.
            kinds = {"record_damaged", "torn_tail"}
            found = [one.path for one in mqstore.verify(tier.root).problems if one.kind in kinds]
            assert [path.startswith(str(tier.folder / topic)) for path in found] == [True], (place, found)


@pytest.mark.parametrize("topic", [SHORT, LONG], ids=["short", "long"])
@pytest.mark.parametrize("which", ["first", "last"])
def test_each_byte_of_a_record_header(tier: Tier, topic: str, which: str) -> None:
    before, path, *_ = tier.files(topic, 0)
    starts = record_starts(path)
    number = 0 if which == "first" else len(starts) - 2
    lost = len(record_starts(before)) - 1 + number
    at, end = starts[number : number + 2]
    body = f"{lost} of a queue".encode()
    body_end = path.read_bytes().index(body, at, end) + len(body)
    topic_end = body_end + (1 if topic == SHORT else 2) + len(topic)
    # The header with the body, the length and the start of the topic; and the length of the properties.
    for place in chain(flips(path, at, body_end + 3), flips(path, topic_end, topic_end + 2)):
        check(tier, topic, lost, f"byte {place - at}", (read, scan) if place - at in FIELDS else (read,))


@pytest.mark.parametrize("which", [0, 2, 3], ids=["first", "middle", "last"])
def test_each_byte_of_a_unit(tier: Tier, which: int) -> None:
    path = tier.files(SHORT, 0, "CONSUME_QUEUE")[1]
    for place in flips(path, which * UNIT.size, (which + 1) * UNIT.size):
        check(tier, SHORT, None, f"byte {place}")
        with opened(tier) as store:
            # A damaged hash of the tags hides no message from a filter.
            for tag in ("t0", "t1"):
                found = list(read(store, SHORT, "raise", tag))
                assert found == [one for one in WANTED if f"t{one[0] % 2}" == tag], place
        problems = mqstore.verify(tier.root).problems
        assert {one.kind for one in problems} == {"queue_entry_wrong"}, (place, problems)
        assert {(one.path, one.offset) for one in problems} == {(str(path), which * UNIT.size)}, place


def test_each_byte_of_a_coda(tier: Tier) -> None:
    path = tier.files(SHORT, 0)[0]
    size = path.stat().st_size
    assert path.read_bytes().endswith(CODA)
    for place in flips(path, size - len(CODA), size):
        check(tier, SHORT, None, f"byte {place}")


@pytest.fixture
def many(tmp_path: Path) -> Tier:
    """A queue of 330 messages in one file of units and several files of the log."""
    plain = made(tmp_path / "plain", topics=(SHORT,), count=330)
    return convert(plain, Tier(tmp_path / "tier", units=400))


def test_a_wrong_unit_in_the_middle_hides_no_file_of_the_log(many: Tier) -> None:
    (path,) = many.files(SHORT, 0, "CONSUME_QUEUE")
    data = bytearray(path.read_bytes())
    data[165 * UNIT.size] ^= 0x80
    path.write_bytes(data)
    with opened(many) as store:
        assert [message.queue_offset for message in store.read(SHORT, 0)] == list(range(330))
        assert len(store.scan(columns=["queue_offset"]).to_arrow()) == 330
    (problem,) = mqstore.verify(many.root).problems
    assert (problem.kind, problem.path, problem.offset) == ("queue_entry_wrong", str(path), 165 * UNIT.size)


@pytest.mark.parametrize("how", ["zeroed", "garbage", "missing"])
def test_units_are_found_in_the_log(tmp_path: Path, how: str) -> None:
    plain = made(tmp_path / "plain", topics=(SHORT,), count=100)
    tier = convert(plain, Tier(tmp_path / "tier", log_bytes=4 << 10, units=40))
    _, path, _ = tier.files(SHORT, 0, "CONSUME_QUEUE")
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes((b"\0" if how == "zeroed" else b"x") * path.stat().st_size)
    with pytest.warns(mqstore.StoreWarning), mqstore.open(tier.root) as store:
        found = [(message.queue_offset, message.body) for message in store.read(SHORT, 0)]
        assert found == [(number, f"{number} of a queue".encode()) for number in range(100)]
        assert len(list(store.read(SHORT, 0, filter="t1"))) == 50
        assert store.message_at(SHORT, 0, 60).keys == ("k60",)
        assert len(list(store.read(SHORT, 0, 79))) == 21
    report = mqstore.verify(tier.root)
    kind = "tiered_file_gap" if how == "missing" else "queue_entry_wrong"
    assert ({one.kind for one in report.problems}, report.messages) == ({kind}, 100)


def test_a_queue_without_files_of_units(many: Tier) -> None:
    (path,) = many.files(SHORT, 0, "CONSUME_QUEUE")
    path.unlink()
    with pytest.warns(mqstore.StoreWarning) as told, mqstore.open(many.root) as store:
        assert "it has no file; the messages are found in the log" in str(told[0].message)
        assert [message.queue_offset for message in store.read(SHORT, 0)] == list(range(330))
    assert [one.kind for one in mqstore.verify(many.root).problems] == ["tiered_file_gap"]


def test_a_log_file_of_no_bytes_hides_no_queue(tmp_path: Path, cli: Cli) -> None:
    plain = made(tmp_path / "plain")
    tier = convert(plain, Tier(tmp_path / "tier", log_bytes=1 << 20))
    (path,) = tier.files(SHORT, 0)
    path.write_bytes(b"")
    says = r"orders/0/CONSUME_QUEUE: offsets 0 to 9 \(exclusive\) have units but no records"
    with pytest.warns(mqstore.StoreWarning, match=says):
        store = mqstore.open(tier.root)
    with store:
        assert store.topics() == sorted([SHORT, LONG])
        (queue,) = store.queues(SHORT)
        assert (queue.min_offset, queue.max_offset) == (MESSAGES, MESSAGES)
        assert len(list(store.read(LONG, 0))) == MESSAGES
    assert [one.kind for one in mqstore.verify(tier.root).problems] == ["tiered_entry_dangling"]
    assert cli("verify", tier.root).returncode == 1
    # No message is left.
    (path,) = tier.files(LONG, 0)
    path.write_bytes(b"")
    with pytest.raises(mqstore.NotAStoreError, match=r"without a message; .*offsets 0 to 9 \(exclusive\)"):
        mqstore.open(tier.root)


def test_a_damaged_body_is_never_valid_again(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", crc=True, topics=(SHORT,))
    tier = convert(plain, Tier(tmp_path / "tier"))
    path = tier.files(SHORT, 0)[0]
    path.write_bytes(path.read_bytes().replace(b"4 of a queue", b"4 of a Queue"))
    with mqstore.open(tier.root) as store:
        with pytest.raises(mqstore.CorruptionError) as error:
            list(store.read(SHORT, 0))
        assert error.value.path == str(path)
        assert store.get_at(store.message_at(SHORT, 0, 3).commit_log_offset).body == b"3 of a queue"
        with pytest.warns(mqstore.StoreWarning, match="skipped message 4 of queue orders/0"):
            assert len(list(store.read(SHORT, 0, on_damage="skip"))) == MESSAGES - 1
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        report = mqstore.export(tier.root, tmp_path / "copy", format="store", on_damage="skip")
    assert report.messages == MESSAGES - 1
    assert any(path.name in str(one.message) for one in told)
    with mqstore.open(tmp_path / "copy") as copy:
        assert b"4 of a Queue" not in [message.body for message in copy.read(SHORT)]


def test_records_that_were_copied_again_count_once(tmp_path: Path) -> None:
    plain = made(tmp_path / "plain", topics=(SHORT,))
    (records,) = records_of_queues(plain).values()
    # The units of the records 4 and 5 were not committed before a crash.
    tier = Tier(tmp_path / "tier", log_bytes=1 << 20)
    tier.write([*records[:6], *records[4:]])
    (path,) = tier.files(SHORT, 0, "CONSUME_QUEUE")
    data = path.read_bytes()
    path.write_bytes(data[: 4 * UNIT.size] + data[6 * UNIT.size :])
    with opened(tier) as store:
        assert list(read(store, SHORT, "raise")) == WANTED
        assert sorted(scan(store, SHORT, "raise")) == WANTED
    report = mqstore.verify(tier.root)
    assert (report.problems, report.messages) == ((), MESSAGES)


def test_warnings_name_files_that_exist(tier: Tier) -> None:
    path = tier.files(SHORT, 0)[1]
    for _ in flips(path, 0, 2):
        for way in (read, scan):
            with opened(tier) as store, warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                list(way(store, SHORT, "skip"))
            texts = [str(one.message) for one in told]
            assert texts
            assert all(str(tier.folder) in text and "/commitlog/" not in text for text in texts), texts
