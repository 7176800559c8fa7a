"""The verbs that write messages, topics and groups; selections, standard input and output, units, dry runs, notes."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import pkgutil
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import mqstore
import rocketmq_bytes as raw
from conftest import SMALL, Cli, tree_hash

DRY = "mqstore: this was a dry run: nothing was changed\n"


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def bodies(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [row["body_text"] for row in rows(done)]


def on_a_terminal(columns: int, *arguments: object) -> str:
    """What a command prints to a terminal with so many columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 25, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "mqstore", *map(str, arguments)]
    with subprocess.Popen(command, stdout=follower, env=environment) as process:
        os.close(follower)
        shown = b""
        try:
            while more := os.read(leader, 4096):
                shown += more
        except OSError:
            pass  # Linux raises this when the other end is closed.
        os.close(leader)
    assert process.returncode == 0
    return shown.decode().replace("\r\n", "\n")


# Bodies and whole messages.


def test_a_body_is_text_if_it_is_utf_8(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append_many("t", ["größe".encode(), b"\xff\x00", b""])
    found = rows(cli("cat", home))
    assert [one.get("body_text") for one in found] == ["größe", None, ""]
    assert [one.get("body_base64") for one in found] == [None, "/wA=", None]
    for verb in (["tail", home, "t"], ["get", home, found[0]["message_id"]]):
        assert rows(cli(*verb))[0] == found[0]


def test_bytes_that_cannot_be_decompressed_are_no_text(home: Path, cli: Cli) -> None:
    raw.write_log(home, [{"body": b"broken", "sys_flag": raw.COMPRESSED, "queue_offset": 0}])
    (found,) = rows(cli("cat", home))
    assert (found["body_base64"], "body_text" in found) == ("YnJva2Vu", False)


def test_whole_messages_at_80_columns(home: Path) -> None:
    text = " ".join(f"word{number}" for number in range(60)) + " größe 界界"
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("orders", text.encode(), keys=["A-1", "A-2"], tags="paid", properties={"region": "eu-central"})
        store.append("orders", b"short")
    shown = on_a_terminal(80, "cat", home)
    lines = shown.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert shown.count("short") == 1
    # The folded lines contain the whole body.
    assert text.replace(" ", "") in "".join(lines).replace(" ", "")
    for part in ("orders/0", "tags=paid", "keys=A-1 A-2", "region=eu-central"):
        assert part in shown
    # A message that fits has one line.
    (last,) = on_a_terminal(120, "tail", home, "orders", "-n", 1).splitlines()
    assert last.endswith("short")


# Selections.


@pytest.mark.slow
def test_cat_selects_by_time_key_and_body(home: Path, cli: Cli) -> None:
    stamp = 1_700_000_000_000
    raw.write_log(
        home,
        [
            {
                "body": f"body {number}".encode(),
                "stored": stamp + number * 1000,
                "queue_id": number % 2,
                "queue_offset": number // 2,
                "properties": raw.properties(KEYS=f"k{number} all"),
            }
            for number in range(10)
        ],
    )

    def numbers(*arguments: object) -> list[int]:
        done = cli("cat", home, *arguments)
        assert done.returncode == (0 if done.stdout else 1), done.stderr
        return sorted(int(json.loads(line)["body_text"].split()[1]) for line in done.stdout.splitlines())

    for order in ([], ["--log"]):
        assert numbers(*order, "--since", stamp + 7000) == [7, 8, 9]
        assert numbers(*order, "--since", "2023-11-14T22:13:27Z", "--until", stamp + 9000) == [7, 8]
        assert numbers(*order, "--until", stamp) == []
        assert numbers(*order, "--since", stamp + 99_000) == []
        assert numbers(*order, "--start-time", stamp + 8000, "--end-time", stamp + 9000) == [8]
        assert numbers(*order, "--key", "k3") == [3]
        assert numbers(*order, "--key", "k3", "--key", "k4") == [3, 4]
        assert numbers(*order, "--grep", "^body [2-4]$") == [2, 3, 4]
        assert numbers(*order, "--grep", "[2-4]", "--key", "all", "--limit", 1) == [2]
    assert numbers("--topic", "t", "--queue", 1, "--since", stamp + 7000) == [7, 9]
    assert numbers("--topic", "t", "--queue", 1, "--start", 4, "--since", stamp + 1000) == [9]
    assert cli("cat", home, "--topic", "t", "--queue", 7, "--since", stamp).returncode == 3
    for bad in (["--grep", "("], ["--since", "yesterday"]):
        assert cli("cat", home, *bad).returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["lookup", "export"])
def test_since_and_until_have_their_former_names(filled: Path, tmp_path: Path, cli: Cli, verb: str) -> None:
    with mqstore.open(filled) as store:
        times = sorted({message.store_timestamp for message in store.read("orders", 0)})

    def found(*options: object) -> int:
        if verb == "lookup":
            return len(cli("lookup", filled, "orders", "all", *options).stdout.splitlines())
        return json.loads(
            cli("export", filled, tmp_path / "o.jsonl", "--overwrite", *options, "--format", "json").stdout
        )["messages"]

    for ours, former in (("--since", "--start-time"), ("--until", "--end-time")):
        for when in (times[0], times[-1] + 60_000):
            assert found(ours, when) == found(former, when)
    assert found("--since", times[-1] + 60_000) == 0


# Standard input and output.


@pytest.mark.slow
def test_append_takes_a_text_a_file_or_standard_input(home: Path, tmp_path: Path, cli_process: Cli) -> None:
    assert cli_process("append", home, "orders", "--body", "x").returncode == 3
    assert not home.exists()
    (first,) = rows(cli_process("append", home, "orders", "--body", "größe", "--create", "--format", "jsonl"))
    assert (first["topic"], first["queue_offset"], first["durable"]) == ("orders", 0, True)
    (tmp_path / "body").write_bytes(b"\xff\n")
    assert rows(cli_process("append", home, "orders", tmp_path / "body"))[0]["queue_offset"] == 1
    labels = ["--key", "k", "--tag", "paid", "--property", "region=eu"]
    done = cli_process("append", home, "orders", "-", "--lines", *labels, input="one\ntwo\r\n")
    assert [row["queue_offset"] for row in rows(done)] == [2, 3]
    whole = cli_process("append", home, "orders", "-", "--format", "json", input="a\nb").stdout
    assert json.loads(whole)[0]["size"] > 0
    with mqstore.open(home) as store:
        found = list(store.read("orders", 0))
    assert [message.body for message in found] == ["größe".encode(), b"\xff\n", b"one", b"two", b"a\nb"]
    assert (found[2].keys, found[2].tags, found[2].properties["region"]) == (("k",), "paid", "eu")
    table = cli_process("append", home, "orders", "--body", "x", "--format", "table")
    assert "message id" in table.stdout
    assert table.stderr == ""


def test_append_says_that_it_created_a_topic(home: Path, cli: Cli) -> None:
    assert cli("append", home, "orders", "--body", "x", "--create").stderr == "mqstore: created the topic orders\n"
    assert cli("append", home, "orders", "--body", "x").stderr == ""


def test_append_delays(home: Path, cli: Cli) -> None:
    (row,) = rows(cli("append", home, "orders", "--body", "x", "--delay", "1h", "--create"))
    assert row["topic"] == "rmq_sys_wheel_timer"
    cli("append", home, "orders", "--body", "y", "--deliver-at", "2099-01-01T00:00:00Z")
    assert mqstore.info(home).delayed[0].messages == 2


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-", "--body", "x"],
        ["--body", "x", "--property", "region"],
        ["--body", "x", "--delay", "soon"],
        ["--body", "x", "--delay", "1h", "--deliver-at", "2099-01-01T00:00:00Z"],
    ],
    ids=" ".join,
)
def test_append_refuses(filled: Path, cli: Cli, arguments: list[str]) -> None:
    done = cli("append", filled, "orders", *arguments)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr


@pytest.mark.slow
def test_export_and_import_take_standard_output_and_input(filled: Path, tmp_path: Path, cli_process: Cli) -> None:
    file, target = tmp_path / "o.jsonl", tmp_path / "target"
    mqstore.export(filled, file)
    done = cli_process("export", filled, "-")
    assert done.stdout == file.read_text()
    assert done.stderr == "mqstore: exported 45 messages\n"
    assert cli_process("import", target, "-", input=done.stdout).returncode == 2
    missing = cli_process("import", target, "-", "--yes", input=done.stdout)
    assert (missing.returncode, "it does not exist" in missing.stderr) == (3, True)
    plan = cli_process("import", target, "-", "--create", "--dry-run", "--format", "json", input=done.stdout)
    assert (json.loads(plan.stdout)["source"], json.loads(plan.stdout)["messages"]) == ("-", 45)
    assert not target.exists()
    assert cli_process("import", target, "-", "--create", "--yes", input=done.stdout).returncode == 0
    assert mqstore.info(target).messages == 45
    assert cli_process("export", filled, "-", "--to", "store").returncode == 2
    pytest.importorskip("pyarrow")
    command = [sys.executable, "-m", "mqstore", "export", filled, "-", "--to", "parquet"]
    assert subprocess.run(command, capture_output=True, timeout=60).stdout[:4] == b"PAR1"


# Topics.


@pytest.mark.slow
def test_topics_are_created_changed_and_deleted(home: Path, cli: Cli) -> None:
    assert cli("topic", "create", home, "orders").returncode == 3
    done = cli("topic", "create", home, "orders", "--queues", 2, "--create", "--format", "json")
    assert [queue["queue_id"] for queue in json.loads(done.stdout)["queues"]] == [0, 1]
    cli("topic", "create", home, "prices", "--attribute", "cleanup.policy=COMPACTION", "--max-messages", 7)
    cli("append", home, "orders", "--body", "x")
    done = cli("topic", "alter", home, "orders", "--queues", 3, "--max-messages", 5)
    assert done.returncode == 0, done.stderr
    with mqstore.open(home) as store:
        assert {name: quota.max_messages for name, quota in store.quotas().items()} == {"orders": 5, "prices": 7}
        assert len(store.queues("orders")) == 3
    before = tree_hash(home)
    plan = cli("topic", "delete", home, "orders", "--dry-run", "--format", "json")
    assert json.loads(plan.stdout) == {"topic": "orders", "messages": 1, "dry_run": True}
    assert plan.stderr == DRY
    refused = cli("topic", "delete", home, "orders")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "with 1 message would" in refused.stderr
    assert tree_hash(home) == before
    done = cli("topic", "delete", home, "orders", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    with mqstore.open(home) as store:
        assert store.topics() == ["prices"]
    for verb in (["delete", home, "orders", "--yes"], ["alter", home, "orders", "--perm", 4]):
        assert cli("topic", *verb).returncode == 3
    for verb in (["alter", home, "prices"], ["create", home, "x", "--attribute", "a"]):
        assert cli("topic", *verb).returncode == 2


# Groups.


def lags(done: subprocess.CompletedProcess[str]) -> list[tuple[str, int, int, int, int]]:
    return [(row["topic"], row["queue_id"], row["offset"], row["max_offset"], row["lag"]) for row in rows(done)]


@pytest.fixture
def consumed(filled: Path) -> Path:
    with mqstore.open(filled, "rw") as store, store.consumer("billing", ["orders", "events"]) as consumer:
        consumer.commit({("orders", 0): 15, ("orders", 1): 20, ("events", 0): 5})
    return filled


def test_the_lag_of_groups(consumed: Path, cli: Cli) -> None:
    wanted = [("events", 0, 5, 5, 0), ("orders", 0, 15, 20, 5), ("orders", 1, 20, 20, 0)]
    assert lags(cli("group", "lag", consumed, "--queues", "--format", "jsonl")) == wanted
    assert lags(cli("group", "lag", consumed, "billing", "--queues", "--format", "jsonl")) == wanted
    unknown = cli("group", "lag", consumed, "biling")
    assert unknown.returncode == 2
    assert "did you mean billing?" in " ".join(unknown.stderr.replace("│", " ").split())


def test_the_lag_of_groups_by_topic(home: Path, cli: Cli) -> None:
    stored = int(time.time() * 1000) - 11_520_000
    messages = [{"stored": stored + number, "queue_id": number % 2, "queue_offset": number // 2} for number in range(8)]
    raw.write_log(home, messages)
    with mqstore.open(home, "rw") as store:
        with store.consumer("billing", "t", history=True) as consumer:
            consumer.commit({("t", 0): 4, ("t", 1): 2})
        with store.consumer("reports", "t") as consumer:
            consumer.commit({("t", 0): 0, ("t", 1): 1})
    slow, fast = rows(cli("group", "lag", home, "--format", "jsonl"))
    assert (slow["group"], slow["topic"], slow["queues"], slow["lag"]) == ("reports", "t", 2, 7)
    assert (slow["oldest_unread_timestamp"], slow["committed_timestamp"]) == (stored, None)
    assert 11_520 <= slow["behind_seconds"] < 11_640
    assert (fast["group"], fast["lag"], fast["oldest_unread_timestamp"]) == ("billing", 2, stored + 5)
    assert abs(fast["committed_timestamp"] - time.time() * 1000) < 60_000
    table = cli("group", "lag", home).stdout
    assert re.search(r"^ reports +t +2 +7 +3 h 1[23] min behind +- +$", table, re.MULTILINE)
    assert table.index("reports") < table.index("billing")


def test_the_last_messages_of_a_group(consumed: Path, cli: Cli) -> None:
    shown = rows(cli("last", consumed, "billing"))
    assert [(row["topic"], row["queue_id"], row["queue_offset"]) for row in shown] == [
        ("events", 0, 4), ("orders", 1, 19), ("orders", 0, 14),
    ]  # fmt: skip
    assert rows(cli("last", consumed, "billing", "orders", "--limit", 1)) == shown[1:2]
    assert len(cli("last", consumed, "billing", "--format", "table").stdout.splitlines()) == 3
    with mqstore.open(consumed, "rw") as store, store.consumer("new", "orders") as consumer:
        consumer.commit({("orders", 0): 0})
    none = cli("last", consumed, "new")
    sentence = "mqstore: the group new has consumed no message that is still in the store\n"
    assert (none.returncode, none.stdout, none.stderr) == (1, "", sentence)
    assert cli("last", consumed, "nobody").returncode == 2
    assert cli("last", consumed, "billing", "none").returncode == 3


def test_the_last_message_before_a_gap_of_a_compaction(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        for key in ["a", *"b" * 99, "c"]:
            store.append("prices", b"x" * 500, keys=key)
        with store.consumer("billing", "prices") as consumer:
            consumer.commit({("prices", 0): 99})
    mqstore.compact(home, in_place=True)
    (row,) = rows(cli("last", home, "billing"))
    with mqstore.open(home) as store:
        before = [message.queue_offset for message in store.read("prices", 0) if message.queue_offset < 99]
    assert len(before) < 50
    assert row["queue_offset"] == before[-1]


@pytest.mark.slow
def test_a_group_is_reset(consumed: Path, cli: Cli) -> None:
    before = tree_hash(consumed)
    plan = cli("group", "reset", consumed, "billing", "--to", "earliest", "--topic", "orders", "--dry-run",
               "--format", "jsonl")  # fmt: skip
    assert plan.stderr == DRY
    assert [(row["queue_id"], row["from_offset"], row["to_offset"]) for row in rows(plan)] == [(0, 15, 0), (1, 20, 0)]
    assert cli("group", "reset", consumed, "billing", "--to", "earliest").returncode == 2
    assert tree_hash(consumed) == before
    with mqstore.open(consumed) as store:
        when = [message.store_timestamp for message in store.read("orders", 0)][7]
        wanted = store.offset_for_time("orders", 0, when)
    for to, offset in (("earliest", 0), ("latest", 20), (str(when), wanted)):
        done = cli("group", "reset", consumed, "billing", "--to", to, "--topic", "orders", "--yes")
        assert (done.returncode, done.stderr) == (0, "")
        found = {
            (topic, queue): at
            for topic, queue, at, _, _ in lags(cli("group", "lag", consumed, "--queues", "--format", "jsonl"))
        }
        assert found["orders", 0] == offset
        assert found["events", 0] == 5
    assert cli("group", "reset", consumed, "nobody", "--to", "latest", "--yes").returncode == 2
    assert cli("group", "reset", consumed, "billing", "--to", "soon", "--yes").returncode == 2
    assert cli("group", "reset", consumed, "billing", "--to", "latest", "--topic", "none", "--yes").returncode == 3


@pytest.mark.slow
def test_dead_letters_are_listed_and_redriven(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        with store.work_queue("jobs", "mailers", max_attempts=1) as queue:
            for number in range(3):
                queue.put(b"job %d" % number)
                queue.nack(queue.get())
        store.create_topic("idle")
    assert bodies(cli("dead-letter", "list", home)) == ["job 0", "job 1", "job 2"]
    assert bodies(cli("dead-letter", "list", home, "mailers", "--limit", 2)) == ["job 0", "job 1"]
    assert cli("dead-letter", "list", home, "nobody").returncode == 2
    plan = cli("dead-letter", "redrive", home, "mailers", "--dry-run", "--format", "json")
    assert json.loads(plan.stdout) == {"group": "mailers", "dead_letters": 3, "dry_run": True}
    assert plan.stderr == DRY
    assert cli("dead-letter", "redrive", home, "mailers").returncode == 2
    done = cli("dead-letter", "redrive", home, "mailers", "--limit", 2, "--yes", "--format", "json")
    assert json.loads(done.stdout) == {"group": "mailers", "dead_letters": 2, "dry_run": False}
    assert bodies(cli("dead-letter", "list", home)) == ["job 2"]
    assert bodies(cli("cat", home, "--topic", "jobs"))[3:] == ["job 0", "job 1"]
    assert cli("dead-letter", "redrive", home, "mailers", "--yes").returncode == 0
    again = cli("dead-letter", "redrive", home, "mailers", "--yes", "--format", "json")
    assert json.loads(again.stdout)["dead_letters"] == 0


def test_jobs_and_dead_letters_by_id(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        with store.work_queue("jobs", "mailers", max_attempts=1, visibility_timeout=3600) as queue:
            dead = [queue.put(b"dead %d" % number, keys="k") for number in range(3)]
            for _ in dead:
                queue.get().nack(reason="no such address")
            held, later, ready = queue.put(b"held"), queue.put(b"later", delay=3600), queue.put(b"ready")
            queue.get()
        store.create_topic("idle")
    done = cli("jobs", home, "--format", "json")
    (found,) = json.loads(done.stdout)
    assert {name: found[name] for name in ("group", "topic", "ready", "delayed", "leased", "dying", "dead")} == {
        "group": "mailers", "topic": "jobs", "ready": 1, "delayed": 1, "leased": 1, "dying": 0, "dead": 3,
    }  # fmt: skip
    jobs = [(job["state"], job["message"]["unique_id"], job["attempts"]) for job in found["jobs"]]
    assert jobs == [
        ("ready", ready.unique_id, 0), ("delayed", later.unique_id, 0), ("leased", held.unique_id, 1),
        *(("dead", one.unique_id, 1) for one in dead),
    ]  # fmt: skip
    assert {job["reason"] for job in found["jobs"] if job["state"] == "dead"} == {"no such address"}
    assert 3_500_000 < found["jobs"][1]["due_timestamp"] - found["jobs"][1]["message"]["store_timestamp"] <= 3_600_000
    shown = cli("jobs", home, "jobs", "--state", "dead", "--limit", 1)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "no such address" in shown.stdout
    assert dead[0].unique_id in shown.stdout
    assert dead[1].unique_id not in shown.stdout
    none = cli("jobs", home, "idle")
    assert (none.returncode, none.stderr) == (1, "mqstore: the topic idle has no work queue and no dead letters\n")
    assert cli("jobs", home, "nothing").returncode == 3
    told = cli("get", home, dead[0].unique_id).stderr
    assert re.search(r"group mailers made it a dead letter at .* after 1 delivery; reason: no such address", told)
    assert "reason" in cli("dead-letter", "show", home, dead[0].message_id, "--format", "table").stdout
    unknown = cli("dead-letter", "show", home, "x")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no dead letter has the id x" in unknown.stderr
    wrong = cli("dead-letter", "delete", home, "mailers", "x", "--yes")
    assert wrong.returncode == 2
    assert "group mailers has no dead letter with the id x" in wrong.stderr
    assert cli("dead-letter", "delete", home, "mailers", dead[1].unique_id).returncode == 2
    ended = cli("dead-letter", "delete", home, "mailers", dead[1].unique_id, "--yes", "--format", "json")
    assert json.loads(ended.stdout) == {"group": "mailers", "dead_letters": 1, "dry_run": False}
    ended = cli("dead-letter", "redrive", home, "mailers", dead[2].message_id, "--yes", "--format", "json")
    assert json.loads(ended.stdout) == {"group": "mailers", "dead_letters": 1, "dry_run": False}
    assert bodies(cli("dead-letter", "list", home)) == ["dead 0"]
    told = [cli("get", home, one.message_id).stderr.strip().rpartition("; ")[2] for one in dead]
    assert told == ["reason: no such address", *["the dead letter was redriven or deleted since"] * 2]
    (found,) = json.loads(cli("jobs", home, "--format", "json").stdout)
    assert (found["ready"], found["dead"]) == (2, 1)
    assert cli("dead-letter", "redrive", home, "mailers", "x", "--limit", 1).returncode == 2


# Units, dry runs, advice and notes.


@pytest.mark.slow
def test_tables_have_units_and_json_has_numbers(filled: Path, tmp_path: Path, cli: Cli) -> None:
    assert json.loads(cli("info", filled, "--format", "json").stdout)["segment_size"] == 65536
    assert "64.0 KiB" in cli("info", filled).stdout
    assert "64.0 KiB" in cli("stats", filled).stdout
    for verb in (["verify", filled], ["rebuild", filled, "--dry-run"], ["export", filled, tmp_path / "o.jsonl"]):
        table = cli(*verb).stdout
        (line,) = (line for line in table.splitlines() if line.startswith("bytes"))
        assert line.endswith(("B", "KiB")), line
        if "seconds" in table:
            (line,) = (line for line in table.splitlines() if line.startswith("seconds"))
            assert line.endswith("s"), line


@pytest.mark.slow
def test_dry_runs_say_so_and_real_runs_do_not(filled: Path, tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "o.jsonl"
    mqstore.export(filled, file)
    for verb in (["rebuild", filled], ["expire", filled, "--retention", "7d"], ["import", filled, file],
                 ["compact", filled]):  # fmt: skip
        for form in ("table", "json"):
            done = cli(*verb, "--dry-run", "--format", form)
            assert done.returncode == 0, done.stderr
            assert done.stderr.endswith(DRY), done.stderr
    for verb in (["rebuild", filled], ["expire", filled, "--retention", "7d", "--yes"],
                 ["import", filled, file, "--yes"], ["compact", filled, "--in-place"]):  # fmt: skip
        done = cli(*verb)
        assert done.returncode == 0, done.stderr
        assert "dry run" not in done.stdout + done.stderr


def test_labels_are_words_and_empty_lists_are_dashes(filled: Path, cli: Cli) -> None:
    for verb in ("info", "stats"):
        labels = [line.partition("  ")[0] for line in cli(verb, filled).stdout.splitlines()]
        assert "log max offset" in labels
        assert not [label for label in labels if "_" in label]
    shown = cli("stats", filled).stdout
    assert re.search(r"^segments kept by +-$", shown, re.MULTILINE)
    assert re.search(r"^paced read +0 ms$", shown, re.MULTILINE)


def test_an_upload_links_no_segments(filled: Path, tmp_path: Path, cli: Cli) -> None:
    assert "linked segments" in cli("snapshot", filled, tmp_path / "copy").stdout
    shown = cli("snapshot", filled, f"file://{tmp_path}/published").stdout
    assert re.search(r"^copied segments +[1-9]", shown, re.MULTILINE)
    assert "linked" not in shown


def test_a_dry_run_of_a_repair_only_would_change_the_store(filled: Path, cli: Cli) -> None:
    shutil.rmtree(filled / "consumequeue")
    shown = cli("repair", filled, "--dry-run").stdout
    assert re.search(r"^would change +yes$", shown, re.MULTILINE)
    assert not re.search(r"^changed", shown, re.MULTILINE)


def test_verify_ends_with_the_command_that_repairs(filled: Path, cli: Cli) -> None:
    shutil.rmtree(filled / "consumequeue")
    done = cli("verify", filled)
    assert done.stderr.splitlines()[-1] == f"mqstore: mqstore rebuild {filled} repairs all problems"
    assert cli("verify", filled, "--format", "json").stderr == ""
    (filled / "commitlog" / "stray").write_bytes(b"x")
    last = cli("verify", filled).stderr.splitlines()[-1]
    assert last.startswith(f"mqstore: mqstore repair {filled} --in-place repairs ")
    assert cli("repair", filled, "--in-place", "--yes").returncode == 0
    assert "repairs" not in cli("verify", filled).stderr


def test_compact_says_that_no_topic_is_one_to_compact(filled: Path, cli: Cli) -> None:
    sentence = "mqstore: no compaction topic has messages: create one with --attribute cleanup.policy=COMPACTION\n"
    assert cli("compact", filled, "--dry-run").stderr == sentence + DRY
    with mqstore.open(filled, "rw") as store:
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        store.append("prices", b"x", keys="k")
    assert cli("compact", filled, "--dry-run").stderr == DRY


def test_get_prints_ids_hosts_and_times_in_its_table(filled: Path, cli: Cli) -> None:
    with mqstore.open(filled) as store:
        message = next(store.read("orders", 0))
    shown = cli("get", filled, message.unique_id, "--format", "table").stdout
    for label, value in (("message id", message.message_id), ("unique id", message.unique_id),
                         ("born host", message.born_host), ("store host", message.store_host)):  # fmt: skip
        assert re.search(rf"^{label} +{value}$", shown, re.MULTILINE)
    assert re.search(r"^born timestamp +20..-", shown, re.MULTILINE)


@pytest.mark.slow
def test_a_parent_folder_is_told_the_store(home: Path, cli: Cli) -> None:
    mqstore.open(home, "create", options=SMALL).close()
    for verb in (
        ["info"],
        ["cat"],
        ["verify"],
        ["append", "t", "--body", "x"],
        ["append", "t", "--body", "x", "--create"],
    ):
        done = cli(verb[0], home.parent, *verb[1:])
        assert done.returncode == 3
        assert done.stderr.endswith(f"did you mean {home}?\n"), done.stderr


def test_notes_about_a_crash_are_harmless_and_come_last(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append_many("orders", [bytes(1000)] * 3)
        store.flush()
        last = store.append("orders", bytes(1000))
        copy = home.with_name("crashed")
        store.flush()
        # As a kill leaves it.
        subprocess.run(["cp", "-a", home, copy], check=True)
    (copy / "mqstore" / "live").unlink(missing_ok=True)
    (segment,) = sorted((copy / "commitlog").iterdir())[:1]
    with segment.open("r+b") as log:
        log.seek(last.commit_log_offset + last.size)
        log.write(b"\0\0\4\0" + b"\xaa" * 60)
    command = [sys.executable, "-m", "mqstore", "info", str(copy)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
    assert done.returncode == 0
    notes = [line for line in done.stdout.splitlines() if line.startswith("mqstore: ")]
    assert "a crash interrupted the last write" in notes[0]
    assert "this is harmless" in notes[0]
    assert done.stdout.splitlines()[-len(notes) :] == notes
    # The next open for writing removes it, and its note says the same.
    written = cli("append", copy, "orders", "--body", "next")
    assert written.returncode == 0
    assert "a crash interrupted the last write, which is harmless" in written.stderr
    assert "cut at byte" in written.stderr


@pytest.mark.slow
def test_a_verb_that_changes_a_store_waits_for_its_lock(home: Path, cli: Cli, tmp_path: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("orders", b"1", keys="k")
    mqstore.export(home, tmp_path / "file.jsonl")
    other = tmp_path / "other"
    with mqstore.open(other, "create", options=SMALL) as store:
        store.append("orders", b"1")
    for verb in (
        ["append", home, "orders", "--body", "x"],
        ["topic", "create", home, "new"],
        ["topic", "alter", home, "orders", "--queues", "2"],
        ["retention", home, "orders", "--keep", "30d"],
        ["topic", "delete", home, "new", "--yes"],
        ["import", home, tmp_path / "file.jsonl", "--yes"],
        ["expire", home, "--retention-bytes", "1", "--yes"],
        ["rebuild", home],
        ["repair", home, "--in-place", "--yes"],
        ["compact", home, "--in-place"],
        ["export", other, home, "--to", "store"],
    ):
        writer = mqstore.open(home, "rw", options=SMALL)
        if verb[:2] == ["expire", home]:
            # Something to delete.
            writer.append_many("orders", [bytes(10_000)] * 20)
        locked = cli(*verb, "--lock-timeout", "20ms")
        assert locked.returncode == 3, (verb, locked.stderr)
        assert f"locked by process {os.getpid()}" in locked.stderr
        # The command takes longer than this to start, or finds the store locked and waits.
        closing = threading.Timer(0.2, writer.close)
        closing.start()
        done = cli(*verb, "--lock-timeout", "60s")
        closing.join()
        assert done.returncode == 0, (verb, done.stderr)
    refused = cli("append", home, "orders", "--body", "x", "--lock-timeout", "soon")
    assert refused.returncode == 2
    assert "--lock-timeout" in refused.stderr


def test_every_verb_that_changes_a_store_has_a_lock_timeout() -> None:
    import mqstore.cli
    from mqstore.cli.app import app

    # Each module adds its verbs.
    for module in pkgutil.walk_packages(mqstore.cli.__path__, "mqstore.cli."):
        importlib.import_module(module.name)

    def verbs(command: Any, name: str) -> Iterator[str]:
        for child, one in getattr(command, "commands", {}).items():
            yield from verbs(one, f"{name} {child}".strip())
        if any(parameter.name == "lock_timeout" for parameter in command.params):
            yield name

    assert sorted(verbs(typer.main.get_command(app), "")) == [
        *("append", "archive", "compact", "copy-topic", "dead-letter delete", "dead-letter redrive", "expire"),
        *("export", "group reset", "import", "rebuild", "reclaim", "repair", "retention"),
        *("spark compact", "spark rebuild", "topic alter", "topic create", "topic delete"),
    ]


def test_the_help_lists_every_verb_in_its_order(cli: Cli) -> None:
    from mqstore.cli.app import PANELS

    done = cli("--help")
    assert done.returncode == 0, done.stderr
    shown: dict[str, list[str]] = {}
    for panel, name in re.findall(r"^╭─ (.+?) ─|^│ ([a-z][a-z-]*) ", done.stdout, re.MULTILINE):
        if panel:
            current = shown.setdefault(panel, [])
        else:
            current.append(name)
    assert shown.pop("Options") == []
    assert [(panel, *names) for panel, names in shown.items()] == [(panel, *names) for panel, names in PANELS.items()]


def test_the_short_option_of_the_help(cli: Cli) -> None:
    for verb in ([], ["cat"], ["topic"], ["topic", "create"]):
        assert cli(*verb, "-h").stdout == cli(*verb, "--help").stdout
        assert "Usage: mqstore" in cli(*verb, "-h").stdout
