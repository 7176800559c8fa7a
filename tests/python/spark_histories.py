"""Random sequences of verbs on a store between random batches of a stream, and a model of the stream.

The model is a plain list of messages for each queue. The planner and the tasks run in this process, without a session.
Each batch must return exactly the readable messages between its offsets. A lost message that the stream has not read,
and a step back of the store, must fail the next batch that meets it. After that, the same stream with
`failOnDataLoss=false` must warn, and continue with all messages that are left.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.dataset

import mqstore
from mqstore import _native
from mqstore.spark import _source
from mqstore.spark._read import rows as _rows
from mqstore.spark._read import stream as _stream
from spark_cluster import Cluster, Driver, Failed
from spark_driver_side import session_is_ready, stream_into_folders

SEGMENT_BYTES = 1 << 14
QUEUE_ENTRIES = 40
COLUMNS = "topic,queue_id,queue_offset,body"
Queue = tuple[str, int]


def copy_sparse(source: str, target: str) -> None:
    """Copies a file and keeps its holes."""
    size, at = Path(source).stat().st_size, 0
    with open(source, "rb", buffering=0) as old, open(target, "wb", buffering=0) as new:  # noqa: PTH123
        while at < size:
            try:
                at = os.lseek(old.fileno(), at, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(old.fileno(), at, os.SEEK_HOLE)
            os.pwrite(new.fileno(), os.pread(old.fileno(), end - at, at), at)
            at = end
        new.truncate(size)


@dataclass
class Row:
    """A message of a queue."""

    offset: int
    body: bytes
    place: int
    number: int
    key: str = ""
    state: str = "there"
    """`there`, `dropped` by a compaction, or `lost`."""


@dataclass
class Model:
    """What the store has."""

    queues: dict[Queue, list[Row]] = field(default_factory=dict)
    former: dict[Queue, list[Row]] = field(default_factory=dict)
    """Messages of deleted topics that no batch has met."""
    unseen: dict[Queue, list[Row]] = field(default_factory=dict)
    """Messages of deleted topics that a batch has met."""
    compacted: dict[Queue, int] = field(default_factory=dict)


class StreamHistory:
    """A store, a stream of it, and the model of both."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home / "store"
        self.copy = home / "copy"
        self.archive_home = home / "archive"
        self.chance = random.Random(seed)
        self.model = Model()
        self.copied: Model | None = None
        self.steps: list[str] = []
        self.number = 0
        self.limits: dict[str, Any] = {"retention_bytes": self.chance.choice([2, 4, 8]) * SEGMENT_BYTES}
        self.limits["expire_uncompacted"] = self.chance.random() < 0.5
        self.store = self.opened("create")
        self.has_archive = False
        self.marked: set[int] = set()
        """Messages of the log that existed when the offset was computed."""
        self.went_back = False
        self.may_have_gone_back = False
        """Whether a copy was restored, which the stream may see although it has not read a later message."""
        self.create("orders")
        self.store.create_topic("prices", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        self.model.queues["prices", 0] = []
        self.strict = self.options()
        self.lenient = {**self.strict, "fail_on_data_loss": False}
        self.at: dict[str, Any] = json.loads(json.dumps(_stream.initial(self.strict)))
        self.waiting: dict[str, Any] | None = None
        """End of a batch that was planned and not completed."""
        self.met: dict[Queue, int] = {}
        """Number of messages of deleted topics when that end was computed."""
        self.gone: dict[Queue, int] = {}
        """The same, of topics that did not exist then."""

    def opened(self, mode: Any = "rw") -> mqstore.Store:
        return mqstore.open(
            self.home, mode, segment_size=SEGMENT_BYTES, queue_file_entries=QUEUE_ENTRIES, durability="manual",
            index_slots=8, index_entries=64, **self.limits,
        )  # fmt: skip

    def options(self) -> dict[str, Any]:
        texts = {"path": str(self.home), "subscribePattern": ".*s", "startingOffsets": "earliest"}
        texts |= {"columns": COLUMNS, "includeBody": "true"}
        texts |= {"maxOffsetsPerTrigger": str(self.chance.choice([1, 3, 10, 50, 1000]))}
        return _source.stream_reader(texts, _source.schema(texts)).options

    # The verbs.

    def create(self, topic: str | None = None) -> None:
        topic = topic or self.chance.choice(["news", "bills", "orders", "others", "hidden topic"])
        if topic != "hidden topic" and topic not in self.store.topics():
            queues = self.chance.randint(1, 3)
            self.store.create_topic(topic, queues=queues)
            for queue_id in range(queues):
                self.model.queues[topic, queue_id] = []

    def append(self) -> None:
        queues = sorted(self.model.queues)
        for _ in range(self.chance.choice([1, 1, 3, 20])):
            topic, queue_id = queue = self.chance.choice(queues)
            self.number += 1
            body, key = b"%d " % self.number + b"x" * self.chance.choice([0, 100, 900]), f"k{self.chance.randint(0, 4)}"
            is_tombstone = topic == "prices" and self.chance.random() < 0.3
            result = self.store.append(topic, b"" if is_tombstone else body, queue_id=queue_id, keys=key)
            row = Row(result.queue_offset, b"" if is_tombstone else body, result.commit_log_offset, self.number, key)
            self.model.queues[queue].append(row)

    def delete(self) -> None:
        topics = sorted({topic for topic, _ in self.model.queues} - {"prices"})
        if topics:
            topic = self.chance.choice(topics)
            self.store.delete_topic(topic)
            for queue in [queue for queue in self.model.queues if queue[0] == topic]:
                self.model.former.setdefault(queue, []).extend(self.model.queues.pop(queue))

    def expire(self) -> None:
        self.store.expire()
        self.lose()

    def topic_retention(self) -> None:
        topics = sorted({topic for topic, _ in self.model.queues} - {"prices"})
        if topics:
            topic = self.chance.choice(topics)
            self.store.set_retention(topic, max_messages=self.chance.randint(1, 20))
            self.store.expire()
            self.store.set_retention(topic)
            self.lose()

    def lose(self) -> None:
        """Marks the messages that the store does not have any more."""
        for topic in {topic for topic, _ in self.model.queues}:
            for info in self.store.queues(topic):
                queue = topic, info.queue_id
                low = self.store._oldest_offset(*queue, info.min_offset)
                # A compaction topic has two places for its messages.
                left = self.left(queue) if topic == "prices" else None
                for row in self.model.queues[queue]:
                    gone = row.offset < low if left is None else row.offset not in left
                    if gone and row.state == "there":
                        row.state = "lost"

    def left(self, queue: Queue) -> set[int]:
        return {message.queue_offset for message in self.store.read(*queue)}

    def compact(self) -> None:
        self.store.compact("prices", tombstone_retention=0 if self.chance.random() < 0.5 else 3600)
        queue = "prices", 0
        left = self.left(queue)
        rows = self.model.queues[queue]
        if rows:
            self.model.compacted[queue] = rows[-1].offset + 1
        newest = {row.key: row.offset for row in rows if row.state == "there"}
        for row in rows:
            if row.state == "there" and row.offset not in left:
                # Only older values and tombstones may go.
                assert newest[row.key] != row.offset or not row.body
                row.state = "dropped"

    def reclaim(self) -> None:
        self.store.reclaim(erase=self.chance.choice([None, "orders"]) if "orders" in self.store.topics() else None)

    def archive(self) -> None:
        if not self.has_archive:
            if self.store.stats().segments < 2:
                # An archive that has no file yet cannot be read.
                return
            self.store.archive.configure(self.archive_home)
            self.has_archive = True
        self.store.archive.run()

    def back_up(self) -> None:
        self.store.close()
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.home, self.copy, copy_function=copy_sparse)
        self.copied = deepcopy(self.model)
        self.store = self.opened()

    def restore(self) -> None:
        if self.copied is None or self.has_archive:
            return
        self.store.close()
        shutil.rmtree(self.home)
        shutil.copytree(self.copy, self.home, copy_function=copy_sparse)
        self.model = deepcopy(self.copied)
        everything = [*self.model.queues.values(), *self.model.former.values()]
        self.went_back = bool(self.marked - {row.number for rows in everything for row in rows})
        self.may_have_gone_back = True
        self.store = self.opened()
        if self.chance.random() < 0.5:
            self.append()
        self.batches()

    def damage(self) -> None:
        """Damages a message; the stream must fail if it reads this message, and may if it reads the log around it."""
        self.drain()
        self.drain()
        self.append()
        rows = [
            (queue, row)
            for queue, rows in self.model.queues.items()
            for row in rows
            if row.state == "there" and row.place >= self.store.stats().log_min_offset and row.body
            if row.offset >= self.model.compacted.get(queue, 0)
        ]
        # A damaged record at the end of the log is no record: the log ends before it.
        newest = max((row.place for rows in self.model.queues.values() for row in rows), default=0)
        rows = [(queue, row) for queue, row in rows if row.place < newest]
        if not rows:
            return
        queue, row = self.chance.choice(rows)
        self.store.flush()
        self.store.close()
        base = row.place - row.place % SEGMENT_BYTES
        path = self.home / "commitlog" / f"{base:020}"
        content = path.read_bytes()
        spot = content.index(row.body, row.place - base)
        path.write_bytes(content[:spot] + bytes([content[spot] ^ 1]) + content[spot + 1 :])
        is_unread = row.offset >= self.position(self.at, queue)
        may_fail = is_unread or row.place >= self.at.get("@log", {}).get("from", 0)
        failed = False
        try:
            while not self.run_batches(self.strict, None):
                pass
        except mqstore.MQStoreError as error:
            assert "failOnDataLoss" not in str(error), error
            failed = True
        assert is_unread <= failed <= may_fail, (queue, row)
        path.write_bytes(content)
        self.store = self.opened()

    # The stream.

    def batches(self) -> None:
        """Runs some batches, or all of them."""
        self.meet(self.chance.choice([1, 2, None]))

    def drain(self) -> None:
        self.meet(None)

    def meet(self, most: int | None) -> None:
        may = self.may_lose()
        try:
            is_done = self.run_batches(self.strict, most)
        except mqstore.MQStoreError as error:
            assert "failOnDataLoss=false" in str(error), error
            assert may or self.has_lost(), f"no message is lost: {error}"
            self.pass_over()
            self.forgive()
        else:
            assert not self.went_back, "the store went back"
            assert not self.deleted_unread(self.met), "a topic was deleted"
            if is_done:
                self.may_have_gone_back = False
                self.is_complete()

    def pass_over(self) -> None:
        """Continues behind a loss, with a warning."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.run_batches(self.lenient, None, is_lenient=True)
        assert any(issubclass(one.category, mqstore.StoreWarning) for one in caught)

    def has_lost(self) -> bool:
        losses = self.deleted_unread() or any(
            row.state == "lost" and row.offset >= self.position(self.at, queue)
            for queue, rows in self.model.queues.items()
            for row in rows
        )
        # The first batch of the stream had messages of a topic that was deleted before the batch was read.
        is_first = "starting" in self.at and self.waiting is not None and bool(self.model.former)
        return self.went_back or losses or is_first

    def may_lose(self) -> bool:
        """Whether a step back is possible, or the log cannot tell any more what a deleted topic had, or when."""
        if self.may_have_gone_back:
            return True
        log = self.at.get("@log") if "starting" not in self.at else None
        if log is None:
            return False
        # A new topic has the name of one that the stream never saw, and whose records are after the mark.
        is_taken = any(
            row.place >= log["from"] for queue in self.model.queues for row in self.model.unseen.get(queue, [])
        )
        return is_taken or log["from"] < self.store.stats().log_min_offset

    def deleted_unread(self, met: dict[Queue, int] | None = None) -> bool:
        """Whether a topic that the stream could know was deleted with unread messages; with `met`, before a plan."""
        if "starting" in self.at:
            return False
        return any(
            rows and rows[-1].offset >= self.position(self.at, queue)
            for queue, rows in self.model.former.items()
            if met is None or met.get(queue) == len(rows)
            if any(str(queue[1]) in known.get(queue[0], {}) for known in (self.at, self.waiting or {}))
            or (queue in self.model.queues and self.gone.get(queue) != len(rows))
        )

    def forgive(self) -> None:
        self.went_back = self.may_have_gone_back = False
        self.is_complete()

    def is_complete(self) -> None:
        for queue, rows in self.model.queues.items():
            if rows:
                assert self.position(self.at, queue) == rows[-1].offset + 1, (queue, self.at)

    @staticmethod
    def position(at: dict[str, Any], queue: Queue) -> int:
        found: int = 0 if "starting" in at else at.get(queue[0], {}).get(str(queue[1]), 0)
        return found

    def run_batches(self, options: dict[str, Any], most: int | None, is_lenient: bool = False) -> bool:
        """Returns whether the stream has read all messages."""
        count = 0
        while most is None or count < most:
            count += 1
            end = self.waiting
            if end is None:
                self.meet_deleted()
                end = json.loads(json.dumps(_stream.latest(options, self.at, None, True)))
                if end == self.at:
                    return True
                self.plan(end)
            found = self.read(options, self.at, end)
            self.check_batch(end, found, is_lenient)
            if not is_lenient and self.chance.random() < 0.1:
                # The driver is killed before the commit: Spark plans the same batch again.
                return False
            self.commit(end)
        return False

    def meet_deleted(self) -> None:
        """Notes which deleted topics there are when a batch is planned."""
        self.met = {queue: len(rows) for queue, rows in self.model.former.items()}
        self.gone = {queue: rows for queue, rows in self.met.items() if queue not in self.model.queues}

    def plan(self, end: dict[str, Any]) -> None:
        """Notes a planned batch, and the messages of the log at that time."""
        self.waiting = end
        self.marked = {
            row.number
            for queue, rows in self.model.queues.items()
            for row in rows
            if row.state == "there" and row.offset >= self.model.compacted.get(queue, 0)
        }

    def commit(self, end: dict[str, Any]) -> None:
        """Notes a complete batch."""
        for queue in [each for each, rows in self.model.former.items() if len(rows) == self.met.get(each)]:
            there = self.model.queues.get(queue)
            if queue in self.gone or not there or self.position(end, queue) >= there[0].offset:
                self.model.unseen.setdefault(queue, []).extend(self.model.former.pop(queue))
        self.at, self.waiting = end, None

    def read(self, options: dict[str, Any], start: dict[str, Any], end: dict[str, Any]) -> Counter[Any]:
        found: Counter[Any] = Counter()
        for part in _stream.plan(options, start, end):
            for batch in _rows.rows(options, part.plain()):
                for row in batch.to_pylist():
                    found[row["topic"], row["queue_id"], row["queue_offset"], row["body"]] += 1
        return found

    def check_batch(self, end: dict[str, Any], found: Counter[Any], is_lenient: bool) -> None:
        wanted: Counter[Any] = Counter()
        for queue, rows in self.model.queues.items():
            begin, to = self.position(self.at, queue), self.position(end, queue)
            for row in rows:
                if begin <= row.offset < to:
                    # A copy can have a topic again that was deleted when the query began.
                    may = self.may_have_gone_back and row.place < self.at.get("@log", {}).get("from", 0)
                    if row.state == "lost" and not (is_lenient or may or "starting" in self.at):
                        assert self.is_passed(queue, row), f"lost in silence: {queue} {row}"
                    if row.state == "there":
                        wanted[(*queue, row.offset, row.body)] += 1
        assert found == wanted, (found - wanted, wanted - found)
        # A store that went back can have more messages before an end that was planned earlier.
        assert is_lenient or len(found) <= self.strict["max_offsets"], len(found)

    def is_passed(self, queue: Queue, row: Row) -> bool:
        """Whether the background has appended newer messages to the compaction files, as if it had dropped this one."""
        with mqstore.open(self.home, "r") as reader:
            return queue[0] == "prices" and row.offset < (_native.compaction_end(reader, *queue) or 0)

    def verbs(self) -> dict[Callable[[], None], float]:
        """The verbs, each with its weight."""
        return {
            self.append: 10, self.batches: 8, self.create: 2, self.delete: 1, self.expire: 3, self.topic_retention: 1,
            self.compact: 2, self.reclaim: 1, self.archive: 0.5, self.back_up: 1, self.restore: 2, self.damage: 0.5,
        }  # fmt: skip

    def run(self, steps: int) -> None:
        verbs = self.verbs()
        try:
            for _ in range(steps):
                verb = self.chance.choices(list(verbs), list(verbs.values()))[0]
                self.steps.append(verb.__name__)
                verb()
            self.drain()
        except Exception as error:
            error.add_note(f"steps: {' '.join(self.steps)}; at {self.at}")
            raise
        finally:
            with suppress(mqstore.StoreClosedError):
                self.store.close()


class SessionHistory(StreamHistory):
    """The same with queries of a real session, whose driver is killed at random moments of a query."""

    def __init__(self, home: Path, seed: int, cluster: Cluster) -> None:
        super().__init__(home, seed)
        self.cluster = cluster
        self.driver: Driver | None = None
        self.kills = 0
        self.work = home / "query"
        """Its folder `out` has a folder of Parquet files for each batch."""

    def verbs(self) -> dict[Callable[[], None], float]:
        verbs = super().verbs()
        del verbs[self.damage]
        return verbs

    def pass_over(self) -> None:
        self.run_batches(self.lenient, None, is_lenient=True)

    def run_batches(self, options: dict[str, Any], most: int | None, is_lenient: bool = False) -> bool:
        """Runs one query up to the end. Without a limit of the number of batches, no driver is killed."""
        before = self.batches_in("commits")
        if self.waiting is None:
            self.meet_deleted()
        self.store.flush()
        is_complete, reason = False, ""
        try:
            is_complete = self.query(options, is_killed=most is not None)
        except Failed as error:
            reason = str(error)
        for batch in self.batches_in("offsets")[len(before) :]:
            end = json.loads((self.work / "checkpoint/offsets" / str(batch)).read_text().splitlines()[-1])
            if self.waiting is None:
                self.meet_deleted()
                self.plan(end)
            assert self.waiting == end, "Spark runs a batch again with the same end"
            if batch not in self.batches_in("commits"):
                break
            self.check_batch(end, self.rows_of(batch), is_lenient)
            self.commit(end)
        if reason:
            assert "MQStoreError" in reason, reason
            raise mqstore.MQStoreError(reason)
        return is_complete

    def query(self, options: dict[str, Any], is_killed: bool) -> bool:
        """Returns whether the query ended before its driver was killed."""
        if self.driver is None:
            self.driver = self.cluster.driver()
            # Only a driver that is ready can be killed in a query.
            self.driver.call(session_is_ready)
        given = {"subscribePattern": ".*s", "startingOffsets": "earliest", "columns": COLUMNS}
        given |= {"maxOffsetsPerTrigger": options["max_offsets"], "failOnDataLoss": options["fail_on_data_loss"]}
        self.driver.begin(stream_into_folders, str(self.home), str(self.work), given)
        if is_killed:
            try:
                self.driver.end_of(self.chance.uniform(0, 3))
            except TimeoutError:
                self.driver.kill()
                self.driver, self.kills = None, self.kills + 1
                return False
        else:
            self.driver.end_of()
        return True

    def batches_in(self, log: str) -> list[int]:
        """The numbers of the batches in a log of the checkpoint."""
        return sorted(int(each.name) for each in (self.work / "checkpoint" / log).glob("[0-9]*"))

    def rows_of(self, batch: int) -> Counter[Any]:
        folder = self.work / "out" / str(batch)
        rows = pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist() if folder.exists() else []
        return Counter((row["topic"], row["queue_id"], row["queue_offset"], row["body"]) for row in rows)
