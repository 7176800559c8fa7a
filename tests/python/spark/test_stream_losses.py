"""Which gaps of a stream are losses: an error by default, and a warning with `failOnDataLoss=false`."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

import mqstore
from mqstore.spark import _source
from mqstore.spark._read import rows as _rows
from mqstore.spark._read import stream as _stream
from spark_histories import StreamHistory

SMALL = {"segment_size": 1 << 14, "queue_file_entries": 100}


class Query:
    """A stream that reads numbers until the store has no more."""

    def __init__(self, path: Path, **given: Any) -> None:
        texts = {"path": str(path), "startingOffsets": "earliest", **{name: str(given[name]) for name in given}}
        self.strict = _source.stream_reader(texts, _source.schema(texts)).options
        self.at: dict[str, Any] = _stream.initial(self.strict)

    def run(self, most: int | None = None, lenient: bool = False) -> list[int]:
        """Runs batches, at most `most`. Returns the bodies in their order."""
        options = {**self.strict, "fail_on_data_loss": not lenient}
        found: list[int] = []
        for _ in range(50 if most is None else most):
            end = _stream.latest(options, self.at, None, True)
            if end == self.at:
                break
            for part in _stream.plan(options, self.at, end):
                for batch in _rows.rows(options, part.plain()):
                    found += [int(row["body"]) for row in batch.to_pylist()]
            self.at = end
        else:
            assert most is not None, "the stream does not end"
        return found

    def loses(self, match: str) -> list[int]:
        """Checks that a loss is an error. Returns what the stream reads after it."""
        for _ in range(2):
            with pytest.raises(mqstore.MQStoreError, match=match) as caught:
                self.run()
            assert "failOnDataLoss=false" in str(caught.value)
        with pytest.warns(mqstore.StoreWarning, match=match):
            found = self.run(lenient=True)
        # It is reported once.
        assert self.run() == []
        return found


def opened(path: Path, mode: Any = "rw", **given: Any) -> mqstore.Store:
    return mqstore.open(path, mode, **{**SMALL, **given})


def fill(store: mqstore.Store, topic: str, numbers: range, queue_id: int = 0, keys: int = 37) -> None:
    for number in numbers:
        store.append(topic, f"{number:100}".encode(), queue_id=queue_id, keys=f"k{number % keys}")


@pytest.fixture
def made(tmp_path: Path) -> Path:
    with opened(tmp_path / "store", "create") as store:
        store.create_topic("orders", queues=1)
        fill(store, "orders", range(120))
    return tmp_path / "store"


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    with opened(tmp_path / "store", "create", retention_bytes=1, expire_uncompacted=True) as store:
        store.create_topic("prices", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        fill(store, "prices", range(600))
    return tmp_path / "store"


def test_offsets_that_a_compaction_dropped_are_no_loss(prices: Path) -> None:
    query = Query(prices, maxOffsetsPerTrigger=100)
    assert query.run(1) == list(range(100))
    with opened(prices) as store:
        store.compact("prices")
        fill(store, "prices", range(600, 620))
        left = [int(message.body) for message in store.read("prices")]
    assert query.run() == left == [*range(563, 620)]
    given = {"path": str(prices), "startingOffsets": '{"prices": {"0": 51}}', "endingOffsets": '{"prices": {"0": 610}}'}
    batch = _source.reader(given, _source.schema(given))
    assert batch.ranges == {str(prices): [("prices", 0, 51, 610)]}


def test_deleted_messages_that_no_compaction_read_are_a_loss(prices: Path, tmp_path: Path) -> None:
    query = Query(prices, maxOffsetsPerTrigger=100)
    query.run(1)
    with opened(prices) as store:
        store.compact("prices")
    shutil.copytree(prices / "compaction", tmp_path / "compaction")
    with opened(prices, retention_bytes=1, expire_uncompacted=True) as store:
        fill(store, "prices", range(600, 1000))
        store.expire()
    # The expiry had copied its messages to the compaction files.
    shutil.rmtree(prices / "compaction")
    shutil.copytree(tmp_path / "compaction", prices / "compaction")
    with mqstore.open(prices) as store:
        low = next(n for n in range(600, 1000) if readable(store, n))
    assert low > 600
    found = query.loses("not 600")
    assert found == [*range(563, 600), *range(low, 1000)]


def readable(store: mqstore.Store, offset: int) -> bool:
    try:
        return next(store.read("prices", 0, offset, offset + 1), None) is not None
    except mqstore.OffsetOutOfRangeError:
        return False


def test_a_queue_of_which_a_compaction_kept_nothing_is_no_loss(prices: Path) -> None:
    query = Query(prices)
    query.run()
    with opened(prices) as store:
        for number in range(37):
            store.append("prices", b"", keys=f"k{number}")
        store.compact("prices", tombstone_retention=0)
        assert list(store.read("prices")) == []
        fill(store, "prices", range(700, 703))
    assert query.run() == [700, 701, 702]
    fresh = Query(prices, startingOffsets='{"prices": {"0": 5}}')
    assert fresh.run() == [700, 701, 702]


@pytest.mark.parametrize("new", [0, 50, 110])
def test_a_store_that_went_back_is_a_loss(made: Path, tmp_path: Path, new: int) -> None:
    shutil.copytree(made, tmp_path / "copy")
    with opened(made) as store:
        fill(store, "orders", range(120, 200))
    query = Query(made)
    assert query.run() == list(range(200))
    shutil.rmtree(made)
    shutil.copytree(tmp_path / "copy", made)
    with opened(made) as store:
        fill(store, "orders", range(300, 300 + new))
    # Offsets from 200 on are new in any case.
    assert query.loses("the store went back") == list(range(380, 300 + new))
    with opened(made) as store:
        fill(store, "orders", range(500, 503))
    assert query.run() == [500, 501, 502]


def test_a_batch_that_was_planned_before_a_store_went_back_fails(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "copy")
    query = Query(made)
    query.run()
    with opened(made) as store:
        fill(store, "orders", range(120, 200))
    end = _stream.latest(query.strict, query.at, None, False)
    shutil.rmtree(made)
    shutil.copytree(tmp_path / "copy", made)
    with opened(made) as store:
        fill(store, "orders", range(300, 400))
    with pytest.raises(mqstore.MQStoreError, match="the store went back"):
        _stream.plan(query.strict, query.at, end)


def test_another_store_under_the_path_is_a_loss(made: Path) -> None:
    query = Query(made)
    query.run()
    shutil.rmtree(made)
    with opened(made, "create", retention_bytes=1) as store:
        store.create_topic("orders", queues=1)
        fill(store, "orders", range(130))
        # Also if the log does not have the place of the last message any more.
    assert query.loses("another store is under this path") == list(range(120, 130))


def test_a_deleted_topic_with_unread_messages_is_a_loss(made: Path) -> None:
    query = Query(made, subscribePattern=".*")
    query.run()
    with opened(made) as store:
        store.create_topic("read", queues=1)
        fill(store, "read", range(5))
    assert query.run() == list(range(5))
    with opened(made) as store:
        store.delete_topic("read")
        fill(store, "orders", range(120, 121))
    # All its messages were read.
    assert query.run() == [120]
    with opened(made) as store:
        fill(store, "orders", range(121, 125))
        store.delete_topic("orders")
        store.create_topic("read", queues=1)
        fill(store, "read", range(3))
    assert query.loses("topic 'orders' was deleted") == [0, 1, 2]


def test_a_new_topic_without_a_message_can_be_deleted(made: Path) -> None:
    with opened(made) as store:
        store.create_topic("news", queues=1)
        fill(store, "news", range(5))
        store.delete_topic("news")
    query = Query(made, subscribePattern=".*")
    query.run()
    with opened(made) as store:
        store.create_topic("news", queues=1)
    # Its queue begins behind the deleted one.
    planned = _stream.latest(query.strict, query.at, None, True)
    assert planned["news"]["0"] >= 5
    with opened(made) as store:
        store.delete_topic("news")
    assert _stream.plan(query.strict, query.at, planned) == []
    with opened(made) as store:
        store.create_topic("news", queues=1)
        fill(store, "news", range(1))
        store.delete_topic("news")
    with pytest.raises(mqstore.MQStoreError, match="topic 'news' does not exist any more"):
        _stream.plan(query.strict, query.at, planned)


def test_a_new_topic_starts_with_its_first_message(made: Path) -> None:
    query = Query(made, subscribePattern=".*")
    query.run()
    with opened(made, retention_bytes=1) as store:
        store.create_topic("news", queues=1)
        fill(store, "news", range(1000, 1400))
        store.expire()
        low = store.queues("news")[0].min_offset
    assert low > 0
    assert query.loses("queue 0 of topic 'news' holds offsets") == list(range(1000 + low, 1400))
    with opened(made) as store:
        # A topic that was deleted before begins at its floor.
        store.delete_topic("news")
        store.create_topic("news", queues=1)
        fill(store, "news", range(5))
        assert store.queues("news")[0].min_offset == 400
    assert query.run() == list(range(5))
    with opened(made) as store:
        store.create_topic("limited", queues=1)
        fill(store, "limited", range(20))
        store.set_retention("limited", max_messages=3)
        store.expire()
    assert query.loses("queue 0 of topic 'limited' holds offsets 17 to 20") == [17, 18, 19]


def test_a_deletion_between_two_topics_of_one_name_is_no_loss_if_all_was_read(made: Path) -> None:
    query = Query(made)
    query.run()
    with opened(made) as store:
        store.delete_topic("orders")
        store.create_topic("orders", queues=1)
        fill(store, "orders", range(7))
    assert query.run() == list(range(7))
    with opened(made) as store:
        fill(store, "orders", range(7, 9))
        store.delete_topic("orders")
        store.create_topic("orders", queues=1)
        fill(store, "orders", range(20, 22))
    assert query.loses("topic was deleted") == [20, 21]


def test_a_stream_continues_in_the_archive(made: Path, tmp_path: Path) -> None:
    query = Query(made, maxOffsetsPerTrigger=50)
    assert query.run(1) == list(range(50))
    with opened(made, retention_bytes=1) as store:
        fill(store, "orders", range(120, 400))
        store.archive.configure(tmp_path / "archive")
        store.archive.run()
        store.expire()
        assert store.queues("orders")[0].min_offset > 100
    query.strict["max_offsets"] = 1000
    assert query.run() == list(range(50, 400))
    without = Query(made, archive="false")
    without.at = {"orders": {"0": 50}}
    assert without.loses("and not 50")[-1] == 399


def test_offsets_of_earlier_versions_are_readable(made: Path) -> None:
    query = Query(made)
    query.at = {"orders": {"0": 100}}
    assert query.run() == list(range(100, 120))
    assert set(query.at) == {"orders", "@log"}
    query.at = {"orders": {"0": 121}}
    assert query.loses("holds offsets") == []


@pytest.mark.parametrize("seed", range(8))
def test_a_random_history_agrees_with_the_model(tmp_path: Path, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        StreamHistory(tmp_path, seed).run(20)


@pytest.mark.soak
@pytest.mark.parametrize("block", range(100))
def test_many_random_histories_agree_with_the_model(tmp_path: Path, block: int) -> None:
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            StreamHistory(tmp_path / str(seed), seed).run(25)
        shutil.rmtree(tmp_path / str(seed))
