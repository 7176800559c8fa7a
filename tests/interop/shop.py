"""Lets RocketMQ write the scenarios, once for each version and test run, and keeps RocketMQ's answers about them."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from .driver import JavaSession, JavaStore
from .java_build import JavaError
from .java_rows import JavaMessage, JavaView, KeyQuery, Spec, TimeQuery
from .scenarios import BURST_PAUSE, SCENARIOS, Scenario

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

DERIVED = ("consumequeue", "batchconsumequeue", "index")
TRANSACTION_BITS = 0xC
ROLLBACK = 0xC


@dataclass(slots=True)
class JavaAnswers:
    """RocketMQ's answers about a directory: every record, every queue, and a sample of look-ups."""

    view: JavaView
    log: list[JavaMessage]
    keys: list[tuple[KeyQuery, list[int]]] = field(default_factory=list)
    times: list[tuple[TimeQuery, int]] = field(default_factory=list)
    indexed_from: int = 0
    """Below this log offset, RocketMQ's look-ups by key may miss messages, because recovery dropped index files."""


@dataclass(slots=True)
class Written:
    """A scenario on disk and RocketMQ's answers about it."""

    scenario: Scenario
    version: str
    path: Path
    answers: JavaAnswers
    first_queues: Path | None = None
    """Queues and index after the first burst, if the scenario keeps them."""


class Shop:
    """Makes directories on request. Stores of one version share a JVM. Each store is closed before a test gets it."""

    def __init__(self, root: Path, wanted: Mapping[str, AbstractSet[str]]) -> None:
        """Prepare. `wanted` names, for each version, the scenarios to write together."""
        self.root = root
        self.wanted = wanted
        self._written: dict[tuple[str, str], Written | Exception] = {}
        self._sessions: dict[str, JavaSession] = {}

    def session(self, version: str) -> JavaSession:
        """Return the shared JVM of a version, and start it if it does not run."""
        session = self._sessions.get(version)
        if session is None or session.process.poll() is not None:
            session = self._sessions[version] = JavaSession(version, self.root / f"jvm-{version}")
        return session

    def written(self, version: str, name: str) -> Written:
        """Return a scenario. If needed, write it together with the others of this version.

        The failure of a scenario is raised only to the tests that use it.
        """
        if (version, name) not in self._written:
            wanted = {name, *self.wanted.get(version, ())}
            names = sorted(each for each in wanted if (version, each) not in self._written)
            self._write_closed(version, [SCENARIOS[each] for each in names if not SCENARIOS[each].kill])
            for each in names:
                if SCENARIOS[each].kill:
                    self._write_killed(version, SCENARIOS[each])
        written = self._written[version, name]
        if isinstance(written, Exception):
            raise written
        return written

    def write(self, version: str, scenario: Scenario) -> Written:
        """Write a scenario that is not in the list of the suite."""
        self._write_closed(version, [scenario])
        written = self._written[version, scenario.name]
        if isinstance(written, Exception):
            raise written
        return written

    def leave_stores(self) -> None:
        """Begin to shut down every open store, without waiting."""
        for session in self._sessions.values():
            if session.process.poll() is None:
                session.leave_stores()

    def end(self) -> None:
        """End all JVMs. A later request starts a new one."""
        for session in self._sessions.values():
            session.end()

    def _write_closed(self, version: str, scenarios: Sequence[Scenario]) -> None:
        session = self.session(version)
        begun = [self._begin(session, scenario) for scenario in scenarios]
        for number in range(max((len(each.bursts) for each in begun), default=0)):
            if number:
                # All scenarios share the pause.
                time.sleep(BURST_PAUSE)
            for each in begun:
                self._attempt(each, partial(each.put, number))
        for each in begun:
            self._attempt(each, each.ask)
        # Closed together, because RocketMQ sleeps three seconds in each shutdown.
        session.close_stores([each.store for each in begun])

    def _write_killed(self, version: str, scenario: Scenario) -> None:
        with JavaSession(version, self.root / f"jvm-{version}-{scenario.name}") as session:
            begun = self._begin(session, scenario)
            for number in range(len(begun.bursts)):
                begun.put(number)
            begun.ask()
            session.halt()

    def _begin(self, session: JavaSession, scenario: Scenario) -> _Begun:
        path = self.root / session.version / scenario.name
        store = session.open(path, config=scenario.config, topics=scenario.topics, write_topics=True)
        written = Written(scenario, session.version, path, JavaAnswers(JavaView([], []), []))
        self._written[session.version, scenario.name] = written
        return _Begun(written, store, scenario.bursts())

    def _attempt(self, begun: _Begun, step: Callable[[], None]) -> None:
        key = (begun.written.version, begun.written.scenario.name)
        if isinstance(self._written[key], Exception):
            return
        try:
            step()
        except Exception as error:
            self._written[key] = error


@dataclass(slots=True)
class _Begun:
    """A scenario that is being written."""

    written: Written
    store: JavaStore
    bursts: list[list[Spec]]

    def put(self, number: int) -> None:
        """Put one burst, if one with this number exists."""
        if number == 1 and self.written.scenario.keep_first_queues:
            path = self.written.path
            self.written.first_queues = path.with_name(f"{path.name}-first")
            copy_derived(path, self.written.first_queues)
        if number < len(self.bursts):
            self.store.put(self.bursts[number])

    def ask(self) -> None:
        """Keep RocketMQ's answers about the store."""
        self.written.answers = ask(self.store)


def copy_derived(source: Path, target: Path) -> None:
    """Copy queues and index of a store."""
    for name in DERIVED:
        if (source / name).exists():
            shutil.copytree(source / name, target / name)


def ask(store: JavaStore, *, seed: str = "ask") -> JavaAnswers:
    """Ask a store about everything in it. Look-ups by key cover only what its index can contain."""
    answers = JavaAnswers(store.read(), store.log())
    if not answers.log:
        reason = f"{store.path}: RocketMQ sees no record"
        raise JavaError(reason)
    if not store.report.was_clean:
        answers.indexed_from = store.report.recovery_start()
    chooser = random.Random(seed)
    keys = key_queries([each for each in answers.log if each.commit_log_offset >= answers.indexed_from], chooser)
    answers.keys = list(zip(keys, store.look_up(keys), strict=True))
    times = time_queries(answers.view, chooser)
    answers.times = list(zip(times, store.offsets_for_times(times), strict=True))
    return answers


def keys_of(record: JavaMessage) -> list[str]:
    """Return the keys under which RocketMQ indexes a record: its unique id and the parts of KEYS. Rollbacks
    have none."""
    if record.sys_flag & TRANSACTION_BITS == ROLLBACK:
        return []
    keys = [record.unique_id] if record.unique_id else []
    return keys + [piece for piece in (record.keys or "").split(" ") if piece]


def records_by_key(log: Sequence[JavaMessage]) -> dict[tuple[str, str], list[JavaMessage]]:
    """Return the records of each (topic, key), in log order. A look-up must find these, whatever the index contains."""
    found: dict[tuple[str, str], list[JavaMessage]] = {}
    for record in log:
        for key in dict.fromkeys(keys_of(record)):
            found.setdefault((record.topic, key), []).append(record)
    return found


def without_twins(query: KeyQuery, offsets: Sequence[int], by_offset: Mapping[int, JavaMessage]) -> list[int]:
    """Return the offsets of a look-up that really have the key, once each.

    RocketMQ compares 32-bit hashes only, so it also returns records with other keys. It returns a record twice if its
    KEYS contain a key twice, or if recovery indexed it again.
    """
    with_key = (at for at in offsets if by_offset[at].topic == query.topic and query.key in keys_of(by_offset[at]))
    return list(dict.fromkeys(with_key))


def key_queries(log: Sequence[JavaMessage], chooser: random.Random, most: int = 400) -> list[KeyQuery]:
    """Choose look-ups: keys of all ages, absent keys, and time ranges that end in the longest pause of the log."""
    known = list(records_by_key(log))
    chosen = known if len(known) <= most else [*known[:50], *known[-50:], *chooser.sample(known, most - 100)]
    queries = [KeyQuery(topic, key) for topic, key in chosen]
    queries += [KeyQuery(topic, f"{key}?") for topic, key in chosen[:20]]
    queries += [KeyQuery(f"{topic}?", key) for topic, key in chosen[:20]]
    gap = _longest_pause(log)
    if gap is not None:
        before = gap
        queries += [KeyQuery(topic, key, end=before) for topic, key in chosen]
        queries += [KeyQuery(topic, key, begin=before) for topic, key in chosen]
    return queries


def _longest_pause(log: Sequence[JavaMessage]) -> int | None:
    """Return the middle of the longest pause between stores, if a time range can end in it."""
    pauses = [(b.store_timestamp - a.store_timestamp, a.store_timestamp) for a, b in itertools.pairwise(log)]
    length, start = max(pauses, default=(0, 0))
    return start + length // 2 if length > 1000 * BURST_PAUSE * 0.95 else None


def time_queries(view: JavaView, chooser: random.Random, most: int = 12) -> list[TimeQuery]:
    """Choose times for every queue: before, at, between and after its messages."""
    queries = []
    for (topic, queue_id), messages in view.by_queue().items():
        stored = sorted({each.store_timestamp for each in messages})
        if not stored:
            continue
        times = {stored[0] - 1, stored[0], stored[-1], stored[-1] + 1, stored[-1] + 10**6, 0}
        for each in chooser.sample(stored, min(len(stored), most)):
            times.update((each - 1, each, each + 1))
        queries += [
            TimeQuery(topic, queue_id, each, boundary) for each in sorted(times) for boundary in ("LOWER", "UPPER")
        ]
    return queries
