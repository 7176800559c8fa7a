"""Files that other programs leave in the folders of a store: notes, and no damage."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

import pytest

import mqstore
from conftest import SMALL

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli

NAMES = [
    ".DS_Store",
    "._00000000000000000000",
    "Thumbs.db",
    "desktop.ini",
    "notes.txt~",
    ".00000000000000000000.swp",
    ".#00000000000000000000",
    ".00000000000000000000.a1B2c3",
]


def fill(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        for number in range(30):
            store.append("orders", b"x" * 200, keys=f"k{number}", tags="t")
            store.append("prices", b"y", keys=f"k{number % 3}")
        store.append("orders", b"later", delay=3600)
        store.append("orders", b"level", delay_level=18)
        store.consumer("g", ["orders"]).close()
        store.compact()


def folders(home: Path) -> list[Path]:
    return [home, *(path for path in home.rglob("*") if path.is_dir())]


@pytest.mark.parametrize("name", NAMES)
def test_they_are_no_damage_in_any_folder(home: Path, name: str) -> None:
    fill(home)
    for folder in folders(home):
        (folder / name).write_bytes(b"Bud1" * 100)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        report = mqstore.verify(home)
    assert report.problems == ()
    assert report.ok
    noted = {str(each.message).partition(":")[0] for each in found}
    for part in ("commitlog", "index", "consumequeue", "consumequeue/orders", "consumequeue/orders/0"):
        assert str(home / part / name) in noted, part
    assert {each.filename for each in found} == {__file__}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        with mqstore.open(home, "rw", options=SMALL) as store:
            store.append("orders", b"more")
            assert len(list(store.read("orders"))) == 31


def test_the_command_line_prints_notes_and_succeeds(home: Path, cli: Cli) -> None:
    fill(home)
    (home / "commitlog" / ".DS_Store").write_bytes(b"Bud1")
    done = cli("verify", home, "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["problems"]) == (0, [])
    assert ".DS_Store: a file of macOS, ignored" in done.stderr
    assert "RocketMQ may not start with it: remove it" in done.stderr


def test_a_file_of_unknown_origin_is_still_a_problem(home: Path) -> None:
    fill(home)
    (home / "commitlog" / "notes").write_bytes(b"mine")
    assert [problem.kind for problem in mqstore.verify(home).problems] == ["segment_stray"]


def test_one_cause_takes_a_few_rows(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", segment_size=1 << 20, queue_file_entries=1000) as store:
        for number in range(500):
            store.append("orders", str(number).encode())
    unit = home / "consumequeue/orders/0" / f"{0:020d}"
    data = bytearray(unit.read_bytes())
    for number in range(100, 300):
        data[number * 20 + 8 : number * 20 + 12] = b"\x00\x00\x00\x07"
    unit.write_bytes(data)
    done = cli("verify", home)
    assert done.returncode == 1
    rows = [line for line in done.stdout.splitlines() if "queue_entry_wrong" in line]
    assert len(rows) == 5, "its meaning, three places, and the number of the others"
    assert "197 more of this kind in this file" in done.stdout
    assert "--format json lists every problem" in done.stderr
    assert len(json.loads(cli("verify", home, "--format", "json").stdout)["problems"]) == 200
