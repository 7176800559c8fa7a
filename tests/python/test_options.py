"""StoreOptions: types, bounds, overrides, RocketMQ's own file."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from mqstore import BrokerOptions, StoreOptions, testing
from mqstore._options import native_form, normalise
from mqstore.types import StoreOptionsDict

TUNING = {
    "flush_least_pages": 4,
    "flush_thorough_interval": 10.0,
    "commit_interval": 0.2,
    "pool_size": 16 << 20,
    "busy_after": 1.0,
    "queue_wait_limit": 0.2,
    "prewarm": True,
    "lock_memory": False,
    "dispatch_threads": None,
    "max_open_files": None,
    "index_tags": False,
    "delete_interval": 0.1,
    "held_limit": 120.0,
    "compaction_dirty_ratio": 0.5,
    "compaction_memory_size": 100 << 20,
    "compaction_log_file_size": 104_857_600,
    "compaction_queue_file_size": 10_485_760,
    "read_only_commit_log_paths": (),
}

DEFAULTS = {
    "recovery": "strict",
    "segment_size": 1 << 30,
    "queue_file_entries": 300_000,
    "index_slots": 5_000_000,
    "index_entries": 20_000_000,
    "durability": "async",
    "flush_interval": 0.5,
    "visibility": "appended",
    "record_crc": True,
    "max_message_size": 4 << 20,
    "compression": None,
    "compress_over": 4096,
    "default_queues": 1,
    "auto_create_topics": True,
    "store_host": "127.0.0.1:10911",
    "retention": None,
    "retention_policy": "finished",
    "group_timeout": None,
    "retention_bytes": None,
    "max_bytes": None,
    "delete_when": "*",
    "disk_clean_ratio": None,
    "disk_force_ratio": None,
    "disk_refuse_ratio": None,
    "secure_wipe": False,
    "expire_uncompacted": False,
    "compaction_interval": None,
    "compaction_feed": True,
    "delay_levels": None,
    "commit_log_paths": (),
    "derived_path": None,
    "replication": None,
    "replicated": False,
    "dledger_end": "queues",
    "on_event": None,
    "before_delete": None,
    "advanced": TUNING,
}

TINY = {"segment_size": 4096, "queue_file_entries": 1, "index_slots": 1, "index_entries": 2}


def test_defaults() -> None:
    assert dataclasses.asdict(StoreOptions()) == DEFAULTS


def test_keywords_of_open_are_the_fields() -> None:
    keywords = {name: kind.__forward_arg__ for name, kind in StoreOptionsDict.__annotations__.items()}
    assert keywords == {field.name: field.type for field in dataclasses.fields(StoreOptions)}


@pytest.mark.parametrize(
    ("function", "defaults"),
    [(mqstore.open, StoreOptions()), (mqstore.aio.open, StoreOptions()), (testing.open, testing.SMALL)],
)
def test_completion_lists_the_options(function: Any, defaults: StoreOptions) -> None:
    """`inspect.signature` is what `help` and the completion of a shell read."""
    fields = dataclasses.fields(StoreOptions)
    shown = list(inspect.signature(function).parameters.values())[-len(fields) :]
    assert [(each.name, each.annotation) for each in shown] == [(field.name, field.type) for field in fields]
    assert repr(shown.pop().default) == "BrokerOptions()"
    assert [repr(each.default) for each in shown] == [repr(getattr(defaults, each.name)) for each in shown]


@pytest.mark.parametrize("thing", [mqstore.open, mqstore.aio.open, testing.open, StoreOptions])
def test_help_describes_each_option(thing: Any) -> None:
    """`tools/options_page.py` writes the texts; tests/python/test_api_pages.py checks their defaults and bounds."""
    described = re.findall(r"^    (\w+): \S", (inspect.getdoc(thing) or "").partition("\nOptions:\n")[2], re.MULTILINE)
    assert described == [field.name for field in dataclasses.fields(StoreOptions)]


@pytest.mark.parametrize(
    ("call", "name", "meant"),
    [
        (lambda: StoreOptions(retenton="7d"), "retenton", "retention"),  # type: ignore[call-arg]
        (lambda: BrokerOptions(pool_sise=1), "pool_sise", "pool_size"),  # type: ignore[call-arg]
        (lambda: mqstore.open("none", lock_timout=1), "lock_timout", "lock_timeout"),  # type: ignore[call-arg]
        (lambda: mqstore.compact("none", in_place=True, treads=1), "treads", "threads"),  # type: ignore[call-arg]
        (lambda: mqstore.compact("none", in_place=True, forse=1), "forse", "force"),  # type: ignore[call-arg]
    ],
)
def test_a_typo_gets_the_nearest_name(call: Callable[[], object], name: str, meant: str) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match=f"option {name}: no such option; did you mean {meant}"):
        call()


def test_a_broker_option_names_its_place() -> None:
    with pytest.raises(mqstore.InvalidOptionError, match=r"pass advanced=mqstore.BrokerOptions\(pool_size="):
        StoreOptions(pool_size=1 << 20)  # type: ignore[call-arg]


def test_frozen_equal_picklable() -> None:
    options = StoreOptions(segment_size=1 << 20)
    assert pickle.loads(pickle.dumps(options)) == options
    assert hash(options) == hash(StoreOptions(segment_size=1 << 20))
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.segment_size = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        StoreOptions(1 << 20)  # type: ignore[misc]


def test_durations_are_seconds_timedelta_or_text() -> None:
    assert StoreOptions(flush_interval=timedelta(milliseconds=250)).flush_interval == 0.25
    assert StoreOptions(flush_interval=2) == StoreOptions(flush_interval=2.0)
    for same in ("2s", "2", "PT2S", timedelta(seconds=2)):
        assert StoreOptions(flush_interval=same).flush_interval == 2.0
    for wrong in ("soon", None, True, float("nan"), float("inf"), -1):
        with pytest.raises(mqstore.InvalidOptionError, match="flush_interval"):
            StoreOptions(flush_interval=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_size", 4095),
        ("segment_size", 1 << 31),
        ("segment_size", -1),
        ("segment_size", 1 << 80),
        ("segment_size", "1GiB"),
        ("segment_size", 1.5),
        ("queue_file_entries", 0),
        ("index_slots", 0),
        ("index_entries", 1),
        ("durability", "maybe"),
        ("recovery", "lenient"),
        ("recovery", 1),
        ("durability", 1),
        ("flush_interval", 0),
        ("record_crc", 1),
        ("max_message_size", 9),
        ("compression", "gzip"),
        ("compression", 1),
        ("compress_over", -1),
        ("compress_over", None),
        ("default_queues", 0),
        ("store_host", "here"),
        ("store_host", "127.0.0.1:99999"),
        ("retention", 0),
        ("retention_policy", "age"),
        ("retention_policy", None),
        ("group_timeout", 0),
        ("retention_bytes", 0),
        ("retention_bytes", 1.5),
        ("max_bytes", 0),
        ("max_bytes", 2.0),
        ("delete_when", "24"),
        ("delete_when", ""),
        ("delete_when", 4),
        ("disk_clean_ratio", 75),
        ("disk_force_ratio", -0.1),
        ("disk_refuse_ratio", "90"),
        ("secure_wipe", None),
        ("expire_uncompacted", 1),
        ("compaction_interval", 0),
        ("compaction_interval", 4e7),
        ("compaction_feed", 1),
        ("delay_levels", ""),
        ("delay_levels", "1s 5"),
        ("delay_levels", "1s 5w"),
        ("delay_levels", "-1s"),
        ("delay_levels", " ".join(["1s"] * 257)),
        ("delay_levels", "36501d"),
        ("delay_levels", ()),
        ("delay_levels", (1, 2.5)),
        ("delay_levels", (1, -1)),
        ("delay_levels", ("soon",)),
        ("delay_levels", b"1s"),
        ("delay_levels", 3),
        ("advanced", None),
        ("advanced", {"prewarm": False}),
    ],
)
def test_out_of_bounds(home: Path, name: str, value: object) -> None:
    with pytest.raises(mqstore.InvalidOptionError) as caught:
        mqstore.open(home, "create", **{name: value})  # type: ignore[arg-type]
    assert caught.value.option == name
    assert not home.exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flush_thorough_interval", 1e9),
        ("flush_least_pages", -1),
        ("dispatch_threads", 9),
        ("max_open_files", 1),
        ("delete_interval", 3601),
        ("held_limit", 86401),
        ("compaction_dirty_ratio", 1.1),
        ("compaction_memory_size", -1),
        ("compaction_log_file_size", 1 << 31),
        ("compaction_queue_file_size", 91),
        ("read_only_commit_log_paths", ("/old",)),
    ],
)
def test_tuning_out_of_bounds(home: Path, name: str, value: object) -> None:
    with pytest.raises(mqstore.InvalidOptionError) as caught:
        mqstore.open(home, "create", advanced=BrokerOptions(**{name: value}))  # type: ignore[arg-type]
    assert caught.value.option == name
    assert not home.exists()


def test_smallest_geometry_works(home: Path) -> None:
    with mqstore.open(home, "create", **TINY) as store:
        for number in range(20):
            store.append("t", b"x" * 500, keys=str(number))
    with mqstore.open(home) as store:
        assert [message.queue_offset for message in store.read("t")] == list(range(20))
        for number in range(20):
            assert [found.queue_offset for found in store.lookup("t", str(number))] == [number]


def test_unknown_option_suggests(home: Path) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="did you mean segment_size"):
        mqstore.open(home, "create", segmentsize=4096)  # type: ignore[call-arg]
    with pytest.raises(mqstore.InvalidOptionError, match=r"pass advanced=mqstore.BrokerOptions\(prewarm=...\)"):
        mqstore.open(home, "create", prewarm=False)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="StoreOptions"):
        mqstore.open(home, "create", options={"segment_size": 4096})  # type: ignore[arg-type]


def test_overrides_win_over_options(home: Path) -> None:
    with mqstore.open(home, "create", options=StoreOptions(segment_size=8192), segment_size=4096) as store:
        store.append("t", b"x")
    assert (home / "commitlog" / f"{0:020d}").stat().st_size == 4096


def test_advanced_replaces_the_tuning_of_the_options() -> None:
    conf = StoreOptions(segment_size=8192, advanced=BrokerOptions(prewarm=False, held_limit=1))
    chosen = normalise(conf, {"advanced": BrokerOptions(prewarm=False), "segment_size": 4096})
    assert chosen == StoreOptions(segment_size=4096, advanced=BrokerOptions(prewarm=False))
    assert native_form(chosen)["held_limit"] == 120_000
    assert normalise(conf, {}) is conf


def test_geometry_of_the_directory_wins(home: Path) -> None:
    with mqstore.open(home, "create", **TINY) as store:
        store.append("t", b"x", keys="k")
    with mqstore.open(home, "rw", segment_size=1 << 20, queue_file_entries=10, index_slots=9, index_entries=9) as store:
        for _ in range(20):
            store.append("t", b"y" * 500, keys="k")
        assert len(list(store.lookup("t", "k"))) == 21
    assert {path.stat().st_size for path in (home / "commitlog").iterdir()} == {4096}
    assert {path.stat().st_size for path in (home / "consumequeue/t/0").iterdir()} == {20}
    assert len({path.stat().st_size for path in (home / "index").iterdir()}) == 1


CONF = r"""
# a broker's file
! another comment
brokerName = a
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue : 6010
maxHashSlotNum 500
maxIndexNum=20\
00
flushDiskType=SYNC_FLUSH
flushIntervalCommitLog=1000
flushCommitLogThoroughInterval=20000
flushCommitLogLeastPages=8
enabledAppendPropCRC=true
maxMessageSize=65536
defaultTopicQueueNums=4
autoCreateTopicEnable=false
brokerIP1=10.0.0.7
listenPort=20911
fileReservedTime=48
deleteWhen=04;16
deleteCommitLogFilesInterval=50
destroyMapedFileIntervalForcibly=60000
diskMaxUsedSpaceRatio=5
diskSpaceCleanForciblyRatio=80
diskSpaceWarningLevelRatio=99
messageDelayLevel=2s 9m
storePathRootDir=/data/store
storePathCommitLog=/disk1/log, /disk2/log
readOnlyCommitLogStorePaths=/data/store/commitlog
"""


def test_broker_conf(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(CONF)
    assert StoreOptions.from_broker_conf(path) == StoreOptions(
        segment_size=1 << 20,
        queue_file_entries=301,
        index_slots=500,
        index_entries=2000,
        durability="sync",
        flush_interval=1.0,
        record_crc=True,
        max_message_size=65536,
        default_queues=4,
        auto_create_topics=False,
        store_host="10.0.0.7:20911",
        retention=48 * 3600.0,
        retention_policy="time",
        delete_when="04;16",
        disk_clean_ratio=0.10,
        disk_force_ratio=0.80,
        disk_refuse_ratio=0.90,
        delay_levels="2s 9m",
        commit_log_paths=("/disk1/log", "/disk2/log"),
        advanced=BrokerOptions(
            flush_thorough_interval=20.0,
            flush_least_pages=8,
            delete_interval=0.05,
            held_limit=60.0,
            read_only_commit_log_paths=("/data/store/commitlog",),
        ),
    )


def test_broker_conf_of_compaction(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(
        "compactionScheduleInternal=60000\nmaxOffsetMapSize=1200\ncompactionThreadNum=4\nenableCompaction=false\n"
        "compactionMappedFileSize=65536\ncompactionCqMappedFileSize=4600\n"
    )
    options = StoreOptions.from_broker_conf(path)
    assert (options.compaction_interval, options.advanced.compaction_memory_size) == (60.0, 300)
    assert not options.compaction_feed
    tuning = options.advanced
    assert (tuning.compaction_log_file_size, tuning.compaction_queue_file_size) == (65_536, 4600)


def test_broker_conf_with_its_log_where_it_always_is(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("storePathRootDir=/a/store\nstorePathCommitLog=/a/store/commitlog\ncleanFileForciblyEnable=false\n")
    options = StoreOptions.from_broker_conf(path)
    assert (options.commit_log_paths, options.disk_force_ratio) == ((), 1.0)
    path.write_text("storePathRootDir=/a/store\nstorePathCommitLog=/b/log\nreadOnlyCommitLogStorePaths=/c\n")
    options = StoreOptions.from_broker_conf(path)
    assert options.commit_log_paths == ("/b/log",)
    assert options.advanced.read_only_commit_log_paths == (), "RocketMQ reads it for several paths only"


def test_broker_conf_is_silent_means_rocketmq(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_bytes(b"brokerName=caf\xe9\\u0041\r\n")
    assert StoreOptions.from_broker_conf(str(path)) == StoreOptions(
        record_crc=False,
        default_queues=8,
        retention=timedelta(hours=72),
        retention_policy="time",
        delete_when="04",
        disk_clean_ratio=0.75,
        disk_force_ratio=0.85,
        disk_refuse_ratio=0.9,
        delay_levels="1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    )


def test_broker_conf_with_settings_that_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("useReentrantLockWhenPutMessage=false\nflushCommitLogTimed=false\nflushConsumerOffsetInterval=1\n")
    silent = tmp_path / "silent.conf"
    silent.write_text("")
    assert StoreOptions.from_broker_conf(path) == StoreOptions.from_broker_conf(silent)


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ("mapedFileSizeCommitLog=65536\nmapedFileSizeConsumeQueue=300000", (65536, 15_000)),
        ("mapedFileSizeCommitLog=65536\nmappedFileSizeCommitLog=131072", (131_072, 300_000)),
        ("mappedFileSizeConsumeQueue=2000\nmapedFileSizeConsumeQueue=6000", (1 << 30, 100)),
    ],
)
def test_names_of_older_brokers_are_read_and_newer_names_win(
    tmp_path: Path, settings: str, sizes: tuple[int, int]
) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(settings)
    options = StoreOptions.from_broker_conf(path)
    assert (options.segment_size, options.queue_file_entries) == sizes


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("mappedFilesizeCommitLog", "mappedFileSizeCommitLog"),
        ("mappedFileSizeComitLog", "mappedFileSizeCommitLog"),
        ("fileReserveTime", "fileReservedTime"),
        ("brokerIp1", "brokerIP1"),
    ],
)
def test_a_misspelled_setting_is_a_warning_with_the_name_that_was_meant(tmp_path: Path, name: str, meant: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"{name}=1")
    with pytest.warns(mqstore.StoreWarning, match=f"{name} is ignored; did you mean {meant}") as found:
        StoreOptions.from_broker_conf(path)
    assert found[0].filename == __file__


@pytest.mark.parametrize(
    "name",
    [
        "brokerIP2",
        "brokerId",
        "haListenPort",
        "mappedFileSizeConsumeQueueExt",
        "mapperFileSizeBatchConsumeQueue",
        "mappedFileSizeTimerLog",
        "commitCommitLogThoroughInterval",
        "flushConsumerOffsetHistoryInterval",
        "transientStorePoolSize",
        "waitTimeMillsInPullQueue",
    ],
)
def test_other_settings_of_a_broker_are_no_mistakes(tmp_path: Path, name: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"{name}=1")
    StoreOptions.from_broker_conf(path)


@pytest.mark.parametrize("hours", ["0", "-1", "-72"])
def test_a_broker_conf_that_keeps_nothing_is_refused(tmp_path: Path, hours: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(f"fileReservedTime={hours}")
    with pytest.raises(mqstore.InvalidOptionError, match=f"fileReservedTime: {hours} h .*write at least 1.*None"):
        StoreOptions.from_broker_conf(path)


@pytest.mark.parametrize(
    "line",
    [
        "mapedFileSizeCommitLog=100",
        "mappedFileSizeConsumeQueue=0",
        "maxHashSlotNum=0",
        "maxIndexNum=1",
        "flushIntervalCommitLog=0",
        "flushCommitLogLeastPages=-1",
        "flushCommitLogThoroughInterval=-5",
        "maxMessageSize=1",
        "defaultTopicQueueNums=0",
        "fileReservedTime=9999999999999",
        "deleteWhen=25",
        "deleteCommitLogFilesInterval=-1",
        "compactionScheduleInternal=0",
        "compactionMappedFileSize=1",
        "messageDelayLevel=soon",
        "brokerIP1=broker.example",
        "listenPort=70000",
    ],
)
def test_a_broker_conf_is_refused_if_an_open_would_refuse_it(tmp_path: Path, line: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(line)
    with pytest.raises(mqstore.InvalidOptionError) as refused:
        StoreOptions.from_broker_conf(path)
    assert refused.value.option == line.partition("=")[0]


@pytest.mark.parametrize("line", ["maxIndexNum=many", "maxIndexNum=1_000", "flushDiskType=NEVER", "x=\\u12"])
def test_bad_broker_conf(tmp_path: Path, line: str) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(line)
    with pytest.raises(mqstore.InvalidOptionError):
        StoreOptions.from_broker_conf(path)


def test_missing_broker_conf(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        StoreOptions.from_broker_conf(tmp_path / "none")


def test_store_host_is_written(home: Path) -> None:
    with mqstore.open(home, "create", store_host="[2001:db8::1]:10911", **TINY) as store:
        result = store.append("t", b"x")
        message = store.get_at(result.commit_log_offset)
        assert message.store_host == "[2001:db8::1]:10911"
        assert len(result.message_id) == 56
        assert store.get(result.message_id) == message
