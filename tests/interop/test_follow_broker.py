"""A live copy of a real broker has its topics, groups and offsets, and another broker continues on it."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import md5
from .driver import JavaBroker, JavaClient, JavaSession
from .java_rows import generated_body, message
from .market import GEOMETRY, java_config
from .test_follow import assert_equal_logs

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop


def group_offsets(path: Path) -> dict[str, dict[str, int]]:
    """Return the offsets of groups that a broker would find."""
    file = path / "config/consumerOffset.json"
    if not file.exists():
        return {}
    # RocketMQ's keys of queues are bare numbers.
    text = re.sub(r"([{,])(\d+):", r'\1"\2":', file.read_text())
    table: dict[str, dict[str, int]] = json.loads(text)["offsetTable"]
    return table


@pytest.mark.timeout(300)
def test_a_broker_with_its_tables(version: str, tmp_path: Path, tally: Tally) -> None:
    """Topics, groups and their offsets come with the log, and another broker continues on the copy."""
    path, copy = tmp_path / "master", tmp_path / "copy"
    with mqstore.open(path, "create", **GEOMETRY) as store:
        store.create_topic("orders", 2)
        store.append_many("orders", [generated_body(f"o{n}", 3000) for n in range(1500)])
    with (
        JavaSession(version, tmp_path / "client") as session,
        JavaBroker(version, path, tmp_path / "broker", java_config({})) as broker,
    ):
        host, port = broker.address.split(":")
        with (
            JavaClient(session, broker) as client,
            mqstore.follow(
                f"{host}:{int(port) + 1}", copy, metadata=broker.address, metadata_interval=0.5, broker_id=7
            ) as follower,
        ):
            client.produce([message("orders", (f"n{n}", 100), queue_id=n % 2) for n in range(20)])
            assert len(client.take("billing", "orders", 1520)) >= 1520
            deadline = time.monotonic() + 60
            while group_offsets(copy).get("orders@billing") != {"0": 760, "1": 760}:
                assert time.monotonic() < deadline, group_offsets(copy)
                time.sleep(0.1)
            status = follower.wait(timeout=60)
            assert status.metadata_error is None
            assert status.metadata_end is not None
            assert mqstore.info(copy).segment_size == GEOMETRY["segment_size"]
        broker.stop()
    assert_equal_logs(path, copy)
    table = json.loads((copy / "config/topics.json").read_text())["topicConfigTable"]
    assert table["orders"]["readQueueNums"] == 2
    modes = json.loads((copy / "config/messageRequestMode.json").read_text())
    assert "messageRequestModeMap" in modes
    tally.messages += 1520
    with (
        JavaSession(version, tmp_path / "client2") as session,
        JavaBroker(version, copy, tmp_path / "broker2", java_config({})) as broker,
        JavaClient(session, broker) as client,
    ):
        names = {"cluster": "interop", "broker": "interop"}
        assert session.identity(copy / "brokerIdentity") == names | {"broker_id": 7}
        client.produce([message("orders", b"after", queue_id=0)])
        (only,) = client.take("billing", "orders", 1)
        assert only.body_md5 == md5(b"after")
