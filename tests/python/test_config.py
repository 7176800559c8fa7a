"""`mqstore config show`: the options that an open would use, and their sources."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli

BROKER = """
brokerName=a
namesrvAddr=127.0.0.1:9876
fileReservedTime=48
flushDiskType=ASYNC_FLUSH
transientStorePoolEnable=true
mappedFileSizeCommitLog=65536
listenPort=10921
"""


def shown(cli: Cli, *arguments: object) -> dict[str, dict[str, Any]]:
    done = cli("config", "show", *arguments, "--format", "json")
    assert done.returncode == 0, done.stderr
    return {one["option"]: one for one in json.loads(done.stdout)}


def test_defaults(cli: Cli) -> None:
    found = shown(cli)
    own = {field.name for field in fields(mqstore.StoreOptions)} - {"on_event", "before_delete", "advanced"}
    tuning = {field.name for field in fields(mqstore.BrokerOptions)}
    assert set(found) == own | tuning
    for name, one in found.items():
        default = getattr(mqstore.StoreOptions() if name in own else mqstore.BrokerOptions(), name)
        assert one["value"] == (list(default) if isinstance(default, tuple) else default)
        assert (one["source"], one["setting"]) == ("default", None)
    assert found["durability"]["rocketmq"] == ["flushDiskType", "transientStorePoolEnable"]
    assert found["secure_wipe"]["rocketmq"] == []


@pytest.mark.slow
def test_a_brokers_file(tmp_path: Path, cli: Cli) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(BROKER)
    found = shown(cli, "--conf", conf)
    chosen = mqstore.StoreOptions.from_broker_conf(conf)
    assert found["retention"]["value"] == chosen.retention == 48 * 3600
    assert (found["retention"]["source"], found["retention"]["setting"]) == ("conf", "fileReservedTime")
    assert (found["durability"]["value"], found["durability"]["source"]) == ("pooled", "conf")
    assert (found["default_queues"]["value"], found["default_queues"]["source"]) == (8, "conf default")
    assert found["store_host"]["value"] == chosen.store_host == "127.0.0.1:10921"
    assert found["flush_interval"]["source"] == "default"
    note = cli("config", "show", "--conf", conf).stderr
    assert note.endswith("not used by a store: brokerName, namesrvAddr\n")
    conf.write_text("mappedFileSizeComitLog=65536\n")
    note = cli("config", "show", "--conf", conf).stderr
    assert "mappedFileSizeComitLog is ignored; did you mean mappedFileSizeCommitLog?" in note
    conf.write_text("useABSLock=true\nuseReentrantLockWhenPutMessage=false\nflushCommitLogTimed=true\n")
    note = cli("config", "show", "--conf", conf).stderr
    assert note.endswith("accepted but not used: flushCommitLogTimed, useABSLock, useReentrantLockWhenPutMessage\n")


def test_a_directory_wins(home: Path, tmp_path: Path, cli: Cli) -> None:
    sizes = {"segment_size": 32 << 10, "queue_file_entries": 10, "index_slots": 7, "index_entries": 50}
    with mqstore.open(home, "create", **sizes) as store:
        store.append("orders", b"x", keys="k")
    conf = tmp_path / "broker.conf"
    conf.write_text(BROKER)
    found = shown(cli, home, "--conf", conf)
    assert {name: (found[name]["value"], found[name]["source"]) for name in sizes} == {
        name: (size, "directory") for name, size in sizes.items()
    }
    table = cli("config", "show", home).stdout
    assert [line.split()[:4] for line in table.splitlines() if "segment_size" in line] == [
        ["segment_size", "32.0", "KiB", "directory"]
    ]


def test_a_value_that_a_broker_would_refuse(tmp_path: Path, cli: Cli) -> None:
    conf = tmp_path / "broker.conf"
    for value in ("soon", "0"):
        conf.write_text(f"fileReservedTime={value}")
        done = cli("config", "show", "--conf", conf)
        assert (done.returncode, done.stdout) == (3, "")
        assert "fileReservedTime" in done.stderr
    assert cli("config", "show", "--conf", tmp_path / "none").returncode == 3
