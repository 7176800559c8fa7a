"""Fixtures of the interoperability suite: the Java side, built when out of date, and the counts of the comparisons."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from .driver import java_executable
from .java_build import VERSIONS, JavaMissingError, build
from .shop import Shop, Written
from .tally import Tally

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from .market import Market

WAITING = {
    "test_broker",
    "test_follow_broker",
    "test_groups",
    "test_ownership",
    "test_pop",
    "test_reclaim_broker",
    "test_time",
    "test_transactions",
    "test_logic_queues",
}
"""The files whose scenarios mostly wait for brokers."""
ALONE = WAITING | {"test_beside"}
"""The files whose tests start their own JVMs."""
BY_SCENARIO = {
    "test_archive",
    "test_batches",
    "test_damage",
    "test_driver",
    "test_java_writes",
    "test_mqstore_writes",
    "test_rebuild",
    "test_repair",
    "test_urls",
}
"""The files whose tests share directories that RocketMQ writes, about half of the time of a version."""
NEWEST_ONLY = WAITING | {
    "test_archive",
    "test_backup",
    "test_batches",
    "test_corpus",
    "test_damage",
    "test_dledger",
    "test_extension",
    "test_light_queues",
    "test_mqstore_writes",
    "test_spark_compacts_what_rocketmq_wrote",
    "test_the_configuration_of_a_broker_in_rocksdb",
    "test_tiered",
    "test_topic_retention",
}
"""Slow files and tests that hardly depend on the version. Outside the soak, they run for the newest version only."""
NEWEST_CASES = {"emptied", "rewritten", "without_queues"}
"""The same for parameters of `test_closed_log`. The other cases, closed and killed, run for each version."""

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
    config.stash[TALLIES] = Tallies()
    config.pluginmanager.register(config.stash[TALLIES])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests, and leave slow ones to the soak, except for the newest version."""
    here = Path(__file__).parent
    items.sort(key=lambda item: _rank(_stem(item.nodeid)) if here in item.path.parents else 0)
    if os.environ.get("MQSTORE_SOAK"):
        return
    dropped = [item for item in items if _is_rare(item) and _version(item.nodeid) != VERSIONS[-1]]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Choose the tests that share a process, for `--dist loadscope`.

    The tests of one version that share directories share a process with one JVM. Each test with its own JVMs is a
    separate group, so that these tests can wait at the same time. The other tests of a file and a version are a group.
    The groups start in the order of the tests.
    """
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByVersion(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            stem = _stem(nodeid)
            if stem in ALONE:
                return nodeid
            return f"{_version(nodeid)} {'scenarios' if stem in BY_SCENARIO else stem}"

    # xdist would start the groups with most tests first. Those of a single test take longest.
    config.option.loadscopereorder = False
    return ByVersion(config, log)


def _rank(stem: str) -> int:
    """Return the place of a file in the order of the tests, so that the longest groups start first."""
    return 0 if stem in BY_SCENARIO else 1 if stem in ALONE else 2


def _is_rare(item: pytest.Item) -> bool:
    """Return whether a test runs for the newest version only."""
    stem, (name, _, parameters) = _stem(item.nodeid), item.name.partition("[")
    rare_case = stem == "test_closed_log" and NEWEST_CASES & set(parameters.rstrip("]").split("-"))
    return bool({stem, name} & NEWEST_ONLY or rare_case)


def _stem(nodeid: str) -> str:
    return Path(nodeid.partition("::")[0]).stem


def _version(nodeid: str) -> str:
    """Return the version of a test. For a test without a version, return the newest."""
    return next((version for version in VERSIONS if version in nodeid.partition("[")[2]), VERSIONS[-1])


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
    """Print the sum of all comparisons. With -v, print the counts of each test."""
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
    """Build the driver of every version. Without Maven or Java, the suite skips, or fails if CI=true."""
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
    """Shut down the stores that a test leaves open in the shared JVMs, because their directories are removed with the
    test."""
    yield
    if "shop" in request.fixturenames:
        shop: Shop = request.getfixturevalue("shop")
        shop.leave_stores()


def _wanted(session: pytest.Session, marker: str) -> dict[str, set[str]]:
    """Return, by version, the directories that the collected tests need. It is faster to make them together."""
    wanted: dict[str, set[str]] = defaultdict(set)
    for item in session.items:
        chosen = item.get_closest_marker(marker)
        call = getattr(item, "callspec", None)
        if chosen is not None and call is not None and "version" in call.params:
            wanted[call.params["version"]].add(chosen.args[0])
    return wanted


@pytest.fixture
def written(request: pytest.FixtureRequest, shop: Shop, version: str) -> Written:
    """Return the directory of the test's ``scenario`` marker. Tests must not change it. They copy it."""
    marker = request.node.get_closest_marker("scenario")
    assert marker is not None, "the test needs a scenario marker"
    return shop.written(version, marker.args[0])


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Return the test's counter. A test that compared no message fails."""
    counted = Tally()
    yield counted
    request.node.user_properties.append(("tally", asdict(counted)))
    if request.node.stash.get(PASSED, False):
        assert counted.messages > 0, "the test compared no message"
