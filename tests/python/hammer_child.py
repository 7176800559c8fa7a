"""The processes of ``test_processes``: one writes a store, the others watch it from outside.

    python hammer_child.py write HOME BOARD ROLE_JSON
    python hammer_child.py follow|scan HOME BOARD ROLE_JSON

The processes share their progress through the board, a small mapped file outside of the store. It contains flags, and
for each thread of the writer the numbers of its last started and its last acknowledged message. A message has its
thread and number in a property, and both determine its body, so a watcher knows every byte that it must find. The
last line of the output is a JSON object of counts.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mqstore

THREADS = 8
QUEUES = 3
TOPIC = "t"
LARGEST = 64 << 10
# Any two parts of it differ, so that a body of another message is noticed.
BLOCK = random.Random(1).randbytes(LARGEST + 4096)
FLAGS = ("ready", "stop appending", "appended all", "last round", "close")
LIVE_PUBLISHED, LIVE_DURABLE = 72, 136


def body_of(thread: int, number: int) -> bytes:
    """The body of message `number` of a writer's thread: 1 byte to 64 KiB."""
    mixed = (number * 0x9E3779B97F4A7C15 + thread * 0xC2B2AE3D27D4EB4F) & 0xFFFFFFFFFFFFFFFF
    mixed ^= mixed >> 29
    kind, start, size = mixed & 31, (mixed >> 5) & 4095, mixed >> 17
    most = LARGEST if kind == 0 else 4096 if kind < 6 else 256
    return BLOCK[start : start + 1 + size % most]


class Board:
    """The mapped file. Each number in it has one writer."""

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            # As words, so that each write is atomic.
            self.words = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")

    @staticmethod
    def make(path: Path) -> Board:
        path.write_bytes(bytes(4096))
        return Board(path)

    def _get(self, slot: int) -> int:
        return self.words[slot]

    def _set(self, slot: int, value: int) -> None:
        self.words[slot] = value

    def say(self, word: str) -> None:
        """Raises a flag: one of `FLAGS`, in this order."""
        self._set(FLAGS.index(word), 1)

    def said(self, word: str) -> bool:
        return self._get(FLAGS.index(word)) != 0

    def begin(self, thread: int, number: int) -> None:
        self._set(8 + thread, number)

    def acknowledge(self, thread: int, number: int) -> None:
        self._set(64 + thread, number)

    def begun(self, thread: int) -> int:
        return self._get(8 + thread)

    def acknowledged(self) -> list[int]:
        return [self._get(64 + thread) for thread in range(THREADS)]


# ---------------------------------------------------------------------------------------------------------------------
# The writer


def append_until_stopped(store: mqstore.Store, board: Board, thread: int, limit: int, failures: list[str]) -> None:
    chance = random.Random(thread)
    number, written = 0, 0
    try:
        while not board.said("stop appending") and written < limit:
            count = 1 if chance.random() < 0.9 else chance.randrange(2, 12)
            numbers = range(number + 1, number + 1 + count)
            messages = [
                mqstore.Message(body_of(thread, each), keys=f"k{each % 97}", properties={"n": f"{thread}.{each}"})
                for each in numbers
            ]
            number += count
            board.begin(thread, number)
            # Threads share the queues. The store's lock decides the order in a queue, not the caller.
            with contextlib.suppress(mqstore.StoreBusyError):
                results = store.append_many(TOPIC, messages, queue_id=number % QUEUES)
                board.acknowledge(thread, number)
                written += sum(result.size for result in results)
                continue
            # Refused before anything was written, so the numbers are sent again.
            number -= count
            failures.append("busy")
    except BaseException as error:
        failures.append(f"thread {thread}: {error!r}")
        raise


def expire_until_stopped(store: mqstore.Store, board: Board, failures: list[str]) -> None:
    try:
        while not board.said("appended all"):
            store.expire(dry_run=False)
            time.sleep(0.05)
    except BaseException as error:
        failures.append(f"expire: {error!r}")
        raise


def write(home: str, board: Board, role: dict[str, Any]) -> dict[str, int]:
    failures: list[str] = []
    threads = role["threads"]
    options = role["options"]
    options["advanced"] = mqstore.BrokerOptions(**options.get("advanced", {}))
    with mqstore.open(home, "create", **options) as store:
        store.create_topic(TOPIC, queues=QUEUES)
        board.say("ready")
        limit = role["bytes"] // threads
        running = [
            threading.Thread(target=append_until_stopped, args=(store, board, thread, limit, failures))
            for thread in range(threads)
        ]
        for thread in running:
            thread.start()
        if role["retention"]:
            threading.Thread(target=expire_until_stopped, args=(store, board, failures), daemon=True).start()
        for thread in running:
            thread.join()
        # In every mode, all processes see durable messages.
        store.flush()
        board.say("appended all")
        while not board.said("close"):
            time.sleep(0.01)
        log_end = store.stats().log_max_offset
    unexpected = [each for each in failures if each != "busy"]
    if unexpected:
        sys.exit("\n".join(unexpected))
    return {"appended": sum(board.acknowledged()), "log_bytes": log_end, "busy": len(failures)}


# ---------------------------------------------------------------------------------------------------------------------
# The watchers


class Watcher:
    """Checks each message that another process has appended."""

    def __init__(self, home: str, board: Board, role: dict[str, Any]) -> None:
        self.home = Path(home)
        self.board = board
        self.role = role
        self.counts: Counter[str] = Counter()
        # The watcher reads the page through one descriptor, because the writer does not change.
        self.live = (self.home / "mqstore" / "live").open("rb", buffering=0)
        self.live_at = LIVE_DURABLE if role["durable_only"] else LIVE_PUBLISHED

    def published(self) -> int:
        self.live.seek(self.live_at)
        return int.from_bytes(self.live.read(8), "big")

    def check(self, message: mqstore.StoredMessage) -> tuple[int, int]:
        thread, number = map(int, message.properties["n"].split("."))
        where = f"{message.topic}/{message.queue_id}/{message.queue_offset} at {message.commit_log_offset}"
        assert message.body == body_of(thread, number), f"{where}: message {thread}.{number} is not whole"
        assert number <= self.board.begun(thread), f"{where}: message {thread}.{number} was never sent"
        end = message.commit_log_offset + message.size
        if end > self.checked_to:
            self.checked_to = self.published()
            assert end <= self.checked_to, f"{where}: ends at {end}, published is {self.checked_to}"
        self.counts["checked"] += 1
        return thread, number

    checked_to = 0


class Follower(Watcher):
    """Reads every queue to its end, again and again, through one store that stays open."""

    def run(self) -> dict[str, int]:
        self.next = [0] * QUEUES
        self.largest = [0] * QUEUES
        # The newest number of each thread in each queue. A thread's messages keep their order.
        self.newest = [[0] * THREADS for _ in range(QUEUES)]
        self.seen = 0
        with mqstore.open(self.home) as store:
            while True:
                last_round = self.board.said("last round")
                acknowledged = self.board.acknowledged()
                for queue in range(QUEUES):
                    self.read_queue(store, queue)
                self.counts["rounds"] += 1
                if self.role["acknowledged_is_visible"]:
                    for thread, number in enumerate(acknowledged):
                        seen = max(queue[thread] for queue in self.newest)
                        assert seen >= number, f"thread {thread}: {number} was acknowledged, {seen} can be read"
                if last_round:
                    self.counts["skipped"] = sum(self.next) - self.seen
                    return dict(self.counts)

    def read_queue(self, store: mqstore.Store, queue: int) -> None:
        bounds = store.queues(TOPIC)[queue]
        assert bounds.max_offset >= self.largest[queue], f"queue {queue}: the maximum went back"
        self.largest[queue] = bounds.max_offset
        try:
            found = store.read(TOPIC, queue, self.next[queue])
            self.read_on(found, queue)
        except mqstore.OffsetOutOfRangeError as error:
            # Only retention may remove messages before they are read.
            assert self.role["retention"], str(error)
            assert self.next[queue] < error.min_offset <= error.max_offset, str(error)
            self.next[queue] = error.min_offset
            self.counts["overtaken"] += 1

    def read_on(self, found: Iterator[mqstore.StoredMessage], queue: int) -> None:
        for message in found:
            offset = message.queue_offset
            if self.role["retention"] and offset > self.next[queue]:
                self.counts["overtaken"] += 1
            else:
                assert offset == self.next[queue], f"queue {queue}: {offset} after {self.next[queue] - 1}"
            self.next[queue] = offset + 1
            self.largest[queue] = max(self.largest[queue], offset + 1)
            thread, number = self.check(message)
            newest = self.newest[queue]
            assert number > newest[thread], f"queue {queue}: {thread}.{number} after {newest[thread]}"
            newest[thread] = number
            self.seen += 1


class Scanner(Watcher):
    """Opens the store again for each round. Reads the log, looks keys up, and reads single messages by position."""

    def run(self) -> dict[str, int]:
        chance = random.Random(7)
        end = 0
        while True:
            last_round = self.board.said("last round")
            with mqstore.open(self.home) as store:
                end = self.walk(store, end, whole=last_round and not self.role["retention"])
                self.look_up(store, f"k{chance.randrange(97)}")
            self.counts["rounds"] += 1
            if last_round:
                return dict(self.counts)

    def walk(self, store: mqstore.Store, known: int, *, whole: bool) -> int:
        """Reads the log from the place where the last walk ended, or the whole log. Returns its end."""
        seen: set[tuple[int, int]] = set()
        end = 0 if whole else known
        for message in store._scan_log(None if whole else known):
            assert message.commit_log_offset >= end, "the log goes back"
            end = message.commit_log_offset + message.size
            each = self.check(message)
            assert each not in seen, f"{each} is there twice"
            seen.add(each)
            self.counts["scanned"] += 1
            if self.counts["scanned"] % 61 == 0:
                self.look_again(store, message)
        assert end >= known, "the log ends earlier than before"
        return end

    def look_again(self, store: mqstore.Store, message: mqstore.StoredMessage) -> None:
        try:
            assert store.get_at(message.commit_log_offset).body == message.body
        except mqstore.CorruptionError as error:
            # Only retention may remove messages that were read a moment ago.
            assert self.role["retention"], str(error)
            assert message.commit_log_offset < store.stats().log_min_offset, str(error)
            self.counts["overtaken"] += 1

    def look_up(self, store: mqstore.Store, key: str) -> None:
        last = -1
        for message in store.lookup(TOPIC, key, limit=2000):
            assert key in message.keys
            assert message.commit_log_offset > last, "look-ups go by age"
            last = message.commit_log_offset
            self.check(message)
            self.counts["looked_up"] += 1


def main(verb: str, home: str, board_path: str, role_json: str) -> None:
    board, role = Board(board_path), json.loads(role_json)
    sys.setswitchinterval(0.001)
    if verb == "write":
        counts = write(home, board, role)
    else:
        counts = {"follow": Follower, "scan": Scanner}[verb](home, board, role).run()
    print(json.dumps(counts))


if __name__ == "__main__":
    main(*sys.argv[1:])
