"""Fixtures of the interoperability suite: the Java side, built when stale, and the count of what was compared."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .driver import java_executable
from .java_build import VERSIONS, JavaMissingError, build
from .shop import Shop, Written
from .tally import Tally

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from .market import Market

HERE = Path(__file__).resolve().parent
PASSED = pytest.StashKey[bool]()
TALLIES: pytest.StashKey[Tallies] = pytest.StashKey()


class Tallies:
    """Collects the counts from the reports of the tests, which may run in other processes."""

    def __init__(self) -> None:
        """Start with no test."""
        self.by_test: dict[str, Tally] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the count of a test after its end."""
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name == "tally":
                    self.by_test[report.nodeid] = Tally(**value)  # type: ignore[arg-type]


def pytest_configure(config: pytest.Config) -> None:
    """Register the suite's markers and the place for its counts."""
    config.addinivalue_line("markers", "interop: runs the real RocketMQ (Maven and a JDK are needed)")
    config.addinivalue_line("markers", "scenario(name): the directory RocketMQ writes for this test")
    config.addinivalue_line(
        "markers", "trade(name): the directory mqstore writes and RocketMQ appends to for this test"
    )
    config.addinivalue_line(
        "markers", "waits: a scenario that mostly waits for brokers; `make test` runs it for the newest RocketMQ only"
    )
    config.stash[TALLIES] = Tallies()
    config.pluginmanager.register(config.stash[TALLIES])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Choose the versions of the scenarios that wait, and which tests share a process.

    Tests that use the shop share one process for each version, because it has one JVM for all of them. A scenario with
    brokers of its own is a group of its own, so that scenarios wait side by side.
    """
    kept, dropped = [], []
    for item in items:
        if HERE not in item.path.parents:
            kept.append(item)
            continue
        call = getattr(item, "callspec", None)
        version = call.params.get("version", VERSIONS[-1]) if call else VERSIONS[-1]
        if item.get_closest_marker("waits") and version != VERSIONS[-1] and not os.environ.get("MQSTORE_SOAK"):
            dropped.append(item)
            continue
        shared = "shop" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group(f"{'shop' if shared else item.path.stem}-{version}"))
        kept.append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test itself passed, for the fixtures that end after it."""
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the sum of what the tests compared; with -v, what each compared."""
    tallies = terminalreporter.config.stash[TALLIES].by_test
    if not tallies:
        return
    terminalreporter.section("compared with RocketMQ")
    total = Tally()
    for name, tally in sorted(tallies.items()):
        if terminalreporter.config.get_verbosity() > 0:
            terminalreporter.line(f"{name}: {tally.text()}")
        total.add(tally)
    terminalreporter.line(f"all: {total.text()}")


@pytest.fixture(scope="session", autouse=True)
def _java_side() -> None:
    """Have the driver of every version built; without Maven or Java the suite skips, or fails under CI=true."""
    try:
        java_executable()
        for version in VERSIONS:
            build(version)
    except JavaMissingError as error:
        if os.environ.get("CI", "").lower() == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Return each RocketMQ version in turn."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="session")
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _java_side: None) -> Iterator[Shop]:
    """Return the maker of directories that RocketMQ writes."""
    made = Shop(tmp_path_factory.mktemp("interop"), _wanted(request.session, "scenario"))
    yield made
    made.end()


@pytest.fixture(scope="session")
def market(request: pytest.FixtureRequest, shop: Shop) -> Market:
    """Return the maker of directories that mqstore writes and RocketMQ appends to."""
    from .market import Market

    return Market(shop, _wanted(request.session, "trade"))


@pytest.fixture(autouse=True)
def _no_store_left_open(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shut the stores down that a test leaves open in the shared JVMs: their directories go with the test."""
    yield
    if "shop" in request.fixturenames:
        shop: Shop = request.getfixturevalue("shop")
        shop.leave_stores()


def _wanted(session: pytest.Session, marker: str) -> dict[str, set[str]]:
    """Return the directories the collected tests will ask for, by version: they are best made together."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for item in session.items:
        chosen = item.get_closest_marker(marker)
        call = getattr(item, "callspec", None)
        if chosen is not None and call is not None and "version" in call.params:
            wanted[call.params["version"]].add(chosen.args[0])
    return wanted


@pytest.fixture
def written(request: pytest.FixtureRequest, shop: Shop, version: str) -> Written:
    """Return the directory of the test's ``scenario`` marker. Tests must not change it; they copy it."""
    marker = request.node.get_closest_marker("scenario")
    assert marker is not None, "the test needs a scenario marker"
    return shop.written(version, marker.args[0])


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Return the test's counter; a test that compared no message fails."""
    counted = Tally()
    yield counted
    request.node.user_properties.append(("tally", asdict(counted)))
    if request.node.stash.get(PASSED, False):
        assert counted.messages > 0, "the test compared no message"
