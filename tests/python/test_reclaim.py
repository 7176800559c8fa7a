"""The space of hidden messages: what a reclaim frees, what stays, erasure, the command line and asyncio."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL, Cli
from loops import in_loop
from mqstore._archive.archive import _SIZES as SIZES
from mqstore.errors import CorruptionError, ResultExistsError, StoreBusyError, StoreReadOnlyError, TopicNotFoundError

TOPICS = ("t0", "t1", "t2", "t3")


def body(topic: str, number: int) -> bytes:
    return f"secret of {topic} {number} ".encode() * 1500


@pytest.fixture
def expired(home: Path) -> Path:
    """A store of four topics with 160 large messages each, in bursts; three of them are expired, except 2 messages."""
    with mqstore.open(home, "create", options=SMALL, segment_size=1 << 20, queue_file_entries=8) as store:
        for topic in TOPICS:
            store.create_topic(topic, queues=1)
        for burst in range(80):
            topic = TOPICS[burst % 4]
            first = burst // 4 * 8
            store.append_many(topic, [body(topic, number) for number in range(first, first + 8)])
        for topic in TOPICS[1:]:
            store.set_retention(topic, max_messages=2)
        store.expire()
    return home


def blocks(home: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in (home / "commitlog").iterdir() if file.is_file())


def check(store: mqstore.Store) -> None:
    for topic in TOPICS:
        first = 0 if topic == "t0" else 158
        found = [(message.queue_offset, message.body) for message in store.read(topic, 0)]
        assert found == [(number, body(topic, number)) for number in range(first, 160)]
    assert len(list(store._scan_log())) == 166
    assert len(store.scan(columns=["queue_offset"]).to_arrow()) == 166


def test_three_of_four_topics_give_their_space_back(expired: Path) -> None:
    with mqstore.open(expired, "rw") as store, mqstore.open(expired) as reader:
        check(reader)
        dead = {row.topic: row.dead_bytes for row in store.retention()}
        plan = store.reclaim(dry_run=True)
        before = blocks(expired)
        done = store.reclaim(max_bytes_per_second=1 << 30)
        freed = before - blocks(expired)
        assert done.reclaimed_bytes == freed
        assert [one.path for one in done.segments] == [one.path for one in plan.segments]
        estimated = sum(one.estimated_bytes for one in done.segments)
        # A new file has no blocks for the filler at the end, nor those that the file system had reserved after it.
        assert 0.95 * estimated <= freed <= 1.05 * estimated + len(done.segments) * (100 << 10)
        last = sorted(file.name for file in (expired / "commitlog").iterdir() if file.is_file())[-1:]
        in_last = sum(one.dead_bytes for one in done.kept if one.path.endswith(tuple(last)))
        rewritable = sum(dead.values()) - in_last
        assert freed >= 0.9 * rewritable
        assert {one.topic: one.dead_bytes for one in done.topics} == dead
        assert sum(one.reclaimed_bytes for one in done.topics) == pytest.approx(estimated, rel=0.001)
        check(store)
        check(reader)
        assert sum(row.dead_bytes for row in store.retention()) == sum(one.dead_bytes for one in done.kept)
    assert mqstore.verify(expired).ok
    with mqstore.open(expired, "rw") as store:
        check(store)
        store.rebuild()
        check(store)
    assert mqstore.verify(expired).ok


def test_an_id_inside_a_placeholder_is_not_found(expired: Path) -> None:
    with mqstore.open(expired, "rw") as store:
        old = next(message for message in store._scan_log() if message.topic == "t0")
        store.delete_topic("t0")
        done = store.reclaim(erase="t0")
        assert old.message_id
        assert store.get(old.message_id) is None
        for offset in (old.commit_log_offset, old.commit_log_offset + old.size):
            with pytest.raises(CorruptionError):
                store.get_at(offset)
        assert done.segments


def test_erasure_removes_every_byte_that_it_can(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(2000):
            store.append("gone" if number % 2 else "live", b"secret of gone" if number % 2 else b"x", keys="secret-key")
        store.append_many("live", [bytes(9000)] * 40)
        done = store.delete_topic("gone", erase=True)
        assert done is not None
        assert done.segments
        assert not done.kept
        assert store.count("live") == 1040
    log = b"".join(file.read_bytes() for file in (home / "commitlog").iterdir() if file.is_file())
    assert b"secret of gone" not in log
    assert mqstore.verify(home).ok
    kept = cli("reclaim", home, "--format", "json")
    assert json.loads(kept.stdout)["topics"] == []


def test_mistakes(expired: Path) -> None:
    with mqstore.open(expired) as store, pytest.raises(StoreReadOnlyError):
        store.reclaim()
    with mqstore.open(expired, "rw") as store:
        with pytest.raises(ValueError, match="at least 1"):
            store.reclaim(max_bytes_per_second=0)
        with pytest.raises(TopicNotFoundError):
            store.delete_topic("none", erase=True)
        assert store.reclaim(erase=["none"]).segments == ()
        assert store.delete_topic("t1") is None


def test_the_archive_gets_the_bytes_of_placeholders(expired: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with mqstore.open(expired, "rw") as store:
        assert store.reclaim().segments
        store.archive.configure(str(tmp_path / "cold"))
        store.archive.run()
        assert store.reclaim(dry_run=True).segments == ()
    restored = tmp_path / "restored"
    report = mqstore.Archive(tmp_path / "cold").restore(restored)
    assert report.identical
    for file in (restored / "commitlog").iterdir():
        assert file.read_bytes() == (expired / "commitlog" / file.name).read_bytes()
    assert mqstore.verify(restored).ok


def test_an_archive_continues_after_its_last_record_was_replaced(expired: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    cold = tmp_path / "cold"
    bodies = [body("live", number) for number in range(200)]
    with mqstore.open(expired, "rw") as store:
        # More than a segment, so that the last archived record is one of them.
        store.append_many("t0", [body("t0", 160 + number) for number in range(60)])
        store.archive.configure(cold)
        store.archive.run()
        archived_to = store.archive.archived_to
        assert archived_to is not None
        store.append_many("live", bodies)
        for topic in TOPICS:
            store.delete_topic(topic)
        assert any(one.log_offset + one.bytes == archived_to for one in store.reclaim().segments)
    advanced = replace(SMALL.advanced, delete_interval=0)
    lengths = {"segment_size": 1 << 20, "queue_file_entries": 8}
    keeping = replace(SMALL, retention_bytes=10 << 20, advanced=advanced, **lengths)
    with mqstore.open(expired, "rw", options=keeping) as store:
        assert store.expire().segments
        assert 0 < store.stats().log_min_offset < archived_to
        # Its topic was deleted.
        with pytest.raises(CorruptionError):
            store.get_at(0)
        assert store.archive.run().segments > 2
        store.archive.configure(cold)
        assert store.archive.verify().records > 700
        assert [one.body for one in store.read("live")] == bodies
    # Another store has another record there, or a placeholder of another time.
    with mqstore.open(tmp_path / "other", "create", options=SMALL, segment_size=1 << 20) as store:
        store.append_many("t0", [bytes(20_000)] * 1200)
        assert store.stats().log_max_offset > archived_to + (3 << 20)
        for _ in range(2):
            with pytest.raises(ResultExistsError, match="another store"):
                store.archive.run_to(cold)
            store.append("live", b"x")
            store.delete_topic("t0", erase=True)
            store.create_topic("t0", queues=1)


def test_a_reclaim_during_a_run_ends_the_run(expired: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setitem(SIZES, "range_bytes", 100_000)
    cold = tmp_path / "cold"
    with mqstore.open(expired, "rw") as store:
        with pytest.raises(StoreBusyError, match="run it again"):
            store.archive.run_to(cold, progress=lambda _: store.reclaim())
        assert not [file for file in cold.rglob("*") if file.is_file()]
        assert store.archive.run_to(cold).segments > 10
    restored = tmp_path / "restored"
    assert mqstore.Archive(cold).restore(restored).identical
    for file in (restored / "commitlog").iterdir():
        assert file.read_bytes() == (expired / "commitlog" / file.name).read_bytes()
    assert mqstore.verify(restored).ok


def in_log(home: Path, text: bytes) -> bool:
    return any(text in file.read_bytes() for file in (home / "commitlog").iterdir() if file.is_file())


def test_an_erase_leaves_what_a_light_queue_needs(store: mqstore.Store, home: Path) -> None:
    for topic in ("gone", "live"):
        store.append(topic, f"secret of {topic}".encode(), light_queues="one")
    for _ in range(30):
        store.append("live", bytes(10_000))
    done = store.delete_topic("gone", erase=True)
    assert done is not None
    assert [Path(one.path).name for one in done.kept] == [f"{0:020}"]
    assert "light queues" in done.kept[0].reason
    assert in_log(home, b"secret of gone")
    assert [message.body for message in store.read("%LMQ%one")] == [b"secret of live"]
    # Without the light queue, nothing leads to the record.
    assert mqstore.verify(home).ok
    store.delete_topic("%LMQ%one")
    assert not store.reclaim(erase="gone").kept
    assert not in_log(home, b"secret of gone")
    store.rebuild()
    store.close()
    assert mqstore.verify(home).ok


@pytest.mark.parametrize("by_retention", [False, True], ids=["deletion", "retention"])
def test_an_erase_names_the_dead_letters_that_it_leaves(store: mqstore.Store, home: Path, by_retention: bool) -> None:
    store.create_topic("jobs", queues=1)
    work = store.work_queue("jobs", "g", max_attempts=1)
    work.put(b"secret of jobs")
    work.get(timeout=5).nack(0)
    work.put(b"lives")
    for _ in range(30):
        store.append("live", bytes(10_000))
    if by_retention:
        store.set_retention("jobs", max_messages=1)
        store.expire()
        done = store.reclaim(erase="jobs")
    else:
        erased = store.delete_topic("jobs", erase=True)
        assert erased is not None
        done = erased
    assert "%DLQ%g have copies of these messages" in done.kept[0].reason
    assert in_log(home, b"secret of jobs")
    if not by_retention:
        erased = store.delete_topic(work.dead_letters, erase=True)
        assert erased is not None
        assert not erased.kept
        assert not store.reclaim(erase="jobs").kept
        assert not in_log(home, b"secret of jobs")


def test_the_command_line(expired: Path, cli: Cli) -> None:
    plan = json.loads(cli("reclaim", expired, "--dry-run", "--format", "json").stdout)
    assert plan["dry_run"]
    before = blocks(expired)
    assert cli("reclaim", expired).returncode == 2
    assert blocks(expired) == before
    done = json.loads(cli("reclaim", expired, "--yes", "--format", "json").stdout)
    assert len(done["segments"]) == len(plan["segments"])
    assert blocks(expired) < before
    table = cli("reclaim", expired, "--dry-run")
    assert "t1" in table.stdout
    assert "kept:" in table.stderr
    gone = cli("topic", "delete", expired, "t0", "--erase", "--yes")
    assert gone.returncode == 0
    assert "kept:" in gone.stderr


def test_the_command_line_tells_why_a_planned_segment_stays(expired: Path, cli: Cli) -> None:
    plan = json.loads(cli("reclaim", expired, "--dry-run", "--format", "json").stdout)
    second = Path(plan["segments"][1]["path"])
    content = bytearray(second.read_bytes())
    content[300] ^= 1
    second.write_bytes(content)
    done = cli("reclaim", expired, "--yes")
    assert done.returncode == 0
    assert "rewrote 1 segment and freed" in done.stderr
    assert "damaged at offset" in " ".join(done.stderr.split())


def test_the_limit_of_the_command_line_holds_for_the_survey(expired: Path, cli: Cli) -> None:
    bytes_in_log = sum(file.stat().st_size for file in (expired / "commitlog").iterdir() if file.is_file())
    started = time.monotonic()
    cli("reclaim", expired, "--dry-run", "--max-bytes-per-second", bytes_in_log // 3)
    assert time.monotonic() - started > 2


@in_loop
async def test_an_event_loop(expired: Path) -> None:
    async with mqstore.aio.open(expired, "rw") as store:
        assert (await store.reclaim()).segments
        erased = await store.delete_topic("t0", erase=True)
        assert erased is not None
        assert erased.segments
