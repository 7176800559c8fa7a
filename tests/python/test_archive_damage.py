"""Archives that are damaged, incomplete or do not answer: typed errors, and no wrong message."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

import mqstore
from archived_stores import KEEPING, fill, parquet_files
from mqstore._remote.failure import RequestFailure
from python_folders import Directory, python_transport

pyarrow = pytest.importorskip("pyarrow")


def test_damage_is_an_error_that_names_the_file(homes: tuple[Path, Path], tmp_path: Path) -> None:
    _, short = homes
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    with mqstore.open(short) as store:
        wanted = list(store.read("orders"))
        low = store.stats().log_min_offset
    for damage in (None, b"", content[:-1], content[: len(content) // 2], bytes(len(content)), content[:100]):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        with mqstore.open(short) as store:
            for read in (
                lambda store: list(store.read("orders")),
                lambda store: list(store.read("orders", 1, 0)),
                lambda store: list(store.lookup("orders", "k1")),
                lambda store: store.scan(topics="orders").to_arrow(),
                lambda store: store.message_at("orders", 0, 0),
            ):
                with pytest.raises(mqstore.CorruptionError, match=path.name):
                    read(store)
            with pytest.warns(mqstore.StoreWarning, match=path.name):
                found = list(store.read("orders", on_damage="skip"))
            assert found == [one for one in wanted if one.commit_log_offset >= low]
    path.write_bytes(content)
    with mqstore.open(short) as store:
        assert list(store.read("orders")) == wanted


def test_no_damaged_byte_gives_a_wrong_message(homes: tuple[Path, Path], tmp_path: Path) -> None:
    """Each changed byte is an error, or is in bytes that the read does not need."""
    _, short = homes
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    with mqstore.open(short) as store:
        wanted = (
            list(store.read("orders", 1)),
            list(store.lookup("orders", "k301")),
            list(store.read("orders", 1, 9, 12)),
        )
    chance = random.Random(4)
    errors = 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with mqstore.open(short) as store:
            for number, read in enumerate(
                (
                    lambda store: list(store.read("orders", 1)),
                    lambda store: list(store.lookup("orders", "k301")),
                    lambda store: list(store.read("orders", 1, 9, 12)),
                )
            ):
                try:
                    found = read(store)
                except mqstore.CorruptionError:
                    errors += 1
                else:
                    # A Bloom filter or a key has no checksum of its own in the record.
                    assert found == wanted[number] or (number == 1 and not found)
    assert errors > 100


@pytest.mark.parametrize("name", [b"keys", b"queue_offset", b"element"])
def test_a_footer_with_another_name_of_a_column(name: bytes, homes: tuple[Path, Path], tmp_path: Path) -> None:
    """The footer names a column in its schema and at each place: none of them may differ."""
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    places = [found.start() for found in re.finditer(re.escape(name), content) if found.start() >= footer]
    assert len(places) >= 2
    for place in places[:3]:
        path.write_bytes(content[:place] + b"K" + content[place + 1 :])
        with mqstore.open(homes[1]) as store:
            for read in (
                lambda store: list(store.read("orders", 1)),
                lambda store: list(store.lookup("orders", "k301")),
                lambda store: store.message_at("orders", 1, 9),
            ):
                with pytest.raises(mqstore.CorruptionError, match=path.name):
                    read(store)


@pytest.mark.parametrize(
    ("cause", "error"), [("denied", mqstore.StorePermissionError), ("other", mqstore.StoreIOError)]
)
def test_an_archive_that_does_not_answer(
    cause: Any, error: type[Exception], homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object, _ranges: object) -> None:
        raise RequestFailure(cause, "v1/x", "as the test wants")

    with python_transport(), mqstore.open(homes[1]) as store:
        monkeypatch.setattr(Directory, "read", fail)
        for read in (
            lambda: list(store.read("orders")),
            lambda: list(store.lookup("orders", "k1")),
            lambda: store.scan().to_arrow(),
            lambda: list(store.read("orders", on_damage="skip")),
        ):
            with pytest.raises(error, match="as the test wants"):
                read()
        # The log needs no archive.
        low = store.queues("orders")[0].min_offset
        assert next(iter(store.read("orders", 0, low))).queue_offset == low


def test_segments_that_nobody_has_are_an_error(tmp_path: Path) -> None:
    home, target = tmp_path / "store", tmp_path / "cold"
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, 300)
        store.archive.run_to(target)
        fill(store, 600, start=300)
        # Retention does not wait for an archive that is not configured.
        store.expire()
        fill(store, 600, start=900)
        assert store.archive.run_to(target).missing_bytes > 0
        wanted = [one.queue_offset for one in store.read("orders", 0)]
    with mqstore.open(home, "rw", options=KEEPING, archive=target) as store:
        for read in (
            lambda: list(store.read("orders", 0)),
            lambda: list(store.read("orders")),
            lambda: store.scan().to_arrow(),
        ):
            with pytest.raises(mqstore.CorruptionError, match=r"neither the archive nor the log.*on_damage=\"skip\""):
                read()
        with pytest.warns(mqstore.StoreWarning, match="neither the archive nor the log"):
            found = [one.queue_offset for one in store.read("orders", 0, on_damage="skip")]
        assert found[0] == 0
        assert found[-len(wanted) :] == wanted
        # After the missing segments nothing is wrong.
        assert [one.queue_offset for one in store.read("orders", 0, wanted[0])] == wanted


def test_a_damaged_configuration_fails_only_reads_before_the_log(homes: tuple[Path, Path]) -> None:
    _, short = homes
    (short / "mqstore/archive").write_bytes(b"damaged")
    with mqstore.open(short) as store:
        low = store.queues("orders")[0].min_offset
        assert next(iter(store.read("orders", 0, low))).queue_offset == low
        with pytest.raises(mqstore.CorruptionError, match="mqstore/archive"):
            store.read("orders")
    with mqstore.open(short, archive=False) as store:
        assert next(iter(store.read("orders", 0))).queue_offset == low
