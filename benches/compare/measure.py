"""Runs the turns of a row: the sides alternate, each in a new folder that is removed afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .machine import device_bytes_written
from .rows import JAVA_WARM_UP, Contender, Row, Spec
from .sides import JVMS, Driver, MeasureError, Programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Result = dict[str, Any]
Results = dict[str, list[Result]]

MOST_SECONDS = 900
QUICK_PART = 20
"""Divisor of the work in a quick run, which only shows that everything runs."""

DEFAULTS: Spec = {
    "op": "append",
    "durability": "async",
    "options": {},
    "body_bytes": 1024,
    "warm_up": 0,
    "threads": 1,
    "queues": 1,
    "batch": 1,
    "latency": False,
    "until": "appended",
    "burst": 0,
    "pause_ms": 0,
    "settle_ms": 0,
}

READ_DEFAULTS: Spec = {"pattern": "", "span": 1 << 62, "decode": True}
"""Default fields of specifications that find messages."""

DERIVED = ("consumequeue", "index", "checkpoint", "abort")
"""The files of a store that can be rebuilt from the log."""

SHARED = ("prepared", "cold")
"""Kinds of rows whose sides share a store."""

DERIVES = ("derive", "rebuild")
"""Operations that rebuild these files."""


class Bench:
    """Runs rows in a scratch folder."""

    def __init__(self, programs: Programs, scratch: Path, *, quick: bool, rest: float) -> None:
        """`quick` means little work. `rest` is the number of quiet seconds before each measurement."""
        self._programs = programs
        self._scratch = scratch
        self._quick = quick
        self._rest = rest
        self.problems: list[str] = []

    def run(self, row: Row, contenders: tuple[Contender, ...], rounds: int, say: Callable[[str], None]) -> Results:
        """Return the results of each contender in each round. A contender that fails has a note instead."""
        if row.kind == "restart":
            return self._restarts(row, contenders, rounds, say)
        if row.kind in SHARED:
            return self._prepared(row, contenders, rounds, say)
        results: Results = {contender.name: [] for contender in contenders}
        with contextlib.ExitStack() as open_drivers:
            ready: list[tuple[Contender, Driver]] = []
            for contender in contenders:
                try:
                    driver = open_drivers.enter_context(self._programs.start(contender.driver))
                    self._warm(row, contender, driver)
                    ready.append((contender, driver))
                except MeasureError as error:
                    self._problem(row, contender, error, say)
            for turn in range(rounds):
                for contender, result in self._turn(row, ready, turn, partial(self._once, row), say):
                    results[contender.name].append(result)
                    say(f"  {turn + 1}/{rounds} {contender.name}: {result['messages'] / result['seconds']:,.0f}/s")
        return results

    def _turn(
        self,
        row: Row,
        ready: list[tuple[Contender, Driver]],
        turn: int,
        once: Callable[[Contender, Driver], Result],
        say: Callable[[str], None],
    ) -> Iterator[tuple[Contender, Result]]:
        """Measure each side once, with a different first side in each turn. A side that fails is removed
        from `ready`."""
        first = turn % max(len(ready), 1)
        for contender, driver in ready[first:] + ready[:first]:
            try:
                result = once(contender, driver)
            except MeasureError as error:
                self._problem(row, contender, error, say)
                ready.remove((contender, driver))
                continue
            yield contender, result

    def spec(self, row: Row, contender: Contender) -> Spec:
        """Return the specification for a contender."""
        finds = READ_DEFAULTS if contender.driver != "rust" and row.kind in SHARED else {}
        spec = DEFAULTS | finds | row.spec | contender.spec
        if self._quick:
            for name in ("messages", "unflushed", "keys"):
                if name in spec:
                    spec[name] = max(spec[name] // QUICK_PART, 10 * spec["batch"])
            spec["burst"] //= QUICK_PART
            spec["settle_ms"] = min(spec["settle_ms"], 200)
            spec["warm_up"] //= 10
        if contender.driver != "rust":
            spec.pop("side", None)
        return spec | {"path": str(self._scratch / "store")}

    def _warm(self, row: Row, contender: Contender, driver: Driver) -> None:
        """Let a JVM compile its code: many messages from one thread, then a part of the row if it does more."""
        if contender.driver not in JVMS:
            return
        spec = self.spec(row, contender)
        usual = spec | {"durability": "async", "threads": 1, "batch": 1, "burst": 0, "settle_ms": 0}
        self._bare(driver, usual | {"messages": JAVA_WARM_UP // (QUICK_PART if self._quick else 1)})
        if spec["durability"] != "async" or spec["threads"] > 1 or spec["batch"] > 1:
            self._bare(driver, spec | {"messages": spec["messages"] // 2})

    def _once(self, row: Row, contender: Contender, driver: Driver) -> Result:
        spec = self.spec(row, contender)
        # Wait for the writes of the turn before, and for the discards of its deleted files.
        os.sync()
        time.sleep(self._rest)
        before = device_bytes_written(self._scratch)
        result = self._bare(driver, spec)
        if before is not None and (after := result.pop("device_bytes_after", None)) is not None:
            result["device_bytes"] = after - before
        if "record_bytes" in result:
            result["log_bytes"] = (spec["messages"] + spec["warm_up"]) * result["record_bytes"]
        if result["refused"] or result["stored"] != result["messages"]:
            reason = f"{result['refused']} refused, {result['stored']} of {result['messages']} stored"
            raise MeasureError(reason)
        return result

    def _bare(self, driver: Driver, spec: Spec) -> Result:
        try:
            result = driver.measure(spec, MOST_SECONDS)
            os.sync()
            result["device_bytes_after"] = device_bytes_written(self._scratch)
            return result
        finally:
            shutil.rmtree(spec["path"], ignore_errors=True)

    def _problem(self, row: Row, contender: Contender, error: MeasureError, say: Callable[[str], None]) -> None:
        said = str(error).replace(str(self._scratch), "the scratch folder")
        self.problems.append(f"{row.name}, {contender.name}: {said}")
        say(f"  {contender.name} takes no part: {error}")

    # -----------------------------------------------------------------------------------------------------------------
    # A store that all sides read

    def _prepared(
        self, row: Row, contenders: tuple[Contender, ...], rounds: int, say: Callable[[str], None]
    ) -> Results:
        results: Results = {contender.name: [] for contender in contenders}
        folder = self._scratch / "prepared"
        with contextlib.ExitStack() as open_drivers:
            open_drivers.callback(shutil.rmtree, folder, ignore_errors=True)
            filled = self._fill(row, folder)

            def find(contender: Contender, driver: Driver) -> Result:
                if row.kind == "cold":
                    _drop_from_memory(folder)
                return self._find(self.spec(row, contender) | {"path": str(folder)}, driver, filled)

            ready = [(each, open_drivers.enter_context(self._programs.start(each.driver))) for each in contenders]
            # The first round only compiles code and does not count.
            for turn in range(rounds + 1):
                for contender, result in self._turn(row, ready, turn, find, say):
                    if turn > 0:
                        results[contender.name].append(result)
                        rate = result["messages"] / result["seconds"]
                        say(f"  {turn}/{rounds} {contender.name}: {rate:,.0f}/s, {result['seconds'] * 1e3:,.0f} ms")
        return results

    def _fill(self, row: Row, folder: Path) -> Result:
        spec = DEFAULTS | {"op": row.fill, "side": "ours", "path": str(folder)}
        names = ("body_bytes", "queues", "keys", "threads")
        spec |= {name: row.spec[name] for name in names if name in row.spec}
        part = QUICK_PART if self._quick else 1
        spec["messages"] = row.spec["filled"] // part
        if "keys" in spec:
            spec["keys"] //= part
        with self._programs.start(row.spec.get("filler", "rust")) as driver:
            return driver.measure(spec, MOST_SECONDS)

    def _find(self, spec: Spec, driver: Driver, filled: Result) -> Result:
        """One measurement on the store. If the operation rebuilds files, they are removed before."""
        spec.pop("filled")
        spec["log_end"] = filled["log_bytes"]
        if spec["op"] in DERIVES:
            for name in DERIVED:
                path = Path(spec["path"], name)
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        os.sync()
        time.sleep(self._rest)
        result = driver.measure(spec, MOST_SECONDS)
        wanted = filled["messages"] if spec["op"] in (*DERIVES, "dispatch") else spec["messages"]
        if (result["messages"], result["stored"]) != (wanted, wanted):
            reason = f"{result['stored']} of {wanted} messages were found"
            raise MeasureError(reason)
        return result

    # -----------------------------------------------------------------------------------------------------------------
    # Restarts

    def _restarts(
        self, row: Row, contenders: tuple[Contender, ...], rounds: int, say: Callable[[str], None]
    ) -> Results:
        results: Results = {contender.name: [] for contender in contenders}
        folders = {contender.name: self._scratch / f"store-{at}" for at, contender in enumerate(contenders)}
        try:
            ready = list(contenders)
            for contender in contenders:
                spec = self.spec(row, contender) | {"path": str(folders[contender.name])}
                try:
                    self._open_and_kill(contender, spec)
                except MeasureError as error:
                    self._problem(row, contender, error, say)
                    ready.remove(contender)
            for turn in range(rounds):
                for contender in list(ready if turn % 2 == 0 else reversed(ready)):
                    spec = self.spec(row, contender) | {"path": str(folders[contender.name])}
                    try:
                        result = self._restart(contender, spec)
                    except MeasureError as error:
                        self._problem(row, contender, error, say)
                        ready.remove(contender)
                        continue
                    results[contender.name].append(result)
                    say(
                        f"  {turn + 1}/{rounds} {contender.name}: {result['after_kill_ms']:,.1f} ms after a kill, "
                        f"{result['after_close_ms']:,.1f} ms after a close"
                    )
        finally:
            for folder in folders.values():
                shutil.rmtree(folder, ignore_errors=True)
        return results

    def _restart(self, contender: Contender, spec: Spec) -> Result:
        """One open after a kill, with a close; then one after the close, which ends in the kill for the next round."""
        os.sync()
        time.sleep(self._rest)
        with self._programs.start(contender.driver) as driver:
            dirty = driver.measure(spec | {"messages": 0, "unflushed": 0, "close": True}, MOST_SECONDS)
        clean = self._open_and_kill(contender, spec | {"messages": spec["unflushed"]})
        if dirty["was_clean"] or not clean["was_clean"]:
            reason = "the store was not found as it was left: closed after a kill, or killed after a close"
            raise MeasureError(reason)
        return {
            "after_kill_ms": dirty["seconds"] * 1e3,
            "after_close_ms": clean["seconds"] * 1e3,
            "log_bytes": dirty["log_end"],
            "messages_lost": 0,
        }

    def _open_and_kill(self, contender: Contender, spec: Spec) -> Result:
        driver = self._programs.start(contender.driver)
        try:
            return driver.measure(spec | {"close": False}, MOST_SECONDS)
        finally:
            driver.kill()


def _drop_from_memory(folder: Path) -> None:
    """Drop the files from the page cache. No process maps them now."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
