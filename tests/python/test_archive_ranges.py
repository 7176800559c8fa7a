"""How many requests and bytes of an archive a read needs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mqstore
from archived_stores import KEEPING, parquet_files
from mqstore import _native
from mqstore._archive import place as archive_place
from mqstore._archive.archive import _SIZES as SIZES
from mqstore._publish import place as places
from python_folders import Directory, with_directories

pyarrow = pytest.importorskip("pyarrow")

MIB = 1 << 20


class Counted:
    """Counts the requests and bytes of reads of an archive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[str, int]] = []
        plain = Directory.read

        def read(target: Directory, ranges: Any) -> Any:
            found = plain(target, ranges)
            self.requests += [(wanted[0], len(part)) for wanted, part in zip(ranges, found, strict=True)]
            return found

        monkeypatch.setattr(Directory, "read", read)
        monkeypatch.setattr(places, "_transport_of", with_directories(places._transport_of))

    def taken(self) -> tuple[int, int]:
        """Returns requests and bytes since the last call."""
        found = len(self.requests), sum(length for _, length in self.requests)
        self.requests.clear()
        return found


def large(home: Path, count: int, seed: int, segment: int) -> int:
    """Makes a store with messages of about 1 KB in 4 queues, mostly in its archive. Returns their number."""
    words = [f"{random.Random(number).getrandbits(40):x}" for number in range(400)]
    chance = random.Random(seed)
    options = mqstore.StoreOptions(segment_size=segment, index_slots=100_000, index_entries=2_000_000)
    with mqstore.open(home, "create", options=options, retention_bytes=1, durability="async") as store:
        store.create_topic("orders", queues=4)
        # First, so that retention keeps what the archive does not have yet.
        store.archive.configure(f"{home}.cold")
        for start in range(0, count, 1000):
            bodies = [
                json.dumps({"id": number, "text": " ".join(chance.choices(words, k=85))}).encode()
                for number in range(start, start + 1000)
            ]
            keys = [f"order-{number}" for number in range(start, start + 1000)]
            store.append_batch("orders", bodies, keys, "paid", queue_id=start // 1000 % 4)
        store.flush()
        report = store.archive.run()
        store.expire()
    return report.records


def random_reads(home: Path, counted: Counted, seed: int, reads: int) -> tuple[list[tuple[int, int]], int]:
    """Reads single messages. Returns requests and bytes of each read, and the largest of the first look-ups."""
    chance = random.Random(seed)
    costs = []
    with mqstore.open(home) as store:
        limits = [(queue.queue_id, queue.min_offset) for queue in store.queues("orders")]
        _native.read_archive_footers(store)
        for _ in range(reads):
            queue_id, low = chance.choice(limits)
            offset = chance.randrange(low)
            # Only footers and page indexes stay in memory.
            _native.forget_archive_columns(store)
            counted.taken()
            message = next(iter(store.read("orders", queue_id, offset)))
            costs.append(counted.taken())
            assert (message.queue_id, message.queue_offset) == (queue_id, offset)
            number = offset // 1000 * 4000 + queue_id * 1000 + offset % 1000
            assert message.keys == (f"order-{number}",)
            assert message.json()["id"] == number
        counted.taken()
        found = list(store.lookup("orders", "order-17"))
        assert [message.json()["id"] for message in found] == [17]
        return costs, counted.taken()[1]


@pytest.mark.parametrize(
    ("count", "segment", "reads"),
    [(24_000, 4 * MIB, 200), pytest.param(1_500_000, 256 * MIB, 1000, marks=pytest.mark.soak)],
)
def test_a_random_read_needs_three_ranges(
    count: int, segment: int, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = large(tmp_path / "store", count, 1, segment)
    assert records > count / 2
    counted = Counted(monkeypatch)
    costs, of_lookup = random_reads(tmp_path / "store", counted, 2, reads)
    print(
        f"\n{records:,} records, requests {max(one for one, _ in costs)}, bytes: mean "
        f"{sum(size for _, size in costs) / len(costs):,.0f}, most {max(size for _, size in costs):,}"
    )
    assert max(requests for requests, _ in costs) <= 3
    assert max(size for _, size in costs) <= 200 << 10
    assert of_lookup <= max(4 * MIB, sum(path.stat().st_size for path in (tmp_path / "store.cold").rglob("*")) // 8)


def test_incompressible_and_large_bodies_need_little_more_than_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    options = replace(KEEPING, segment_size=8 * MIB, queue_file_entries=20_000)
    for size in (1000, 10_000, 300_000):
        home = tmp_path / f"store-{size}"
        with mqstore.open(home, "create", options=options) as store:
            store.create_topic("orders", queues=1)
            for _ in range(24 * MIB // size):
                store.append("orders", chance.randbytes(size))
            store.archive.configure(f"{home}.cold")
            store.archive.run()
            store.expire()
            _native.read_archive_footers(store)
            counted = Counted(monkeypatch)
            for offset in range(0, store.queues("orders")[0].min_offset, 7):
                _native.forget_archive_columns(store)
                counted.taken()
                assert store.message_at("orders", 0, offset) is not None
                requests, read = counted.taken()
                assert requests <= 3
                assert read <= (200 << 10) + (size if size > 100_000 else 0)


def test_a_key_is_found_by_bloom_filters(
    homes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "range_bytes", 20_000)
    whole, short = homes
    with mqstore.open(whole) as store:
        report = store.archive.run_to(tmp_path / "small")
    assert report.bloom_filters
    counted = Counted(monkeypatch)
    with mqstore.open(short, archive=tmp_path / "small") as store:
        assert not list(store.lookup("orders", "absent"))
        files = len(mqstore.Archive(tmp_path / "small").files("orders"))
        assert files >= 5
        # The footer, and the filters of each file.
        counted.taken()
        without_requests = 0
        for number in range(20):
            assert not list(store.lookup("orders", f"absent {number}"))
            without_requests += counted.taken() == (0, 0)
        # A filter can answer yes for a wrong key, and unique ids differ in each run.
        assert without_requests >= 10
        assert len(list(store.lookup("orders", "k201"))) == 1
        assert counted.taken()[0] <= 5


def filter_bytes(path: str) -> int:
    """Returns the bytes of the Bloom filters of a file."""
    import pyarrow.parquet as parquet

    metadata = parquet.read_metadata(path)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return sum(group.column(number).bloom_filter_length or 0 for group in groups for number in range(group.num_columns))


def test_bloom_filters_that_do_not_all_fit_stay_in_part(
    homes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "range_bytes", 20_000)
    whole, short = homes
    with mqstore.open(whole) as store:
        store.archive.run_to(tmp_path / "small")
    counted = Counted(monkeypatch)
    with mqstore.open(short, archive=tmp_path / "small") as store:
        assert not list(store.lookup("orders", "absent"))
    held = sum(filter_bytes(path) for path in mqstore.Archive(tmp_path / "small").paths("orders"))
    monkeypatch.setattr(archive_place, "_BLOOM_BYTES", held // 2)
    with mqstore.open(short, archive=tmp_path / "small") as store:
        assert not list(store.lookup("orders", "absent"))
        _, first = counted.taken()
        for key in ("not there", "nor this"):
            assert not list(store.lookup("orders", key))
            # About half of the filters, no footer, and perhaps the columns of a group whose filter is wrong.
            requests, read = counted.taken()
            assert 0 < requests <= len(mqstore.Archive(tmp_path / "small").files("orders")) // 2 + 3
            assert read < first // 2
        assert len(list(store.lookup("orders", "k201"))) == 1


def test_the_layout_of_a_file(homes: tuple[Path, Path], tmp_path: Path) -> None:
    """The columns that each read needs are neighbours, and their field ids are those of the first version."""
    import pyarrow.parquet as parquet

    [path] = parquet_files(tmp_path / "cold")
    schema = parquet.read_schema(path)
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert [name for name, _ in sorted(ids.items(), key=lambda one: one[1])] == [
        "topic", "queue_id", "queue_offset", "commit_log_offset", "size", "store_timestamp", "born_timestamp",
        "unique_id", "keys", "tags", "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset",
        "born_host", "store_host", "body_crc", "magic", "properties_raw", "body", "raw",
    ]  # fmt: skip
    assert schema.names[-5:] == ["properties_raw", "body", "unique_id", "keys", "tags"]
    metadata = parquet.read_metadata(path).row_group(0)
    places = [metadata.column(number) for number in range(metadata.num_columns)]
    starts = [one.dictionary_page_offset or one.data_page_offset for one in places]
    assert starts == sorted(starts)
