"""A real name server and broker on a directory that mqstore filled. The official client consumes and produces."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_store, md5, mqstore_fields
from .driver import JavaBroker, JavaClient, JavaSession
from .java_rows import JavaMessage, Spec, body_of, generated_body, message
from .market import BULK, Trade, java_config, write
from .scenarios import mixed, topic
from .shop import ask

if TYPE_CHECKING:
    from pathlib import Path

    from mqstore.types import Compression

    from .tally import Tally

pytestmark = pytest.mark.interop

COUNT = 8000
CLIENT_ADDS = {"MIN_OFFSET", "MAX_OFFSET", "__CRC32#"}
"""Properties that the client adds to received messages, and the one that mqstore adds."""
COMMIT_BITS = 0x8
COMPRESSIONS: tuple[Compression, ...] = ("zstd", "lz4", "zlib")


@pytest.mark.timeout(300)
def test_a_broker_serves_what_mqstore_wrote_and_goes_on(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    trade = Trade("broker", BULK, lambda: mixed(BULK, COUNT, "broker"))
    specs = trade.specs()
    results = write(path, trade, specs)
    packed = b"compressed by mqstore " * 1000
    with mqstore.open(path, "rw") as store:
        for kind in COMPRESSIONS:
            store.append("packed", packed, compression=kind)
    with (
        JavaSession(version, tmp_path / "client") as session,
        JavaBroker(version, path, tmp_path / "broker", java_config({})) as broker,
    ):
        with JavaClient(session, broker) as client:
            client.create_topics(BULK | {"packed": 1, "later": 1, "decided": 1})
            consumed = [each for name in BULK for each in client.consume(name)]
            check_consumed(specs, results, consumed, tally)
            check_look_ups(client, specs, results, tally)
            # The client decompresses.
            bodies = [(each.body_size, each.body_md5) for each in client.consume("packed")]
            assert bodies == [(len(packed), md5(packed))] * len(COMPRESSIONS)
            produced = produce(client)
            await_delayed(client)
        broker.stop()
    check_produced(path, produced, tally)
    # The same directory through the store library: every queue, also the broker's own ones.
    with JavaSession(version, tmp_path / "reader") as session:
        topics = {name: topic(count) for name, count in (BULK | {"packed": 1, "later": 1, "decided": 1}).items()}
        java = session.open(path, config=java_config({}), topics=topics)
        answers = ask(java)
        java.close()
    assert_same_store(path, answers, tally)


def check_consumed(specs: list[Spec], results: list[dict[str, Any]], consumed: list[JavaMessage], tally: Tally) -> None:
    """Every message came once, with the fields that mqstore got."""
    wanted = {
        (result["topic"], result["queue_id"], result["queue_offset"]): (
            spec["properties"],
            spec["flag"],
            spec["born_timestamp"],
            (len(body_of(spec)), md5(body_of(spec))),
            result["commit_log_offset"],
            result["store_timestamp"],
        )
        for spec, result in zip(specs, results, strict=True)
    }
    seen = {
        (each.topic, each.queue_id, each.queue_offset): (
            {name: value for name, value in each.properties.items() if name not in CLIENT_ADDS},
            each.flag,
            each.born_timestamp,
            (each.body_size, each.body_md5),
            each.commit_log_offset,
            each.store_timestamp,
        )
        for each in consumed
    }
    assert len(consumed) == len(seen) == len(wanted) == COUNT
    different = [(at, seen.get(at), asked) for at, asked in wanted.items() if seen.get(at) != asked]
    assert not different, f"{len(different)} messages differ, the first: {different[0]}"
    tally.messages += len(seen)


def check_look_ups(client: JavaClient, specs: list[Spec], results: list[dict[str, Any]], tally: Tally) -> None:
    """The broker finds messages by the unique ids and keys that mqstore indexed."""
    places: dict[tuple[str, str], list[int]] = {}
    for spec, result in zip(specs, results, strict=True):
        for key in dict.fromkeys(spec["properties"].get("KEYS", "").split()):
            places.setdefault((spec["topic"], key), []).append(result["commit_log_offset"])
    for (name, key), offsets in list(places.items())[:: len(places) // 20]:
        assert sorted(each.commit_log_offset for each in client.look_up(name, key)) == sorted(offsets), (name, key)
        tally.keys += 1
    for spec, result in list(zip(specs, results, strict=True))[::1000]:
        (found,) = client.look_up(spec["topic"], spec["properties"]["UNIQ_KEY"], unique=True)
        assert found.commit_log_offset == result["commit_log_offset"]
        tally.keys += 1


def produce(client: JavaClient) -> list[tuple[Spec, dict[str, Any]]]:
    """Send single messages, big bodies (the client compresses them), a batch, delayed and transactional messages."""
    specs: list[Spec] = [
        message("orders", (f"new{n}", 20 + n), queue_id=n % 4, keys=[f"new-{n}"], tags="fresh") for n in range(500)
    ]
    specs += [message("payments", (f"big{n}", 20_000), queue_id=n % 2, keys=["big"]) for n in range(20)]
    specs += [
        message("orders", (f"later{n}", 33), keys=["later"]) | {"topic": "later", "delay_level": 1} for n in range(5)
    ]
    specs += [
        message("decided", (f"tx{n}", 44), keys=["tx"]) | {"transaction": ("commit", "rollback")[n % 2]}
        for n in range(10)
    ]
    items = [message("audit", (f"item{n}", 10), keys=[f"item-{n}"]) for n in range(8)]
    specs.append({"topic": "audit", "queue_id": 0, "batch": items})
    rows = client.produce(specs)
    assert Counter(each["status"] for each in rows) == {"SEND_OK": len(specs)}
    return list(zip(specs, rows, strict=True))


def await_delayed(client: JavaClient) -> None:
    """Wait until the broker has delivered the messages with a delay of one second."""
    deadline = time.monotonic() + 30
    while len(client.consume("later")) < 5:
        assert time.monotonic() < deadline, "delayed messages were not delivered"
        time.sleep(0.5)


def check_produced(path: Path, produced: list[tuple[Spec, dict[str, Any]]], tally: Tally) -> None:
    """mqstore reads the client's messages at the places that the client reported."""
    with mqstore.open(path) as store:
        for spec, sent in produced:
            if "batch" in spec or "delay_level" in spec or "transaction" in spec:
                continue
            queue = store.read(spec["topic"], sent["queue_id"], sent["queue_offset"], sent["queue_offset"] + 1)
            (seen,) = [mqstore_fields(each) for each in queue]
            assert seen["unique_id"] == sent["unique_id"]
            assert seen["body"][0] == spec["size"]
            assert store.get(sent["unique_id"]) is not None
            tally.messages += 1
        last = list(store.read("audit", 0))[-8:]
        assert [each.body for each in last] == [generated_body(f"item{n}", 10) for n in range(8)]
        delivered = sorted(each.body for each in store.read("later"))
        assert delivered == sorted(generated_body(f"later{n}", 33) for n in range(5))
        decided = list(store.read("decided"))
        assert sorted(each.body for each in decided) == sorted(generated_body(f"tx{n}", 44) for n in range(0, 10, 2))
        assert all(each.sys_flag & COMMIT_BITS for each in decided)
        assert len(list(store.read("RMQ_SYS_TRANS_HALF_TOPIC"))) == 10
        tally.messages += 8 + 5 + 5 + 10
