"""Pages on which every Python block is a program or a part of one."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import pytest

import mqstore
from mqstore import testing
from mqstore.testing import ManualClock

ROOT = Path(__file__).parents[2]


def blocks(page: str) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "printed"),
    [
        ("docs/index.md", ["resize cat.png"]),
        ("docs/share.md", ["invoice 17 False", "0 True"]),
        (
            "docs/asyncio.md",
            [
                *("0 ['orders']", "{'amount': 5}", "paid", "0", "1", "2", "3", "True", "11 WorkQueueCounts"),
                *('{"amount": 5}', "two", "2", "3"),
                *("AppendResult", "1"),
            ],
        ),
        (
            "docs/archive.md",
            ["True True", "True", "True", "3000", "b'{\"book\": 7}{'", "True", "True True", "True True True"],
        ),
        (
            "docs/bucket.md",
            ["[b'2 books']", "True", "1", "['part-00000.parquet']", "True", "store"],
        ),
        (
            "docs/compression.md",
            ["46000 True", "True", "[513, 0, 257]"],
        ),
        (
            "docs/consumers.md",
            [
                *("order 0", "order 2", "order 4", "order 1", "2 to do", "order 3", "order 5"),
                "(('orders', 0),) (('orders', 1),)",
                "(('orders', 0), ('orders', 1))",
                "['order 1', 'order 3', 'order 5']",
                *("1", "6", "0"),
                "[('orders', 0, 0), ('orders', 1, 0)]",
                "['audit', 'billing', 'mail']",
            ],
        ),
        (
            "docs/durable-log.md",
            [
                "0 False",
                "[1, 2, 3]",
                "[0, 1]",
                *('0 login {"user": 7}', '1 login {"user": 8}', '2 login {"user": 9}', "3 None logout"),
                *("[1]", "4 4", "['logout']", "{'user': 7}", "['user-7'] 0"),
                "the last one",
                *("-9", "True 1000"),
                "True",
                *("6 r", "True"),
                *("bounded max_messages 2", "True", "True"),
            ],
        ),
        (
            "docs/key-tables.md",
            [
                *("2 89 False", "['cat', 'fish'] ['89', '12']", "True 79", "fish 13", "fish gone"),
                *("7 days, 0:00:00 True", "8 -> 3", "True"),
            ],
        ),
        (
            "docs/delayed-messages.md",
            ["['your basket is waiting']", "2", "True False", "1", "1", "0.0"],
        ),
        (
            "docs/transactions.md",
            [
                "[]",
                "['thank you for A-1']",
                "orders committed",
                "True orders ('orders',) 1",
                "['2 books', '1 lamp']",
                "['a chair']",
            ],
        ),
        (
            "docs/work-queue.md",
            [
                "resize cat.png 1",
                "10 WorkQueueCounts",
                "1",
                *("True", "['invoice 17'] []", "True", "2 WorkQueueCounts"),
                *("without a worker mails no such address", "1 1", "full", "True"),
            ],
        ),
    ],
)
def test_the_blocks_of_a_page_run_one_after_the_other(
    page: str, printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate(blocks(page)):
        exec(compile(block, f"{page}, block {number}", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line if line in printed else line.partition("(")[0] for line in lines] == printed


def test_the_page_about_reading_shows_the_messages_of_the_last_hour(tmp_path: Path) -> None:
    program = next(block for block in blocks("docs/reading.md") if "timedelta" in block)
    shown = next(line.partition("  #")[0] for line in program.splitlines() if "start=timedelta(hours=1)" in line)
    clock = ManualClock(datetime.now(UTC) - timedelta(hours=2))
    with testing.open(tmp_path, clock=clock) as store:
        store.append("orders", b"old")
        clock.advance(timedelta(hours=2))
        store.append("orders", b"new")
        assert [message.text() for message in eval(shown, {"store": store, "timedelta": timedelta})] == ["new"]


@pytest.mark.slow
def test_the_blocks_of_the_page_about_tests_are_tests(tmp_path: Path) -> None:
    suite = "\n\n".join(blocks("docs/testing-programs.md"))
    (tmp_path / "test_page.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_mqstore", "-p", "no:cacheprovider", "test_page.py"]
    done = run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert "14 passed" in done.stdout


FRAMEWORKS = """
import sqlite3
import time

import pytest

import mqstore


def test_flask() -> None:
    pytest.importorskip("flask")
    from flask_shop import app

    assert app.test_client().post("/orders/5").json["offset"] >= 0


def test_django() -> None:
    pytest.importorskip("django")
    configure_django()
    from django.test import Client

    assert Client().post("/orders/6").json()["offset"] >= 0


def test_outbox_of_fastapi(tmp_path, monkeypatch) -> None:
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    from fastapi.testclient import TestClient

    from outbox_shop import app, connect

    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    monkeypatch.setenv("DATABASE", str(tmp_path / "shop.db"))
    with TestClient(app) as client:
        assert client.post("/sales/lamp").json() == {"sold": "lamp"}
    leave_sales(tmp_path / "store", lambda item, id: insert(connect(), item, id))
    with TestClient(app) as client:
        assert client.post("/sales/desk").json() == {"sold": "desk"}
        wait_for(app.state.store)


def test_outbox_of_django(tmp_path, monkeypatch) -> None:
    pytest.importorskip("django")
    configure_django()
    from django.db import connection
    from django.test import Client, override_settings

    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    with connection.cursor() as cursor:
        cursor.execute("create table sales (item text, transaction_id text unique)")
    leave_sales(tmp_path / "store", lambda item, id: insert(sqlite3.connect("django.db"), item, id))
    with override_settings(ROOT_URLCONF="outbox"):
        assert Client().post("/sales/lamp").json() == {"sold": "lamp"}
        assert Client().post("/sales/desk").json() == {"sold": "desk"}
    import outbox

    wait_for(outbox.store())
    outbox.store().close()


def configure_django() -> None:
    import django
    from django.conf import settings

    if not settings.configured:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": "django.db", "ATOMIC_REQUESTS": True}
        settings.configure(ROOT_URLCONF="views", ALLOWED_HOSTS=["testserver"], DATABASES={"default": database})
        django.setup()


def insert(database, item, id) -> None:
    with database:
        database.execute("insert into sales values (?, ?)", (item, id))
    database.close()


def leave_sales(path, insert) -> None:
    # Two transactions are left, as by a program that dies: one with its row, one without.
    with mqstore.open(path, "create") as store:
        for item in ("chair", "stool"):
            left = store.transaction("sales")
            left.append("sold", item.encode())
            if item == "chair":
                insert(item, left.id)


def wait_for(store) -> None:
    # The check function has decided about both.
    end = time.monotonic() + 60
    while store.pending_transactions():
        assert time.monotonic() < end
        time.sleep(0.05)
    assert sorted(message.text() for message in store.read("sold")) == ["chair", "desk", "lamp"]


def test_celery() -> None:
    pytest.importorskip("celery")
    from tasks import announce

    assert announce.apply(args=(7,)).get() >= 0
"""


@pytest.mark.parametrize("framework", ["django", "fastapi", "flask", "httpx"])
def test_a_framework_of_the_page_about_web_applications_is_installed_for_tests(framework: str) -> None:
    """The test below skips a framework that is not installed."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["dev"]
    assert framework in {re.split(r"[^\w-]", requirement)[0] for requirement in group}


@pytest.mark.slow
def test_the_programs_of_the_page_about_web_applications_run(tmp_path: Path) -> None:
    """A framework that is not installed is skipped. All others use one store."""
    page = (ROOT / "docs/web.md").read_text()
    for name, program in re.findall(r'^```python title="(\S+)"\n(.*?)^```$', page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(program)
    if not all(map(find_spec, ("fastapi", "httpx"))):
        (tmp_path / "test_shop.py").unlink()
    (tmp_path / "test_frameworks.py").write_text(FRAMEWORKS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_mqstore", "-p", "no:cacheprovider", "."]
    environment = {
        **os.environ,
        "STORE": str(tmp_path / "store"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
    }
    done = run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout
    assert mqstore.info(tmp_path / "store").clean
