"""Compares mqstore's results with RocketMQ's: field by field, queue by queue, look-up by look-up."""

from __future__ import annotations

import contextlib
import hashlib
import warnings
from typing import TYPE_CHECKING, Any, Literal

import pytest

import mqstore

from .java_rows import JavaMessage, KeyQuery, canonical_host
from .shop import JavaAnswers, records_by_key, without_twins

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from .tally import Tally

MOST_DIFFERENCES = 5


def java_fields(row: JavaMessage, *, by_entry: bool) -> dict[str, Any]:
    """Return the fields that mqstore must return for a record that RocketMQ decoded."""
    return {
        "topic": row.topic,
        "queue_id": row.queue_id,
        # In a queue read, mqstore returns the offset of the queue entry, otherwise that of the record.
        "queue_offset": row.entry_offset if by_entry else row.queue_offset,
        "commit_log_offset": row.commit_log_offset,
        "size": row.size,
        "message_id": row.message_id,
        "unique_id": row.unique_id,
        "body": (row.body_size, row.body_md5),
        "stored_body": (row.stored_body_size, row.stored_body_md5),
        "keys": tuple(piece for piece in (row.keys or "").split(" ") if piece),
        "tags": row.tags,
        "properties": row.properties,
        "flag": row.flag,
        "sys_flag": row.sys_flag,
        "born_timestamp": row.born_timestamp,
        "born_host": row.born_host,
        "store_timestamp": row.store_timestamp,
        "store_host": row.store_host,
        "reconsume_times": row.reconsume_times,
        "prepared_transaction_offset": row.prepared_transaction_offset,
        "body_crc": row.body_crc,
    }


def mqstore_fields(message: mqstore.StoredMessage) -> dict[str, Any]:
    """Return the same fields of a message that mqstore read."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.commit_log_offset,
        "size": message.size,
        "message_id": message.message_id,
        "unique_id": message.unique_id,
        "body": (len(message.body), md5(message.body)),
        "stored_body": (len(message.body_view), md5(message.body_view)),
        "keys": message.keys,
        "tags": message.tags,
        "properties": dict(message.properties),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp": message.born_timestamp,
        "born_host": canonical_host(message.born_host),
        "store_timestamp": message.store_timestamp,
        "store_host": canonical_host(message.store_host),
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
    }


def md5(body: bytes | memoryview) -> str:
    """Return the MD5 of a body in hex, as in the Java rows."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def assert_same_messages(
    expected: Sequence[JavaMessage],
    actual: Iterable[mqstore.StoredMessage],
    *,
    by_entry: bool,
    where: str,
) -> int:
    """Compare all fields of two sequences of messages. Return their number."""
    theirs = [java_fields(each, by_entry=by_entry) for each in expected]
    ours = [mqstore_fields(each) for each in actual]
    assert len(ours) == len(theirs), f"{where}: mqstore has {len(ours)} messages, RocketMQ {len(theirs)}"
    differences = [
        f"{where} #{number}, {name}: mqstore {our[name]!r}, RocketMQ {their[name]!r}"
        for number, (our, their) in enumerate(zip(ours, theirs, strict=True))
        for name in their
        if our[name] != their[name]
    ]
    text = "\n".join(differences[:MOST_DIFFERENCES])
    assert not differences, f"{len(differences)} fields differ:\n{text}"
    return len(ours)


def assert_same_queues(store: mqstore.Store, answers: JavaAnswers, tally: Tally) -> None:
    """Compare the bounds and all messages of every queue. mqstore may know more queues, but only empty ones."""
    theirs = answers.view.by_queue()
    for queue in answers.view.queues:
        ours = {each.queue_id: each for each in store.queues(queue.topic)}[queue.queue_id]
        # An empty batch queue of RocketMQ has the minimum -1.
        bounds = (max(0, queue.min_offset), queue.max_offset)
        where = f"{queue.topic}/{queue.queue_id}"
        assert (ours.min_offset, ours.max_offset) == bounds, where
        found = store.read(queue.topic, queue.queue_id)
        expected = theirs[queue.topic, queue.queue_id]
        tally.messages += assert_same_messages(expected, found, by_entry=True, where=where)
        tally.queues += 1
    for topic in store.topics():
        for each in store.queues(topic):
            assert (topic, each.queue_id) in theirs or each.min_offset == each.max_offset, f"{topic}/{each.queue_id}"


def assert_same_log(store: mqstore.Store, answers: JavaAnswers, tally: Tally) -> None:
    """Compare every record of the log by its offset, also records without a queue entry."""
    found = [store.get_at(each.commit_log_offset) for each in answers.log]
    tally.messages += assert_same_messages(answers.log, found, by_entry=False, where="log")


def assert_same_look_ups(store: mqstore.Store, answers: JavaAnswers, tally: Tally) -> None:
    """Compare look-ups by key and by time with RocketMQ's, and the keys with the content of the log."""
    by_offset = {each.commit_log_offset: each for each in answers.log}
    truth = records_by_key(answers.log)
    for query, offsets in answers.keys:
        ours = look_up(store, query)
        theirs = without_twins(query, offsets, by_offset)
        # RocketMQ counts the seconds of a file's first entry from the end of the previous file, but adds them to the
        # begin of this file. After a restart the message seems younger than it is, and time ranges miss it.
        timed = (query.begin, query.end) != (KeyQuery("", "").begin, KeyQuery("", "").end)
        known_from = answers.indexed_from + (1 if timed and answers.indexed_from > 0 else 0)
        indexed = [at for at in ours if at >= known_from]
        known = [at for at in theirs if at >= known_from]
        assert indexed == known, f"{query}: mqstore finds {indexed}, RocketMQ {known}, indexed from {known_from}"
        if query.kind is None:
            records = truth.get((query.topic, query.key), [])
            assert ours == [
                each.commit_log_offset for each in records if query.begin <= each.store_timestamp <= query.end
            ], query
        tally.keys += 1
    for when, offset in answers.times:
        boundary: Literal["lower", "upper"] = "lower" if when.boundary == "LOWER" else "upper"
        ours_at = store.offset_for_time(when.topic, when.queue_id, when.time, boundary=boundary)
        assert ours_at == offset, when
        tally.times += 1


def look_up(store: mqstore.Store, query: KeyQuery) -> list[int]:
    """Return the log offsets that mqstore finds for a query, oldest first."""
    end = query.end if query.end < KeyQuery("", "").end else None
    if query.topic.endswith("?"):
        # No topic has this name. RocketMQ finds nothing in it.
        with pytest.raises(mqstore.TopicNotFoundError):
            store.lookup(query.topic, query.key)
        return []
    found = store.lookup(query.topic, query.key, start_time=query.begin or None, end_time=end)
    return [each.commit_log_offset for each in found]


def assert_same_store(path: Path, answers: JavaAnswers, tally: Tally, *, look_ups: bool = True) -> None:
    """Compare everything, read-only, and check that no read changed a file."""
    before = state_of(path)
    with mqstore.open(path) as store:
        assert_same_queues(store, answers, tally)
        assert_same_log(store, answers, tally)
        if look_ups:
            assert_same_look_ups(store, answers, tally)
    assert state_of(path) == before, "reading changed files"


def state_of(path: Path) -> dict[str, tuple[int, int, int]]:
    """Return length, modification time and inode of every file."""
    files = (each for each in sorted(path.rglob("*")) if each.is_file())
    stats = ((each, each.stat()) for each in files)
    return {str(each.relative_to(path)): (stat.st_size, stat.st_mtime_ns, stat.st_ino) for each, stat in stats}


@contextlib.contextmanager
def notes_expected() -> Iterator[None]:
    """Allow the notes of mqstore about derived files that a test removed or made old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
