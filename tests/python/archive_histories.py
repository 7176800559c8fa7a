"""Random sequences of verbs on a store whose older messages move to an archive, and a model without any archive.

The model is a list of all messages that were appended, the floor of each topic, and the ranges of the log that each
archive got. A message counts if it is not before the floor of its topic, and if the log or the archive in use has it.
After each verb some answers of the store are compared with those of the model, in the writer, in a reader, with
asyncio, on the command line and in the tasks of Spark.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import mqstore
import mqstore.aio
from conftest import SMALL
from mqstore._remote.failure import RequestFailure
from mqstore.cli import run
from mqstore.testing import ManualClock
from mqstore.testing import open as open_for_test
from python_folders import Directory, python_transport

TOPICS = ("orders", "events", "jobs")
QUEUES = 2
SEGMENT = 32 << 10
OPTIONS = replace(
    SMALL,
    segment_size=SEGMENT,
    queue_file_entries=16,
    advanced=replace(SMALL.advanced, delete_interval=0),
)
RETENTIONS = (None, 1, 1, 2 * SEGMENT, 4 * SEGMENT)
"""Values of `retention_bytes`."""
NEVER = "3650d"
"""An age that no message reaches."""
AGES = (20, 60, 200)
"""Limits `keep` in minutes."""
TAG = "paid"

Message = mqstore.StoredMessage


@dataclass
class Target:
    """What an archive has."""

    topics: tuple[str, ...] | None
    ranges: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of the log, in their order. A range that follows the one before at once is joined with it."""

    @property
    def end(self) -> int:
        return self.ranges[-1][1] if self.ranges else 0

    def has(self, message: Message) -> bool:
        in_topics = self.topics is None or message.topic in self.topics
        return in_topics and any(start <= message.commit_log_offset < end for start, end in self.ranges)

    def add(self, start: int, end: int) -> None:
        if self.ranges and self.ranges[-1][1] == start:
            start = self.ranges.pop()[0]
        self.ranges.append((start, end))


@dataclass
class Model:
    """The messages that a user must see."""

    messages: list[Message] = field(default_factory=list)
    floors: dict[str, int] = field(default_factory=dict)
    """Log offset before which the messages of a topic are hidden."""
    limits: dict[str, dict[str, Any]] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    targets: dict[str, Target] = field(default_factory=dict)
    used: str | None = None
    """The target in use."""
    log_start: int = 0

    def visible(self, topic: str | None = None) -> list[Message]:
        """The messages that count, in the order of the log."""
        return [one for one in self.messages if topic in (None, one.topic) and self.counts(one)]

    def counts(self, one: Message) -> bool:
        is_shown = one.topic in self.topics and one.commit_log_offset >= self.floors.get(one.topic, 0)
        return is_shown and self.exists(one)

    def exists(self, one: Message) -> bool:
        if one.commit_log_offset >= self.log_start:
            return True
        return self.used is not None and self.targets[self.used].has(one)

    @property
    def has_gap(self) -> bool:
        """Whether segments were deleted that are between others of the archive and the log."""
        if self.used is None:
            return False
        target = self.targets[self.used]
        return len(target.ranges) > 1 or 0 < target.end < self.log_start

    def apply_limits(self, end: int, now_ms: int) -> None:
        for topic, limits in self.limits.items():
            kept = self.visible(topic)
            since = now_ms - limits["keep"] * 60_000 if "keep" in limits else 0

            def is_over(kept: list[Message] = kept, limits: dict[str, Any] = limits, since: int = since) -> bool:
                return (
                    kept[0].store_timestamp < since
                    or len(kept) > limits.get("max_messages", len(kept))
                    or sum(one.size for one in kept) > limits.get("max_bytes", 1 << 60)
                )

            before = len(kept)
            while kept and is_over():
                kept.pop(0)
            if len(kept) < before:
                self.floors[topic] = kept[0].commit_log_offset if kept else end


class DifferenceError(AssertionError):
    """The store gave another answer than the model."""


def has_record(store: mqstore.Store, message: Message) -> bool:
    """Whether the log has the record of a message, which may be hidden."""
    try:
        return store.get_at(message.commit_log_offset).body == message.body
    except mqstore.MQStoreError:
        return False


class ArchiveHistory:
    """A store, its model, and the verbs that change both."""

    def __init__(self, folder: Path, seed: int, *, outer: bool = False) -> None:
        self.folder = folder
        self.home = folder / "store"
        self.seed = seed
        self.outer = outer
        """Whether the command line and Spark are asked too."""
        self.chance = random.Random(seed)
        # Before the time of the machine, to which an archive compares the age of segments.
        self.clock = ManualClock(int(time.time() * 1000) - 100 * 86_400_000)
        self.model = Model()
        self.steps: list[str] = []
        self.counter = 0
        self.groups = 0
        self.retention_bytes: int | None = None
        self.readings: list[tuple[Iterator[Message], str, list[Message], list[Message]]] = []
        self.consumer: tuple[mqstore.Consumer, str, list[Message]] | None = None
        self.store = self.opened("create")
        for topic in TOPICS:
            self.create(topic)

    # The store.

    def opened(self, mode: Any = "rw") -> mqstore.Store:
        return open_for_test(
            self.home, mode, clock=self.clock, options=replace(OPTIONS, retention_bytes=self.retention_bytes)
        )

    def reopen(self) -> None:
        self.end_readings()
        self.store.close()
        self.store = self.opened()
        self.expire()

    def change_retention(self) -> None:
        self.retention_bytes = self.chance.choice(RETENTIONS)
        self.reopen()

    def kill(self) -> None:
        """Continues on a copy of the directory, as after a kill of the process."""
        self.end_readings()
        copy = self.home.with_name("killed")
        while not self.copied(copy):
            shutil.rmtree(copy, ignore_errors=True)
        self.store.close()
        shutil.rmtree(self.home)
        copy.rename(self.home)
        self.store = self.opened()
        self.expire()

    def copied(self, copy: Path) -> bool:
        """Copies the directory, and tells whether no file changed meanwhile."""

        def state() -> dict[Path, tuple[int, int]]:
            stats = [(path, path.stat()) for path in self.home.rglob("*")]
            return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats}

        try:
            before = state()
            shutil.copytree(self.home, copy)
            return state() == before
        except (shutil.Error, FileNotFoundError):
            return False

    # Messages and topics.

    def create(self, topic: str) -> None:
        self.store.create_topic(topic, queues=QUEUES)
        self.model.topics.add(topic)

    def append(self) -> None:
        if not self.model.topics:
            return
        for _ in range(self.chance.randint(1, 50)):
            topic = self.chance.choice(sorted(self.model.topics))
            self.append_to(topic, self.chance.choice((20, 400, 1500, 3000)))

    def append_to(self, topic: str, size: int) -> None:
        number = self.counter
        self.counter += 1
        done = self.store.append(
            topic,
            json.dumps({"number": number, "text": "x" * size}).encode(),
            keys=[f"k{number}", "all"],
            tags=TAG if number % 3 else None,
            queue_id=self.chance.randrange(QUEUES),
        )
        self.model.messages.append(self.store.get_at(done.commit_log_offset))
        if self.chance.random() < 0.3:
            # A store time of its own for about every third message.
            self.clock.advance(0.002)

    def append_much(self) -> None:
        """Fills some segments."""
        for _ in range(self.chance.randint(1, 3)):
            self.append()

    def delete(self) -> None:
        if self.model.topics:
            topic = self.chance.choice(sorted(self.model.topics))
            self.end_readings(topic)
            self.store.delete_topic(topic)
            self.model.topics.discard(topic)
            self.model.limits.pop(topic, None)
            self.model.floors[topic] = self.store.stats().log_max_offset

    def make_again(self) -> None:
        for topic in TOPICS:
            if topic not in self.model.topics:
                self.create(topic)

    def limit(self) -> None:
        if not self.model.topics:
            return
        topic = self.chance.choice(sorted(self.model.topics))
        limits: dict[str, Any] = {}
        for name, values in (
            ("keep", AGES),
            ("max_messages", (1, 5, 20, 60, 150)),
            ("max_bytes", (1, 5000, 30_000, 90_000, 200_000)),
        ):
            if self.chance.random() < 0.4:
                limits[name] = self.chance.choice(values)
        given = {name: f"{value}m" if name == "keep" else value for name, value in limits.items()}
        self.store.set_retention(topic, **given)
        self.model.limits.pop(topic, None)
        if limits:
            self.model.limits[topic] = limits
        self.expire()

    def wait(self) -> None:
        self.clock.advance(self.chance.uniform(60, 3000))
        self.expire()

    def expire(self) -> None:
        self.store.expire()
        stats = self.store.stats()
        if self.model.used is not None:
            assert stats.log_min_offset <= max(self.store.archive.archived_to or 0, self.model.log_start)
        self.model.log_start = stats.log_min_offset
        self.model.apply_limits(stats.log_max_offset, int(self.clock.timestamp))

    def reclaim(self) -> None:
        self.store.reclaim(erase=self.chance.choice((None, TOPICS)))

    # The archive.

    def configure(self) -> None:
        name = self.chance.choice(("cold", "cold", "cold", "other"))
        known = self.model.targets.get(name)
        topics = self.chance.choice((None, None, ("events", "orders"))) if known is None else known.topics
        age = self.chance.choice((0, 0, NEVER))
        self.end_readings()
        self.store.archive.configure(self.folder / name, topics=topics, older_than=age)
        self.model.targets.setdefault(name, Target(topics))
        self.model.used = name

    def configure_none(self) -> None:
        self.end_readings()
        self.store.archive.configure(None)
        self.model.used = None

    def run_archive(self) -> None:
        if self.model.used is None:
            return
        target = self.model.targets[self.model.used]
        start = max(self.model.log_start, target.end)
        report = self.store.archive.run()
        if report.segments:
            assert report.archived_to > start
            target.add(start, report.archived_to)

    def restore(self) -> None:
        """Loses the store, and continues with its archive."""
        if self.model.used is None or len(self.model.targets[self.model.used].ranges) != 1:
            return
        target = self.model.targets[self.model.used]
        if target.topics is not None:
            return
        self.end_readings()
        self.store.close()
        restored = self.folder / "restored"
        mqstore.Archive(self.folder / self.model.used).restore(restored, options=OPTIONS)
        shutil.rmtree(self.home)
        restored.rename(self.home)
        start, end = target.ranges[0]
        # Topics, limits and deletions are not in an archive, so hidden messages return, if no reclaim removed them.
        with mqstore.open(self.home, "r", archive=False) as reader:
            kept = [one for one in self.model.messages if start <= one.commit_log_offset < end]
            kept = [one for one in kept if self.model.counts(one) or has_record(reader, one)]
        model = Model(kept, log_start=start)
        model.targets = {self.model.used: target}
        name, self.model = self.model.used, model
        self.store = self.opened()
        model.topics = {topic for topic in self.store.topics() if topic in TOPICS}
        assert model.topics == {one.topic for one in model.messages}
        for topic in sorted(model.topics):
            self.store.update_topic(topic, read_queues=QUEUES, write_queues=QUEUES)
        self.make_again()
        self.store.archive.configure(self.folder / name)
        for other in self.folder.iterdir():
            if other.name not in (name, "store"):
                shutil.rmtree(other)
        model.used = name
        self.expire()

    # Reads that continue over several verbs.

    def begin_reading(self) -> None:
        if not self.model.topics or self.model.has_gap:
            return
        topic = self.chance.choice(sorted(self.model.topics))
        queue_id = self.chance.choice((None, *range(QUEUES)))
        wanted = [one for one in self.model.visible(topic) if queue_id in (None, one.queue_id)]
        self.readings.append((self.store.read(topic, queue_id), topic, wanted, []))

    def continue_readings(self) -> None:
        for reading in list(self.readings):
            self.read_on(reading, self.chance.randint(1, 30))

    def read_on(self, reading: tuple[Iterator[Message], str, list[Message], list[Message]], most: int) -> None:
        messages, topic, wanted, found = reading
        for _ in range(most):
            try:
                one = next(messages, None)
            except mqstore.OffsetOutOfRangeError:
                # The next message is before the floor of the topic.
                self.readings.remove(reading)
                left = [one for one in wanted if one not in found]
                self.same("the next message of a read", any(not self.model.counts(one) for one in left), True)
                return
            if one is None:
                self.readings.remove(reading)
                floor = self.model.floors.get(topic, 0)
                left = [one for one in wanted if one.commit_log_offset >= floor and one not in found]
                self.same("the messages that a read left out", left, [])
                return
            self.same("a message of a read", one in wanted and one not in found, True)
            found.append(one)

    def end_readings(self, topic: str | None = None) -> None:
        for reading in list(self.readings):
            if topic in (None, reading[1]):
                self.read_on(reading, 1 << 30)
        if self.consumer is not None and topic in (None, self.consumer[1]):
            self.poll(1 << 30)
            self.consumer[0].close()
            self.consumer = None

    def consume(self) -> None:
        """Opens a consumer, or lets it continue."""
        if self.consumer is None:
            if not self.model.topics or self.model.has_gap:
                return
            self.groups += 1
            topic = self.chance.choice(sorted(self.model.topics))
            self.consumer = (self.store.consumer(f"group-{self.groups}", topic), topic, [])
        self.poll(self.chance.randint(1, 40))

    def poll(self, most: int) -> None:
        """Each message of the group comes once, and those that stay visible are not left out."""
        assert self.consumer is not None
        consumer, topic, found = self.consumer
        while most > 0 and (some := consumer.poll(min(most, 20), timeout=0)):
            most -= len(some)
            for one in some:
                self.same("a message of a consumer", one in self.model.messages and one not in found, True)
                before = [
                    other
                    for other in self.model.visible(topic)
                    if other.queue_id == one.queue_id and other.queue_offset < one.queue_offset and other not in found
                ]
                self.same("the messages that a consumer left out", before, [])
                found.append(one)
        if most > 0:
            left = [one for one in self.model.visible(topic) if one not in found]
            self.same("the messages that a consumer left out", left, [])
        consumer.commit()

    VERBS: tuple[tuple[str, int], ...] = (
        ("append", 8),
        ("append_much", 4),
        ("delete", 1),
        ("make_again", 2),
        ("limit", 3),
        ("wait", 2),
        ("expire", 5),
        ("reclaim", 1),
        ("configure", 3),
        ("configure_none", 1),
        ("run_archive", 6),
        ("restore", 1),
        ("reopen", 1),
        ("change_retention", 4),
        ("kill", 1),
        ("begin_reading", 2),
        ("continue_readings", 2),
        ("consume", 3),
    )

    def run(self, steps: int) -> None:
        # Requests fail only in a transport of Python.
        with python_transport() if self.seed % 2 else contextlib.nullcontext():
            self._run(steps)

    def _run(self, steps: int) -> None:
        names, weights = [name for name, _ in self.VERBS], [weight for _, weight in self.VERBS]
        try:
            for name in ["append_much", *self.chance.choices(names, weights, k=steps)]:
                self.steps.append(name)
                getattr(self, name)()
                self.check(some=True)
            self.end_readings()
            self.check(some=False)
        except BaseException as error:
            error.add_note(
                f"seed {self.seed} after {self.steps}; archive: {self.model.targets}, in use "
                f"{self.model.used}, log from {self.model.log_start}, floors {self.model.floors}"
            )
            raise
        finally:
            self.store.close()

    # The comparison.

    def same(self, name: str, found: Any, wanted: Any) -> None:
        if found != wanted:
            raise DifferenceError(f"{name}: {short(found)} and not {short(wanted)}")

    def check(self, *, some: bool) -> None:
        """Compares answers: a random part of them after a verb, and all of them at the end."""
        # So that the background has nothing left to do.
        self.expire()
        if some:
            self.check_with(self.store, self.chance.sample(self.CHECKS, 2))
            if self.chance.random() < 0.2:
                with open_for_test(self.home, "r", clock=self.clock, options=OPTIONS) as reader:
                    self.check_with(reader, self.chance.sample(self.CHECKS, 2))
            return
        self.check_with(self.store, self.CHECKS)
        with open_for_test(self.home, "r", clock=self.clock, options=OPTIONS) as reader:
            self.check_with(reader, self.chance.sample(self.CHECKS, 4))
        asyncio.run(self.check_asyncio())
        if self.outer:
            self.check_command_line()
            self.check_spark()

    def check_with(self, store: mqstore.Store, checks: Iterable[str]) -> None:
        wanted = {topic: self.model.visible(topic) for topic in sorted(self.model.topics)}
        for name in checks:
            for topic, messages in wanted.items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", mqstore.StoreWarning)
                    try:
                        getattr(self, name)(store, topic, messages)
                    except BaseException as error:
                        error.add_note(f"{name} of {topic} in mode {store.mode}")
                        raise

    CHECKS = (
        "check_topic",
        "check_queues",
        "check_part",
        "check_times",
        "check_newest",
        "check_lookup",
        "check_single",
        "check_scan",
        "check_consumer",
        "check_failures",
    )

    @property
    def on_damage(self) -> Any:
        """Missing segments are an error, which has a test of its own."""
        return "skip" if self.model.has_gap else "raise"

    def check_topic(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        found = list(store.read(topic, on_damage=self.on_damage))
        self.same("read", by_place(found), by_place(wanted))
        for queue_id in range(QUEUES):
            self.same(f"order of queue {queue_id}", of_queue(found, queue_id), of_queue(wanted, queue_id))
        found = list(store.read(topic, filter=TAG, on_damage=self.on_damage))
        self.same("read with a filter", by_place(found), [one for one in wanted if one.tags == TAG])

    def check_queues(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        for queue_id in range(QUEUES):
            own = of_queue(wanted, queue_id)
            found = list(store.read(topic, queue_id, on_damage=self.on_damage))
            self.same(f"read of queue {queue_id}", found, own)

    def check_part(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        for queue_id in range(QUEUES):
            own = of_queue(wanted, queue_id)
            [end] = [one.max_offset for one in store.queues(topic) if one.queue_id == queue_id]
            first = own[0].queue_offset if own else end
            start, stop = sorted(self.chance.randint(first, end) for _ in range(2))
            found = list(store.read(topic, queue_id, start, stop, on_damage=self.on_damage))
            self.same(f"{start} to {stop}", found, [one for one in own if start <= one.queue_offset < stop])
            for wrong in {-1, first - 1, self.chance.randint(-1, max(first - 1, -1))} if first else {-1}:
                for read in (store.read, store.message_at):
                    try:
                        read(topic, queue_id, wrong)
                    except mqstore.OffsetOutOfRangeError as error:
                        self.same(f"bounds of the error at {wrong}", (error.min_offset, error.max_offset), (first, end))
                    else:
                        raise DifferenceError(
                            f"offset {wrong} of queue {queue_id} is accepted, and the first is {first}"
                        )
            if own:
                one = self.chance.choice(own)
                self.same("message_at", store.message_at(topic, queue_id, one.queue_offset), one)
                several = [self.chance.choice(own) for _ in range(3)]
                found = store.messages_at(topic, queue_id, [one.queue_offset for one in several])
                self.same("messages_at", found, several)

    def check_times(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        times = sorted({one.store_timestamp for one in wanted}) or [int(self.clock.timestamp)]
        asked = {
            0,
            times[0] - 1,
            times[-1] + 1,
            *(self.chance.choice(times) + self.chance.choice((0, 0, 1)) for _ in range(3)),
        }
        # At the seam.
        for one, other in pairwise(wanted):
            if one.commit_log_offset < self.model.log_start <= other.commit_log_offset:
                asked |= {one.store_timestamp, one.store_timestamp + 1, other.store_timestamp}
        for time_ms in sorted(asked):
            for queue_id in range(QUEUES):
                own = of_queue(wanted, queue_id)
                [end] = [one.max_offset for one in store.queues(topic) if one.queue_id == queue_id]
                later = [one.queue_offset for one in own if one.store_timestamp >= time_ms]
                before = [one.queue_offset for one in own if one.store_timestamp <= time_ms]
                found = store.offset_for_time(topic, queue_id, time_ms)
                self.same(f"lower {time_ms} of queue {queue_id}", found, later[0] if later else end)
                found = store.offset_for_time(topic, queue_id, time_ms, boundary="upper")
                first = own[0].queue_offset if own else end
                self.same(f"upper {time_ms} of queue {queue_id}", found, before[-1] if before else first)
        time_ms = self.chance.choice(times)
        moment = time_of(time_ms)
        found = list(store.read(topic, start=moment, on_damage=self.on_damage))
        self.same("read from a time", by_place(found), [one for one in wanted if one.store_timestamp >= time_ms])
        found = list(store.read(topic, end=moment, on_damage=self.on_damage))
        self.same("read to a time", by_place(found), [one for one in wanted if one.store_timestamp < time_ms])

    def check_newest(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        self.same("count", store.count(topic), len(wanted))
        newest = sorted(wanted, key=lambda one: (one.store_timestamp, one.commit_log_offset))
        for most in (1, self.chance.randint(2, 60), len(wanted) + 1):
            found = store.tail(topic, most, on_damage=self.on_damage)
            self.same(f"tail of {most}", found, newest[-most:])
        own = of_queue(newest, 0)
        found = store.tail(topic, 20, queue_id=0, on_damage=self.on_damage)
        self.same("tail of a queue", found, own[-20:])
        found = store.tail(topic, 9, filter=TAG, on_damage=self.on_damage)
        self.same("tail with a filter", found, [one for one in newest if one.tags == TAG][-9:])

    def check_lookup(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        self.same("look-up", list(store.lookup(topic, "all")), wanted)
        found = list(store.lookup(topic, "all", newest_first=True, limit=7))
        self.same("newest", found, wanted[::-1][:7])
        if wanted:
            one = self.chance.choice(wanted)
            self.same("look-up of one", list(store.lookup(topic, one.keys[0])), [one])
        self.same("look-up of none", list(store.lookup(topic, "none")), [])

    def check_single(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        for one in self.chance.sample(wanted, min(3, len(wanted))):
            self.same("get", store.get(one.message_id), one)
            self.same("get by unique id", store.get(one.unique_id or ""), one)
            self.same("get_at", store.get_at(one.commit_log_offset), one)
        self.same("get of none", store.get("0" * 32), None)
        hidden = [one for one in self.model.messages if one.topic == topic and not self.model.counts(one)]
        for one in self.chance.sample(hidden, min(2, len(hidden))):
            self.same("get of a hidden message", store.get(one.unique_id or ""), None)
            with contextlib.suppress(mqstore.CorruptionError):
                raise DifferenceError(f"get_at gives {short(store.get_at(one.commit_log_offset))}")

    def check_scan(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        columns = ["commit_log_offset", "queue_id", "queue_offset", "body"]

        def rows(messages: Iterable[Message]) -> list[dict[str, Any]]:
            return [{name: getattr(one, name) for name in columns} for one in messages]

        found = store.scan(topics=topic, columns=columns, on_damage=self.on_damage).to_arrow().to_pylist()
        self.same(
            "scan of a topic", [one["commit_log_offset"] for one in found], [one.commit_log_offset for one in wanted]
        )
        self.same("scan of a topic", found, rows(wanted))
        if topic == min(self.model.topics):
            found = store.scan(columns=["topic", *columns], on_damage=self.on_damage).to_arrow().to_pylist()
            found = [{name: one[name] for name in columns} for one in found if one["topic"] in TOPICS]
            self.same("scan", found, rows(self.model.visible()))

    def check_consumer(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        if store.mode == "r":
            return
        self.groups += 1
        with store.consumer(f"group-{self.groups}", topic, on_damage=self.on_damage) as consumer:
            found: list[Message] = []
            while some := consumer.poll(30, timeout=0):
                found += some
            for queue_id in range(QUEUES):
                self.same(f"consumer of queue {queue_id}", of_queue(found, queue_id), of_queue(wanted, queue_id))
            if wanted:
                one = self.chance.choice(wanted)
                consumer.seek(topic, one.queue_id, one.queue_offset)
                self.same("position", consumer.position(topic, one.queue_id), one.queue_offset)
                consumer.seek_to_time(one.store_timestamp)
                same = [each for each in of_queue(wanted, one.queue_id) if each.store_timestamp >= one.store_timestamp]
                self.same("position by time", consumer.position(topic, one.queue_id), same[0].queue_offset)

    def check_failures(self, store: mqstore.Store, topic: str, wanted: list[Message]) -> None:
        """After an error an iterator repeats from the same place, or stays failed."""
        queue_id = self.chance.randrange(QUEUES)
        damage = self.on_damage
        reads: list[tuple[Callable[[], Iterator[Any]], list[Any]]] = [
            (lambda: store.read(topic, on_damage=damage), by_place(wanted)),
            (lambda: store.read(topic, queue_id, on_damage=damage), of_queue(wanted, queue_id)),
            (lambda: store.lookup(topic, "all"), wanted),
            (lambda: store.lookup(topic, "all", newest_first=True), wanted[::-1]),
        ]
        offsets = [one.commit_log_offset for one in wanted]
        reads.append((lambda: log_offsets(store, topic, damage), offsets))
        for read, answer in reads:
            with failing_at(self.chance.choice((0, 1, 2, 3, 5, 8))) as failed:
                found: list[Any] = []
                try:
                    messages = read()
                except mqstore.StoreIOError:
                    continue
                for _ in range(30):
                    try:
                        found += messages
                        break
                    except mqstore.StoreIOError:
                        continue
                else:
                    # It stays failed.
                    assert failed
                    self.same(
                        "messages before the error", by_place(found), [one for one in by_place(answer) if one in found]
                    )
                    continue
            self.same("after an error", by_place(found), by_place(answer))

    async def check_asyncio(self) -> None:
        async with mqstore.aio.wrap(self.store) as store:
            for topic in sorted(self.model.topics):
                wanted = self.model.visible(topic)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", mqstore.StoreWarning)
                    found = [one async for one in store.read(topic, on_damage=self.on_damage)]
                    self.same("read with asyncio", by_place(found), by_place(wanted))
                    found = [one async for one in store.lookup(topic, "all")]
                    self.same("look-up with asyncio", found, wanted)
                    for queue_id in range(QUEUES):
                        found = [one async for one in store.read(topic, queue_id, on_damage=self.on_damage)]
                        self.same("queue with asyncio", found, of_queue(wanted, queue_id))
                    table = await store.scan(
                        topics=topic, columns=["commit_log_offset"], on_damage=self.on_damage
                    ).to_arrow()
                    offsets = [one.commit_log_offset for one in wanted]
                    self.same("scan with asyncio", table.column(0).to_pylist(), offsets)
                    self.groups += 1
                    async with store.consumer(f"group-{self.groups}", topic, on_damage=self.on_damage) as consumer:
                        found = []
                        while some := await consumer.poll(50, timeout=0):
                            found += some
                        self.same("consumer of asyncio", by_place(found), by_place(wanted))

    def check_command_line(self) -> None:
        for topic in sorted(self.model.topics):
            wanted = self.model.visible(topic)
            offsets = [one.commit_log_offset for one in wanted]
            found = printed("cat", self.home, "--topic", topic, "--on-damage", self.on_damage)
            self.same("cat", sorted(one["commit_log_offset"] for one in found), offsets)
            found = printed("lookup", self.home, topic, "all")
            self.same("lookup", [one["commit_log_offset"] for one in found], offsets)
            if wanted:
                one = self.chance.choice(wanted)
                [row] = printed("get", self.home, one.unique_id)
                self.same("get", row["commit_log_offset"], one.commit_log_offset)

    def check_spark(self) -> None:
        """The tasks of a batch read, without a session of Spark."""
        from mqstore.spark._options import read_options
        from mqstore.spark._read import planning, rows

        for topic in sorted(self.model.topics):
            given = {"path": str(self.home), "topic": topic}
            options = read_options({**given, "failOnDataLoss": str(not self.model.has_gap).lower()})
            options["output"] = ["commit_log_offset"]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mqstore.StoreWarning)
                plan = planning.planned(str(self.home), None, options, lambda _: False)
                found = [
                    offset
                    for part in plan.parts
                    for batch in rows.rows(options, part.plain())
                    for offset in batch.column(0).to_pylist()
                ]
            self.same("Spark", sorted(found), [one.commit_log_offset for one in self.model.visible(topic)])


def time_of(time_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)


def of_queue(messages: Iterable[Message], queue_id: int) -> list[Message]:
    return [one for one in messages if one.queue_id == queue_id]


def by_place(messages: Iterable[Any]) -> list[Any]:
    return sorted(messages, key=lambda one: one if isinstance(one, int) else one.commit_log_offset)


def log_offsets(store: mqstore.Store, topic: str, on_damage: Any) -> Iterator[int]:
    batches = iter(store.scan(topics=topic, columns=["commit_log_offset"], batch_size=10, on_damage=on_damage))
    return Rows(batches)


class Rows(Iterator[int]):
    """The log offsets of the rows of a scan."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches
        self.ready: list[int] = []

    def __next__(self) -> int:
        while not self.ready:
            self.ready = next(self.batches).column(0).to_pylist()
        return self.ready.pop(0)


@contextlib.contextmanager
def failing_at(number: int) -> Iterator[list[bool]]:
    """Lets one request to an archive in a folder fail."""
    failed: list[bool] = []
    left = number
    read = Directory.read

    def reading(self: Directory, ranges: Any) -> Any:
        nonlocal left
        left -= 1
        if left == -1:
            failed.append(True)
            raise RequestFailure("other", "v1/x", "as the test wants")
        return read(self, ranges)

    Directory.read = reading  # type: ignore[method-assign]
    try:
        with python_transport():
            yield failed
    finally:
        Directory.read = read  # type: ignore[method-assign]


def printed(*arguments: object) -> list[dict[str, Any]]:
    """Returns the lines that the command line prints, in this process."""
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        status = run([*map(str, arguments), "--format", "jsonl"])
    if status != 0:
        raise DifferenceError(f"{arguments}: exit status {status}: {errors.getvalue()}")
    out.flush()
    out.seek(0)
    return [json.loads(line) for line in out]


def short(value: Any) -> str:
    """Messages by topic, queue, offset and log offset."""
    if isinstance(value, mqstore.StoredMessage):
        return f"{value.topic}/{value.queue_id}@{value.queue_offset}({value.commit_log_offset})"
    if isinstance(value, list):
        shown = [short(one) for one in value]
        return f"{len(shown)}[{', '.join(shown if len(shown) < 12 else [*shown[:5], '...', *shown[-5:]])}]"
    return repr(value)[:200]
