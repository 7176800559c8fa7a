"""What type checkers must make of the public API; ``test_typing`` runs mypy over it, nobody runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import assert_type

import mqstore


def api(path: str | os.PathLike[str]) -> None:
    with mqstore.open(path, mode="create", segment_size=4096) as store:
        assert_type(store, mqstore.Store)
        result = store.append("t", b"x", keys=["k"], tags=None, properties={"a": "b"})
        assert_type(result, mqstore.AppendResult)
        assert_type(result.message_id, str)
        store.append("t", bytearray(b"x"), keys="k", born_timestamp=datetime.now(UTC))
        store.append("t", memoryview(b"x"), queue_id=1, flag=2, durable=True)
        results = store.append_many("t", [b"a", mqstore.Message(b"b", keys=("k",))])
        assert_type(results, list[mqstore.AppendResult])
        found = store.read("t", 0, filter="a || b", follow=True, timeout=timedelta(seconds=1))
        assert_type(found, Iterator[mqstore.StoredMessage])
        condition = mqstore.sql("a > 5")
        assert_type(condition, mqstore.SqlFilter)
        assert_type(condition.properties, tuple[str, ...])
        assert_type(condition.matches({"a": "6"}), bool)
        assert_type(condition.evaluate(mqstore.Message(b"x")), bool | None)
        store.read("t", 0, filter=condition)
        for message in found:
            assert_type(message.body, bytes)
            assert_type(message.keys, tuple[str, ...])
            assert_type(message.tags, str | None)
            assert_type(message.properties, dict[str, str])
            assert_type(message.born_time, datetime)
            assert_type(message.unique_id, str | None)
        assert_type(store.get(result.message_id), mqstore.StoredMessage | None)
        assert_type(store.get_at(0), mqstore.StoredMessage)
        assert_type(store.wait("t", 0, 1, timeout=0.5), bool)
        assert_type(store.offset_for_time("t", 0, 5, boundary="upper"), int)
        assert_type(store.topics(), list[str])
        assert_type(store.queues("t"), list[mqstore.QueueInfo])
        assert_type(store.stats(), mqstore.StoreStats)
        assert_type(store.verify(), mqstore.VerifyReport)
    assert_type(mqstore.info(Path("s")), mqstore.StoreInfo)
    assert_type(mqstore.verify("s", progress=print).problems, tuple[mqstore.Problem, ...])
    assert_type(mqstore.compact("s", in_place=True), mqstore.CompactionReport)
    try:
        mqstore.open("s")
    except mqstore.StoreLockedError as error:
        assert_type(error.pid, int | None)
    except mqstore.CorruptionError as error:
        assert_type(error.offset, int)


def mistakes(store: mqstore.Store) -> None:
    store.append("t", "text")  # type: ignore[arg-type]
    store.append("t", b"x", "k")  # type: ignore[call-arg]
    store.offset_for_time("t", 0, 0, boundary="middle")  # type: ignore[arg-type]
    mqstore.open("s", "w")  # type: ignore[arg-type]
    print(store.read("t").body)  # type: ignore[attr-defined]
