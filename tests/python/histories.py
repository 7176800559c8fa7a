"""Random sequences of public verbs on one store, and a model of the messages that a user must see after each verb.

Every message has a body of its own. The model knows the fate of each body: visible in its topic, waiting, or gone.
After each verb the store must show exactly the visible bodies, each once.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mqstore
from conftest import open_deleted_files, until
from mqstore.testing import ManualClock
from mqstore.testing import open as open_for_test

OPTIONS: dict[str, Any] = {
    "segment_size": 1 << 20,
    "index_slots": 100,
    "index_entries": 4000,
    "queue_file_entries": 1000,
}
SEGMENT_BYTES = OPTIONS["segment_size"]
BEGIN = 4_102_444_800_000
"""The year 2100, in epoch milliseconds: an import with the clock of the machine must not find a message due."""
LEVELS = (1, 5, 10, 30)
"""Seconds of the first delay levels."""
TIMEOUT = 10.0
"""Seconds of real time for work that the store does in the background."""


@dataclass
class Sent:
    """One message and its fate."""

    topic: str
    fate: str
    """`visible`, `waiting` or `gone`."""
    due: int = 0
    """Time by the clock at which it stops waiting, in milliseconds."""
    id: str = ""
    orphan: bool = False
    """Whether the topic was deleted while it waited: it is dropped when it is due."""


@dataclass
class Model:
    """What a user must see."""

    topics: set[str] = field(default_factory=set)
    sent: dict[bytes, Sent] = field(default_factory=dict)
    prices: dict[str, bytes] = field(default_factory=dict)
    """Newest value of each key of the table."""
    removed: set[int] = field(default_factory=set)
    """Offsets of the table's queue that a compaction removed."""
    done: set[bytes] = field(default_factory=set)
    """Acknowledged jobs."""
    polled: set[bytes] = field(default_factory=set)
    """Messages whose offsets the group has committed."""

    def visible(self, topic: str) -> set[bytes]:
        return {body for body, one in self.sent.items() if one.topic == topic and one.fate == "visible"}

    def waiting(self) -> list[Sent]:
        return [one for one in self.sent.values() if one.fate == "waiting"]

    def pass_time(self, now: int) -> None:
        for one in self.waiting():
            if one.due <= now:
                one.fate = "visible" if one.topic in self.topics and not one.orphan else "gone"


class History:
    """A store, its model, and the verbs that change both."""

    def __init__(self, home: Path, seed: int) -> None:
        self.home = home
        self.folders = (home / "commitlog", home / "commitlog-2")
        self.chance = random.Random(seed)
        self.clock = ManualClock(BEGIN)
        self.now = 0
        """Milliseconds since the begin, as whole numbers: a message is due at the millisecond."""
        self.model = Model()
        self.steps: list[str] = []
        self.damaged: list[tuple[Path, bytes]] = []
        self.store = self.opened("create")
        for topic, queues in (("orders", 2), ("jobs", 2), ("shop", 2)):
            self.create(topic, queues)
        self.store.create_topic("prices", queues=1, attributes={"cleanup.policy": "COMPACTION"})

    def opened(self, mode: Any = "rw", **options: Any) -> mqstore.Store:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mqstore.StoreWarning)
            options |= {"clock": self.clock, "commit_log_paths": self.folders, **OPTIONS}
            return open_for_test(self.home, mode, **options)

    def create(self, topic: str, queues: int) -> None:
        self.store.create_topic(topic, queues=queues)
        self.model.topics.add(topic)

    def body(self) -> bytes:
        return b"message %d" % len(self.model.sent)

    def any_topic(self) -> str:
        return self.chance.choice(sorted(self.model.topics))

    # The verbs. Each changes store and model.

    def append(self) -> None:
        topic = self.any_topic()
        for _ in range(self.chance.randint(1, 5)):
            body = self.body()
            self.store.append(topic, body, keys=[f"key-{len(body)}"])
            self.model.sent[body] = Sent(topic, "visible")

    def delay(self) -> None:
        body, topic, seconds = self.body(), self.any_topic(), self.chance.randint(1, 200)
        result = self.store.append(topic, body, delay=seconds)
        self.model.sent[body] = Sent(topic, "waiting", self.now + seconds * 1000, result.unique_id)

    def delay_level(self) -> None:
        """Delays a message by a level, and waits until it is delivered."""
        body, topic, level = self.body(), self.any_topic(), self.chance.randint(1, 4)
        self.store.append(topic, body, delay_level=level)
        # The delay begins at the store time, which does not go back with the clock.
        (record,) = self.store.tail("SCHEDULE_TOPIC_XXXX", 1)
        due = record.store_timestamp - BEGIN + LEVELS[level - 1] * 1000
        self.model.sent[body] = Sent(topic, "waiting", due)
        self.move((due - self.now) / 1000 + 1)

    def cancel(self) -> None:
        waiting = [one for one in self.model.waiting() if not one.orphan]
        if waiting:
            one = self.chance.choice(waiting)
            assert self.store.cancel(one.id)
            one.fate = "gone"
            assert not self.store.cancel(one.id)

    def transaction(self) -> None:
        transaction, topics = self.store.transaction("group"), ("orders", "jobs")
        bodies = [b"message %d" % (len(self.model.sent) + number) for number in range(2)]
        for topic, body in zip(topics, bodies, strict=True):
            transaction.append(topic, body)
        commits = self.chance.random() < 0.6
        (transaction.commit if commits else transaction.rollback)()
        for topic, body in zip(topics, bodies, strict=True):
            self.model.sent[body] = Sent(topic, "visible" if commits else "gone")

    def delete_or_create(self) -> None:
        if "shop" not in self.model.topics:
            self.create("shop", self.chance.randint(1, 3))
            return
        self.store.delete_topic("shop")
        self.model.topics.remove("shop")
        for one in self.model.sent.values():
            if one.topic == "shop" and one.fate == "visible":
                one.fate = "gone"
            # A new topic has none of the old messages.
            one.orphan |= one.topic == "shop"

    def change_queues(self) -> None:
        queues = self.chance.randint(1, 4)
        self.store.update_topic("orders", read_queues=queues, write_queues=queues)

    def poll(self) -> None:
        with self.store.consumer("readers", ["orders"]) as consumer:
            for message in consumer.poll(self.chance.randint(1, 6), timeout=0):
                assert message.body not in self.model.polled, "a message came twice"
                self.model.polled.add(message.body)
            consumer.commit()

    def work(self) -> None:
        queue = self.store.work_queue("jobs", group="workers", visibility_timeout=100_000)
        for _ in range(self.chance.randint(1, 4)):
            try:
                job = queue.get(block=False)
            except mqstore.Empty:
                break
            assert job.body not in self.model.done, "a finished job came again"
            queue.ack(job)
            self.model.done.add(job.body)

    def price(self) -> None:
        key, body = f"key-{self.chance.randrange(5)}", b"price %d" % self.chance.randrange(1 << 30)
        self.store.append("prices", body, queue_id=0, keys=[key])
        self.model.prices[key] = body

    def remove_price(self) -> None:
        key = f"key-{self.chance.randrange(5)}"
        self.store.append("prices", b"", queue_id=0, keys=[key])
        self.model.prices.pop(key, None)

    def compact(self) -> None:
        self.store.compact("prices", force=self.chance.random() < 0.5)

    def expire(self) -> None:
        assert self.store.expire().segments == 0

    def wait(self) -> None:
        self.move(self.chance.uniform(0.5, 300))

    def wait_for_days(self) -> None:
        """Waits longer than a tombstone lives."""
        self.move(self.chance.uniform(90_000, 200_000))

    def set_back(self) -> None:
        self.move(-self.chance.uniform(0.5, 300))

    def move(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now = self.clock.timestamp - BEGIN
        self.model.pass_time(self.now)

    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    def kill(self) -> None:
        """Continues on a copy of the directory, as after a kill of the process."""
        copy = self.home.with_name("killed")
        while not self.copy_at_rest(copy):
            shutil.rmtree(copy, ignore_errors=True)
            time.sleep(0.005)
        self.store.close()
        shutil.rmtree(self.home)
        copy.rename(self.home)
        self.store = self.opened()

    def copy_at_rest(self, copy: Path) -> bool:
        """Copies the directory, and tells whether the background changed nothing meanwhile.

        Otherwise the copy can have the second of two changes without the first, which no kill leaves.
        """

        def state() -> dict[Path, tuple[int, int]]:
            stats = [(path, path.stat()) for path in self.home.rglob("*")]
            return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats}

        try:
            before = state()
            # The system counts the times of changes in steps of some milliseconds.
            if max(changed for changed, _ in before.values()) > time.time_ns() - 20_000_000:
                return False
            shutil.copytree(self.home, copy)
            return state() == before
        except (shutil.Error, FileNotFoundError):
            return False

    def rebuild(self) -> None:
        self.store.close()
        mqstore.rebuild(self.home)
        self.store = self.opened()

    def repair(self) -> None:
        self.store.close()
        mqstore.repair(self.home, in_place=True)
        self.store = self.opened()

    def damage_a_config_file(self) -> None:
        self.store.close()
        names = sorted(path for path in (self.home / "config").iterdir() if path.suffix == ".json")
        damaged = self.chance.choice(names)
        content = damaged.read_bytes()
        left = content[: self.chance.randrange(len(content))]
        damaged.write_bytes(left)
        # The file may still be as an earlier damage left it.
        self.damaged = [one for one in self.damaged if one != (damaged, content)]
        self.damaged.append((damaged, left))
        self.store = self.opened()
        self.check_copies()

    def lose_delay_positions(self) -> None:
        """Removes the positions of the delay levels: only the log shows which messages were delivered."""
        self.store.close()
        for lost in ("config/delayOffset.json", "config/delayOffset.json.bak", "mqstore/delays"):
            (self.home / lost).unlink(missing_ok=True)
        self.store = self.opened()

    def add_a_twin(self) -> None:
        """Puts an empty segment into the other folder of the log, under the name of a segment with messages."""
        self.store.close()
        segments = [path for folder in self.folders for path in folder.glob("0*")]
        if not segments:  # Before the first message.
            self.store = self.opened()
            return
        segment = self.chance.choice(segments)
        for folder in self.folders:
            if not (folder / segment.name).exists():
                (folder / segment.name).write_bytes(bytes(SEGMENT_BYTES))
        with self.opened("r") as reader:
            self.check_messages(reader)
        mqstore.repair(self.home, in_place=True)
        self.store = self.opened()

    def move_to_another_store(self) -> None:
        """Exports everything and checks that an import into an empty store shows the same."""
        name = self.home.with_name("exported.jsonl")
        other = self.home.with_name("imported")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mqstore.StoreWarning)
            mqstore.export(self.home, name)
        mqstore.open(other, "create", **OPTIONS).close()
        mqstore.import_(other, name)
        for _ in range(2):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", mqstore.StoreWarning)
                store = open_for_test(other, "rw", clock=self.clock, **OPTIONS)
            self.check_messages(store, moved=True)
            store.close()
        name.unlink()
        shutil.rmtree(other)

    def fail_over(self) -> None:
        """The standby of the store takes its place."""
        self.store.close()
        standby = self.home.with_name("standby")
        master = mqstore.Master(listen="127.0.0.1:0", metadata_interval=0.1)
        self.store = self.opened(replication=master)
        with mqstore.follow(str(self.store.replication_address()), standby, protocol="mqstore") as follower:
            until(lambda: follower.status().metadata_end == self.store.stats().log_max_offset)
        self.store.close()
        assert mqstore.promote(standby) is not None
        shutil.rmtree(self.home)
        standby.rename(self.home)
        self.folders[1].mkdir()
        # It has no compaction files, so it still has what a compaction had removed.
        self.model.removed.clear()
        self.damaged.clear()
        self.store = self.opened()

    VERBS: tuple[tuple[str, int], ...] = (
        ("append", 8),
        ("delay", 6),
        ("delay_level", 2),
        ("cancel", 2),
        ("transaction", 3),
        ("delete_or_create", 2),
        ("change_queues", 1),
        ("poll", 4),
        ("work", 4),
        ("price", 3),
        ("remove_price", 1),
        ("compact", 2),
        ("expire", 1),
        ("wait", 5),
        ("wait_for_days", 1),
        ("set_back", 1),
        ("reopen", 2),
        ("kill", 2),
        ("rebuild", 1),
        ("repair", 1),
        ("damage_a_config_file", 1),
        ("lose_delay_positions", 1),
        ("add_a_twin", 1),
        ("move_to_another_store", 1),
        ("fail_over", 2),
    )

    def run(self, steps: int, verbs: tuple[tuple[str, int], ...] = VERBS) -> None:
        names, weights = [name for name, _ in verbs], [weight for _, weight in verbs]
        try:
            for name in self.chance.choices(names, weights, k=steps):
                self.steps.append(name)
                act: Callable[[], None] = getattr(self, name)
                act()
                self.check_messages(self.store)
                self.check_copies()
            self.drain()
        finally:
            self.store.close()

    def drain(self) -> None:
        """Every job and every message of the group comes once more at most, until all have come."""
        # A job is not leased before its due time, also if it was delivered before the clock was set back.
        self.move(3_000)
        self.check_messages(self.store)
        deadline = time.monotonic() + TIMEOUT
        while self.model.done != self.model.visible("jobs") or self.model.polled != self.model.visible("orders"):
            assert time.monotonic() < deadline, (
                self.model.visible("jobs") - self.model.done,
                self.model.visible("orders") - self.model.polled,
            )
            self.work()
            self.poll()

    def expire_all(self) -> None:
        """Deletes all segments but the newest, and checks that their bytes are free."""
        self.store.create_topic("filler", queues=1)
        for _ in range(3 * SEGMENT_BYTES // 1000):
            self.store.append("filler", bytes(900))
        self.store.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mqstore.StoreWarning)
            self.store = open_for_test(self.home, "rw", clock=self.clock, retention_bytes=SEGMENT_BYTES, **OPTIONS)
        for topic in self.model.topics:
            # The background may expire messages during the read.
            with contextlib.suppress(mqstore.OffsetOutOfRangeError):
                self.bodies(self.store, topic)
        deadline, kept = time.monotonic() + TIMEOUT, ()
        while self.store.stats().log_min_offset == 0:
            assert time.monotonic() < deadline, f"nothing was deleted: {kept}, {self.store.stats()}"
            # Messages of the table that no compaction has read keep a segment, also while the background reads them.
            kept = self.store.expire(compact=True).kept
            time.sleep(0.01)
        deadline = time.monotonic() + TIMEOUT
        while deleted := open_deleted_files(self.home):
            assert time.monotonic() < deadline, f"{deleted} stay open"
            time.sleep(0.01)
        for topic in self.model.topics:
            assert self.bodies(self.store, topic) <= Counter(self.model.visible(topic))

    @staticmethod
    def bodies(store: mqstore.Store, topic: str) -> Counter[bytes]:
        return Counter(message.body for queue in store.queues(topic) for message in store.read(topic, queue.queue_id))

    def check_copies(self) -> None:
        """The bytes of each damaged configuration file are in the file itself, or in a copy."""
        copies = [path for path in (self.home / "mqstore" / "lost+found").rglob("*") if path.is_file()]
        for damaged, left in self.damaged:
            kept = (path.read_bytes() for path in (damaged, *copies) if path.exists())
            assert not left or left in kept, f"no copy of the damaged {damaged.name} after {self.steps}"

    def check_messages(self, store: mqstore.Store, *, moved: bool = False) -> None:
        """The store shows exactly the visible messages, each once.

        An export leaves out messages that wait for a deleted topic, also if it was created again.
        """
        deadline = time.monotonic() + TIMEOUT
        while True:
            problem = self.difference(store, moved)
            if problem is None:
                return
            assert time.monotonic() < deadline, f"{problem} after {self.steps}"
            time.sleep(0.01)

    def difference(self, store: mqstore.Store, moved: bool) -> str | None:
        """Returns what the store shows too much or not at all."""
        waiting = sum(not moved or not one.orphan for one in self.model.waiting())
        if store.delays().pending != waiting:
            return f"{store.delays().pending} messages wait, not {waiting}"
        for topic in sorted(self.model.topics):
            found = self.bodies(store, topic)
            wanted = Counter(self.model.visible(topic))
            if found != wanted:
                return f"{topic}: missing {wanted - found}, too many {found - wanted}"
        newest = {key: message.body for key, message in store.table("prices").items()}
        if newest != self.model.prices:
            return f"the table has {newest}, not {self.model.prices}"
        if not moved:
            offsets = {message.queue_offset for message in store.read("prices", 0)}
            if offsets & self.model.removed:
                return f"the removed records {offsets & self.model.removed} of the table are back"
            (queue,) = store.queues("prices")
            self.model.removed |= set(range(queue.max_offset)) - offsets
        return None
