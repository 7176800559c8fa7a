"""The requests and bytes that each verb needs for a store at a URL. A transport over a directory counts them."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore
from mqstore import _store
from mqstore._admin.directories import verified
from mqstore._read.scan import Scan, request_of
from remote_stores import Faulty, files_of

MIB = 1 << 20


class Counted(Faulty):
    """A transport that counts."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.requests = 0
        self.calls = 0
        self.bytes = 0
        self.read_files: set[str] = set()
        self.fault = self._count
        self._lock = threading.Lock()

    def _count(self, wanted: Any, found: bytes) -> bytes:
        with self._lock:
            self.requests += 1
            self.bytes += len(found)
            self.read_files.add(wanted[0])
        return found

    def read(self, ranges: Any) -> list[bytes]:
        """Counts the calls, whose ranges are fetched at the same time."""
        with self._lock:
            self.calls += 1
        return super().read(ranges)

    def taken(self) -> tuple[int, int]:
        """Returns requests and bytes since the last call."""
        found = self.requests, self.bytes
        self.requests = self.bytes = self.calls = 0
        return found


def rows(source: Any, **conditions: Any) -> Any:
    """Returns the rows of a scan as a table."""
    names = ("queue_id", "start", "end", "start_time", "end_time", "keys", "filter", "topics")
    request = {
        **dict.fromkeys(names),
        "columns": ["queue_offset"],
        "batch_size": 65_536,
        "body": "binary",
        "threads": 2,
    }
    return Scan(source, request_of(**{**request, **conditions})).to_arrow()


def scanned(transport: Counted, **conditions: Any) -> int:
    """Returns the number of rows of a scan."""
    return int(rows(transport.place(), **conditions).num_rows)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments of 32 MiB and four queues, whose files have the default length and are mostly empty."""
    home = tmp_path_factory.mktemp("requests") / "large"
    options = mqstore.StoreOptions(segment_size=32 * MIB, index_slots=100_000, index_entries=200_000)
    with mqstore.open(home, "create", options=options) as store:
        store.create_topic("orders", queues=4)
        for start in range(0, 52_000, 1000):
            keys = range(start, start + 1000)
            messages = [mqstore.Message(b"%08d" % key * 125, keys=f"k{key}") for key in keys]
            store.append_many("orders", messages, queue_id=start // 1000 % 4)
    assert len(files_of(home / "commitlog")) == 2
    return home


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hundred topics with 400 messages each, which alternate in the log."""
    home = tmp_path_factory.mktemp("requests") / "hundred"
    options = mqstore.StoreOptions(
        segment_size=16 * MIB, queue_file_entries=20_000, index_slots=100_000, index_entries=200_000
    )
    with mqstore.open(home, "create", options=options) as store:
        for topic in range(100):
            store.create_topic(f"t{topic}", queues=1)
        for _ in range(40):
            for topic in range(100):
                store.append_many(f"t{topic}", [mqstore.Message(bytes(1024), keys="k") for _ in range(10)])
    return home


def test_an_open_and_a_look_up(large: Path) -> None:
    transport = Counted(large)
    with _store.opened(transport.place(), "r", None, {}) as store:
        requests, read = transport.taken()
        # One request more lists the files.
        assert requests <= 39
        assert read <= 4 * MIB
        assert [message.body for message in store.lookup("orders", "k23456")] == [b"00023456" * 125]
        requests, read = transport.taken()
        assert requests <= 8
        assert read <= MIB
        assert next(store.read("orders", 2, 5000)).queue_offset == 5000
        requests, read = transport.taken()
        assert requests <= 8
        assert read <= MIB


def test_a_scan_reads_the_log_once_in_long_ranges(large: Path) -> None:
    transport = Counted(large)
    assert scanned(transport) == 52_000
    requests, read = transport.taken()
    with mqstore.open(large) as store:
        log = store.stats().log_max_offset
    assert read <= log + MIB
    # Three for each 24 MiB, and some for the open and the start of each segment.
    assert requests <= log / (8 * MIB) + 16


@pytest.mark.parametrize("long", [1000, 60_000, 90_000, 3 * MIB, 9 * MIB])
def test_a_scan_finds_records_across_the_ends_of_ranges(long: int, tmp_path: Path) -> None:
    """A scan fetches ranges of 8 MiB. Each of their ends is in or near a record of the given length."""
    home = tmp_path / "store"
    options = mqstore.StoreOptions(segment_size=32 * MIB, max_message_size=10 * MIB)
    with mqstore.open(home, "create", options=options) as store:
        store.create_topic("orders", queues=1)
        bodies: list[bytes] = []

        def append(size: int) -> int:
            bodies.append(b"%07d" % len(bodies) * (size // 7))
            found = store.append("orders", bodies[-1])
            return found.commit_log_offset + found.size

        end = 0
        for last in (8 * MIB, 16 * MIB, 24 * MIB):
            while end + long < last:
                end = append(max(7, min(70_000, (last - end - long) // 2)))
            for size in (7, long, 700):
                end = append(size)
            assert end > last
    columns = ["queue_offset", "commit_log_offset", "body"]
    found = rows(Counted(home).place(), columns=columns)
    assert found["body"].to_pylist() == bodies
    assert found == rows(str(home), columns=columns)


@pytest.mark.parametrize("which", ["large", "hundred"])
def test_a_verify_reads_each_file_once_in_long_ranges(which: str, request: pytest.FixtureRequest) -> None:
    home: Path = request.getfixturevalue(which)
    transport = Counted(home)
    assert verified(transport.place(), None)["ok"]
    files = [(home / name).stat().st_size for name in transport.read_files]
    assert transport.bytes <= 1.1 * sum(files)
    # A short file needs one request or two, and a long one a request for each 8 MiB.
    assert transport.requests <= 2 * len(files) + 1.1 * sum(files) / (8 * MIB)


def test_a_count_of_one_topic(hundred: Path) -> None:
    transport = Counted(hundred)
    with _store.opened(transport.place(), "r", None, {}) as store:
        # A queue is read when it is used. One request more lists the files.
        requests, read = transport.taken()
        assert requests <= 39
        assert read <= 4 * MIB
        assert store.count("t42") == 400
        requests, read = transport.taken()
        assert requests <= 2
        assert read <= 1.2 * 20 * 400 + 65_536
    assert scanned(transport, topics="t42") == 400


def test_the_end_of_a_queue_is_found_if_the_list_of_queues_is_old(tmp_path: Path) -> None:
    """`mqstore/queues` has the ends of the last close; a queue can end before or after them."""
    home = tmp_path / "store"
    options = mqstore.StoreOptions(segment_size=MIB, queue_file_entries=5000, index_slots=1000, index_entries=2000)
    ends: list[tuple[int, int]] = []
    listed: list[bytes] = []
    for count in (10, 900, 2000):
        with mqstore.open(home, "create" if not ends else "rw", options=options) as store:
            if not ends:
                store.create_topic("orders", queues=1)
            store.append_many("orders", [mqstore.Message(b"x" * 100) for _ in range(count)])
            queue = store.queues("orders")[0]
            ends.append((queue.min_offset, queue.max_offset))
        listed.append((home / "mqstore/queues").read_bytes())

    def bounds_of(place: Any) -> tuple[int, int]:
        with warnings.catch_warnings():
            # A queue that is not as listed is derived from the log.
            warnings.simplefilter("ignore", mqstore.StoreWarning)
            with _store.opened(place, "r", None, {}) as store:
                queue = store.queues("orders")[0]
                assert len(list(store.read("orders"))) == queue.max_offset - queue.min_offset
                return queue.min_offset, queue.max_offset

    for number in range(3):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(home, copy)
        (copy / "mqstore/queues").write_bytes(listed[number])
        assert bounds_of(Counted(copy).place()) == bounds_of(str(copy)) == ends[-1]
        # The units of the end are lost, and only the list knows them.
        file = min((copy / "consumequeue/orders/0").iterdir())
        content = bytearray(file.read_bytes())
        content[20 * 2500 :] = bytes(len(content) - 20 * 2500)
        file.write_bytes(content)
        assert bounds_of(Counted(copy).place()) == bounds_of(str(copy))


def test_all_queues_need_few_requests_whatever_the_order(hundred: Path) -> None:
    """The queues of a topic are read when it is used; a use of many topics reads more of them with each request."""
    with mqstore.open(hundred) as store:
        wanted = {topic: [queue.to_dict() for queue in store.queues(topic)] for topic in store.topics()}
    for topics in (sorted(wanted), sorted(wanted, reverse=True)):
        transport = Counted(hundred)
        with _store.opened(transport.place(), "r", None, {}) as store:
            transport.taken()
            counts = [store.count(topic) for topic in topics]
            assert counts == [400] * 100
            # In rounds of 1, 1, 2, 4, ... topics.
            assert transport.calls <= 20
            assert transport.requests <= 110
            assert {topic: [queue.to_dict() for queue in store.queues(topic)] for topic in topics} == wanted


def zeroed(path: Path, start: int, end: int | None = None) -> None:
    """Overwrites a part of a file with zeros."""
    content = bytearray(path.read_bytes())
    content[start:end] = bytes(len(content[start:end]))
    path.write_bytes(content)


def units_of(home: Path, topic: str = "t3") -> Path:
    """Returns the file of the units of a topic."""
    return min((home / "consumequeue" / topic / "0").iterdir())


DAMAGE: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "the last units of two queues": lambda home: [zeroed(units_of(home, topic), 20 * 3) for topic in ("t3", "t5")],
    "all units": lambda home: zeroed(units_of(home), 0),
    "the first unit": lambda home: zeroed(units_of(home), 0, 20),
    "a file": lambda home: units_of(home).unlink(),
    "the folder of a topic": lambda home: shutil.rmtree(home / "consumequeue/t3"),
    "all folders": lambda home: shutil.rmtree(home / "consumequeue"),
    "the manifest": lambda home: (home / "mqstore/queues").unlink(),
    "a queue that is not listed": lambda home: shutil.copytree(home / "consumequeue/t3/0", home / "consumequeue/t3/7"),
    "a topic that is not listed": lambda home: shutil.copytree(home / "consumequeue/t3", home / "consumequeue/other"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_found_when_a_queue_is_used(what: str, tmp_path: Path) -> None:
    """The queues at a URL are read when they are used. The results are those of a directory, whose open reads them."""
    home = tmp_path / "store"
    options = mqstore.StoreOptions(segment_size=MIB, queue_file_entries=5000, index_slots=1000, index_entries=2000)
    with mqstore.open(home, "create", options=options) as store:
        for topic in range(8):
            store.create_topic(f"t{topic}", queues=1)
            store.append_many(f"t{topic}", [mqstore.Message(b"%d" % topic * 100) for _ in range(10)])
        store.delete_topic("t7")
    DAMAGE[what](home)

    def answers_of(place: Any, first: str) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", mqstore.StoreWarning)
            with _store.opened(place, "r", None, {}) as store:
                begun = [message.body for message in store.read(first)]
                topics = store.topics()
                queues = {topic: [queue.to_dict() for queue in store.queues(topic)] for topic in topics}
                bodies = {topic: [message.body for message in store.read(topic)] for topic in topics}
                counts = {topic: store.count(topic) for topic in topics}
        shown = place if isinstance(place, str) else place.url
        notes = {str(warning.message).replace(shown, "") for warning in caught}
        return begun, topics, queues, bodies, counts, notes

    for first in ("t3", "t6"):
        assert answers_of(Counted(home).place(), first) == answers_of(str(home), first)
