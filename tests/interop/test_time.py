"""Delayed messages, by time or by level, move between mqstore and real brokers and arrive once, when due."""

from __future__ import annotations

import base64
import json
import shutil
import time
from typing import TYPE_CHECKING

import pytest

import mqstore
from mqstore.testing import ManualClock

from .compare import md5
from .driver import JavaBroker, JavaSession
from .java_rows import Spec, message
from .market import GEOMETRY, java_config
from .popping import PoppingClient

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop

HOUR = 3_600_000
BEFORE_A_BROKER_IS_UP = 15_000
CONFIG = java_config({}) | {"timerWheelEnable": "true"}
LEVEL_3 = 10_000
LEVEL_17 = HOUR
LEVEL_18 = 2 * HOUR


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def deletion(version: str, unique_id: str, due_ms: int) -> Spec:
    """The record that a broker writes when a client recalls a message."""
    key = unique_id if version >= "5.5" else f"theirs+{unique_id}"
    return message("theirs", b"0", properties={"TIMER_DEL_UNIQKEY": key, "TIMER_DELIVER_MS": str(due_ms)})


class Waiting:
    """A directory that changes its owner, and the due time of each body."""

    def __init__(self, version: str, path: Path) -> None:
        self.version = version
        self.path = path
        self.due: dict[bytes, int] = {}

    def begin(self) -> None:
        """mqstore's messages: due while the first broker runs, due in hours, rescheduled, cancelled."""
        with mqstore.open(self.path, "create", **GEOMETRY) as store:
            store.create_topic("ours", 1)
            store.create_topic("theirs", 1)
            soon = now_ms() + BEFORE_A_BROKER_IS_UP
            self.by_time(store, b"soon", soon)
            moved = store.append("ours", b"moved", deliver_at=soon + HOUR)
            assert store.reschedule(moved.unique_id, deliver_at=soon + 321) is not None
            self.due[b"moved"] = soon + 321
            self.by_level(store, b"by level 3", 3, LEVEL_3)
            self.by_level(store, b"by level 18", 18, LEVEL_18)
            self.by_time(store, b"late", soon + HOUR + 123)
            for due in (soon, soon + HOUR):
                assert store.cancel(store.append("ours", b"cancelled", deliver_at=due).unique_id)

    def by_time(self, store: mqstore.Store, body: bytes, due_ms: int) -> None:
        store.append("ours", body, deliver_at=due_ms)
        self.due[body] = due_ms

    def by_level(self, store: mqstore.Store, body: bytes, level: int, delay_ms: int) -> None:
        self.due[body] = store.append("ours", body, delay_level=level).store_timestamp + delay_ms

    def send(self, client: PoppingClient) -> None:
        """A client's messages: due while the broker runs, due in hours, recalled."""
        sent = now_ms()
        far = sent + HOUR + 500
        for body, due in ((b"theirs soon", sent + 3000), (b"theirs late", far), (b"theirs to be cancelled", far)):
            client.produce([message("theirs", body, unique_id=body.hex(), properties={"TIMER_DELIVER_MS": str(due)})])
            self.due[body] = due
        client.produce(
            [
                message("theirs", b"recalled", unique_id="AB12", properties={"TIMER_DELIVER_MS": str(far)}),
                deletion(self.version, "AB12", far),
                message("theirs", b"theirs by level 1") | {"delay_level": 1},
                message("theirs", b"theirs by level 17") | {"delay_level": 17},
            ]
        )
        # The broker's store time counts, which is this time or later.
        self.due[b"theirs by level 1"] = sent + 1000
        self.due[b"theirs by level 17"] = sent + LEVEL_17

    def delivered(self, store: mqstore.Store) -> dict[bytes, int]:
        """The delivered messages with their store times. Each comes once and not early."""
        messages = [each for topic in ("ours", "theirs") for each in store.read(topic)]
        times = {each.body: each.store_timestamp for each in messages}
        assert len(times) == len(messages), sorted(each.body for each in messages)
        assert {body: at for body, at in times.items() if at < self.due[body]} == {}
        return times

    def check_export(self, file: Path, waiting: set[bytes]) -> None:
        """An export contains each message once; those that wait, with their due time."""
        mqstore.export(self.path, file)
        rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
        rows = [row for row in rows if row["topic"] in ("ours", "theirs")]
        exported = {base64.b64decode(row["body_base64"]): row["properties"] for row in rows}
        assert len(exported) == len(rows), sorted(row["body_base64"] for row in rows)
        assert exported.keys() == self.due.keys()
        due = {body: int(own["mqstore.deliver_at"]) for body, own in exported.items() if "mqstore.deliver_at" in own}
        assert due.keys() == waiting
        # A level counts from the broker's store time, and a broker's timer from the end of the second.
        assert {body: at for body, at in due.items() if not self.due[body] <= at < self.due[body] + 5000} == {}
        file.unlink()

    def check_copy(self, copy: Path, waiting: set[bytes]) -> None:
        """On a copy, a manual clock delivers the other messages when they are due."""
        self.check_export(copy.with_name("export.jsonl"), waiting)
        shutil.copytree(self.path, copy)
        clock = ManualClock(now_ms())
        with mqstore.testing.open(copy, "rw", clock=clock) as store:
            # The recall of the client is known by key, and counts as pending until its slot is read.
            assert store.delays().pending == len(waiting) + 1
            before = self.delivered(store)
            assert before.keys() == self.due.keys() - waiting
            clock.advance((LEVEL_18 + 60_000) / 1000)
            for topic in ("ours", "theirs"):
                wanted = sum((b"theirs" in body) == (topic == "theirs") for body in self.due)
                assert store.wait(topic, 0, wanted - 1, timeout=60), topic
            assert self.delivered(store).keys() == self.due.keys()
            assert store.delays().pending == 0
        assert mqstore.verify(copy).problems == ()
        shutil.rmtree(copy)


@pytest.mark.timeout(300)
def test_what_waits_comes_once_whoever_has_it(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    waiting = Waiting(version, path)
    waiting.begin()
    with JavaSession(version, tmp_path / "client") as session:
        with JavaBroker(version, path, tmp_path / "broker", CONFIG) as broker:
            with PoppingClient(session, broker) as client:
                waiting.send(client)
                client.await_messages("theirs", 2)
                client.await_messages("ours", 3)
            broker.stop()
        late = {b"late", b"by level 18", b"theirs late", b"theirs to be cancelled", b"theirs by level 17"}
        waiting.check_copy(tmp_path / "copy", late)

        with mqstore.open(path, "rw") as store:
            assert store.cancel(b"theirs to be cancelled".hex())
            del waiting.due[b"theirs to be cancelled"]
            late.remove(b"theirs to be cancelled")
            waiting.by_time(store, b"again", now_ms() + BEFORE_A_BROKER_IS_UP)
        with JavaBroker(version, path, tmp_path / "broker2", CONFIG) as broker:
            with PoppingClient(session, broker) as client:
                client.await_messages("ours", 4)
                (got,) = [each for each in client.consume("ours") if each.body_md5 == md5(b"again")]
                assert got.store_timestamp >= waiting.due[b"again"]
            broker.kill()
    waiting.check_copy(tmp_path / "copy", late)
    tally.messages += len(waiting.due)
