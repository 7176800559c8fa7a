"""Runs the commands of docs/questions.md on a store with messages of today, and compares their outputs with the page.

`python tests/python/test_questions.py` writes the current outputs into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

import mqstore
from conftest import Cli
from mqstore import testing

PAGE = Path(__file__).parents[2] / "docs" / "questions.md"
OPTIONS = mqstore.StoreOptions(segment_size=64 << 10, queue_file_entries=2000, index_slots=1000, index_entries=10_000)
# Number of messages of the topic `orders` in each hour of yesterday, from 08:00 on.
ORDERS = (180, 320, 560, 410, 0, 290, 140)
BUCKET = "s3://lake"

_BLOCKS = re.compile(r"(?<=```console\n)(mqstore .*)\n```\n\n```text\n((?:(?!```).*\n)*)```\n")
# Parts of an output that differ between two stores or machines, and their substitutes.
_VARIABLE = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00)?", "TIME"),
    (r"\d{4}-\d\d-\d\d", "DATE"),
    (r"\b\d{13}\b", "MILLISECONDS"),
    (r"\b[0-9A-F]{32}\b", "ID"),
    (r'("__CRC32#": )"\d+"', r'\1"CHECKSUM"'),
    (r"\b\d+(\.\d+)? (d|h|min|s|ms)( \d+ (h|min|s))?\b", "DURATION"),
    # The size of a Parquet file depends on its library.
    (r"(?m)^bytes +.*", "bytes SIZE"),
    ("─+", "─"),
    (" +", " "),
)


class Question(NamedTuple):
    """A section of the page."""

    title: str
    command: str
    output: str


def questions() -> list[Question]:
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        blocks = _BLOCKS.findall(section)
        assert len(blocks) == 1, f"no command with its output, or several: {section}"
        found.append(Question(section.partition("\n")[0], *blocks[0]))
    return found


def make_store(home: Path, now: datetime) -> None:
    """Makes the store of the page.

    All messages of `orders` are of yesterday, whatever the time is, and all others are of the last three hours.
    """
    yesterday = datetime(now.year, now.month, now.day, tzinfo=UTC) - timedelta(days=1)
    clock = testing.ManualClock(yesterday)
    with testing.open(home, clock=clock, options=OPTIONS) as store:
        store.create_topic("orders", queues=2)
        hours = [hour for hour, count in enumerate(ORDERS, start=8) for _ in range(count)]
        for number, hour in enumerate(hours):
            clock.set(yesterday + timedelta(hours=hour, minutes=20, seconds=number % 600))
            amount = number % 90
            store.append("orders", json={"amount": amount}, keys=f"A-{number}", tags="paid", queue_id=number % 2)
        clock.set(now - timedelta(hours=3))
        with store.consumer("billing", "orders", history=True) as billing:
            billing.commit({("orders", 0): 620, ("orders", 1): 615})
        for user in range(3):
            store.append("events", json={"login": user}, keys=f"user-{user}")
        mails = store.work_queue("mails", visibility_timeout="1h", max_attempts=1)
        for invoice in range(4):
            mails.put(json={"invoice": invoice})
        clock.set(now - timedelta(minutes=40))
        mails.get().nack(reason="SMTPRecipientsRefused: no such mailbox")
        store.append("events", json={"login": 7}, keys="user-7")
        clock.set(now - timedelta(minutes=15))
        mails.get()
        mails.put(json={"invoice": 4}, delay="2h")
        store.append("events", json={"logout": 7}, keys="user-7")
        with store.consumer("audit", "events", history=True) as audit:
            audit.poll(timeout=0)
            audit.commit()


def dated(command: str, now: datetime) -> str:
    """Returns a command with the dates of yesterday and today instead of its two dates, if it has dates."""
    days = [f"{now - timedelta(days=1):%Y-%m-%d}", f"{now:%Y-%m-%d}"]
    dates = sorted(set(re.findall(r"\d{4}-\d\d-\d\d", command)))
    assert len(dates) in (0, 2), command
    return re.sub(r"\d{4}-\d\d-\d\d", lambda found: days[dates.index(found[0])], command)


def printed(cli_process: Cli, folder: Path, command: str) -> str:
    """Runs a command in the folder of the store, with a folder as the bucket, and returns its output and notes."""
    bucket = f"file://{folder}/lake"
    words = [word.replace(BUCKET, bucket) for word in shlex.split(command)[1:]]
    done = cli_process(*words, cwd=folder, env={**os.environ, "TZ": "UTC", "PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stderr
    lines = [line.rstrip() for line in (done.stdout + done.stderr).replace(bucket, BUCKET).splitlines()]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).strip("\n")) + "\n"


def normal(output: str) -> list[str]:
    """Returns the lines of an output without its variable parts."""
    for pattern, substitute in _VARIABLE:
        output = re.sub(pattern, substitute, output)
    return [line.strip() for line in output.splitlines()]


@pytest.fixture(scope="module")
def now() -> datetime:
    return datetime.now(UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, now: datetime) -> Path:
    """A folder with the store of the page. The last command of the page changes the store."""
    made = tmp_path_factory.mktemp("questions")
    make_store(made / "store", now)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("question", questions(), ids=lambda one: one.title)
def test_the_command_prints_the_output_of_the_page(
    question: Question, folder: Path, now: datetime, cli_process: Cli
) -> None:
    found = normal(printed(cli_process, folder, dated(question.command, now)))
    assert found == normal(question.output), "python tests/python/test_questions.py"


@pytest.mark.parametrize("time", ["2026-03-01T00:00:30", "2026-03-01T23:59:30", "2026-01-01T12:00:00"])
def test_the_store_is_the_same_at_any_time_of_day(home: Path, time: str) -> None:
    now = datetime.fromisoformat(time).replace(tzinfo=UTC)
    make_store(home, now)
    with mqstore.open(home) as store:
        stored = {name: {one.store_time for one in store.read(name)} for name in ("orders", "events")}
        assert store.count("orders") == sum(ORDERS)
    assert {moment.date() for moment in stored["orders"]} == {(now - timedelta(days=1)).date()}
    assert max(stored["orders"]) < min(stored["events"])


def _refresh() -> None:
    def run(*words: object, **extra: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqstore", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, **extra)  # type: ignore[call-overload, no-any-return]

    now = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder:
        make_store(Path(folder) / "store", now)

        def block(found: re.Match[str]) -> str:
            command = dated(found[1], now)
            return f"{command}\n```\n\n```text\n{printed(run, Path(folder), command)}```\n"

        PAGE.write_text(_BLOCKS.sub(block, PAGE.read_text()))


if __name__ == "__main__":
    _refresh()
