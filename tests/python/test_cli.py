"""The command line: every verb, every exit status, the machine formats, and the files that no verb changes."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import mqstore
import rocketmq_bytes as raw
from conftest import SMALL, Cli, python, tree_hash
from mqstore.cli.errors import _ADVICE, error_text
from mqstore.cli.messages.follow import Tail
from mqstore.spark._locks import _BY_ANOTHER

NAMES = [
    "topic", "queue_id", "queue_offset", "commit_log_offset", "size", "message_id", "unique_id", "keys", "tags",
    "properties", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp", "store_host",
    "reconsume_times", "prepared_transaction_offset", "body_crc", "body_size",
]  # fmt: skip

READ_VERBS = [
    ["stats"],
    ["info"],
    ["info", "--format", "json"],
    ["topics"],
    ["topics", "--format", "jsonl"],
    ["cat"],
    ["cat", "--log"],
    ["cat", "--format", "table"],
    ["get", "ID"],
    ["lookup", "orders", "all"],
    ["tail", "orders"],
    ["verify"],
    ["verify", "--format", "json"],
]


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_version(cli: Cli) -> None:
    took = []
    for _ in range(5):
        before = os.times()
        done = cli("--version")
        after = os.times()
        # Processor time of the child, so that other load on the machine does not count.
        took.append(sum(after[2:4]) - sum(before[2:4]))
        assert done.stdout == f"mqstore {mqstore.__version__}\n"
        assert (done.returncode, done.stderr) == (0, "")
    assert min(took) < 0.15


def test_version_imports_nothing_heavy() -> None:
    done = python(
        "import sys; sys.argv = ['mqstore', '--version']\n"
        "from mqstore.cli import main\n"
        "try: main()\n"
        "finally: print(sorted({name.partition('.')[0] for name in sys.modules} & {'typer', 'rich', 'pyarrow'}))"
    )
    assert done.stdout.splitlines()[1:] == ["[]"], done.stderr


def test_installed_command(filled: Path) -> None:
    command = Path(sys.executable).parent / "mqstore"
    if not command.exists():
        pytest.skip("the package is on the path but not installed")
    done = subprocess.run([command, "topics", filled, "--format", "jsonl"], capture_output=True, text=True, timeout=60)
    assert [entry["topic"] for entry in lines(done)] == ["events", "orders"]


@pytest.mark.parametrize("verb", READ_VERBS, ids=" ".join)
def test_read_verbs_change_nothing(filled: Path, cli: Cli, verb: list[str]) -> None:
    before = tree_hash(filled)
    arguments = [word if word != "ID" else "0" * 32 for word in verb]
    done = cli(arguments[0], filled, *arguments[1:])
    assert done.returncode == (1 if verb[0] == "get" else 0), done.stderr
    assert tree_hash(filled) == before


@pytest.mark.parametrize("verb", READ_VERBS, ids=" ".join)
def test_read_verbs_need_no_lock(home: Path, cli: Cli, verb: list[str]) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        result = store.append("orders", b"x", keys="all")
        done = cli(verb[0], home, *(word if word != "ID" else result.message_id for word in verb[1:]))
        assert done.returncode == 0, done.stderr
        store.append("orders", b"y")


@pytest.mark.parametrize("verb", READ_VERBS, ids=" ".join)
def test_not_a_store(tmp_path: Path, cli: Cli, verb: list[str]) -> None:
    (tmp_path / "file").write_text("not a folder")
    others = [tmp_path / "none", tmp_path / "file"] if verb == ["info"] else []
    for path in [tmp_path, *others]:
        done = cli(verb[0], path, *verb[1:])
        assert (done.returncode, done.stdout) == (3, ""), done.stderr
        assert done.stderr.startswith("mqstore: ")
        assert str(path) in done.stderr
        assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["cat"],
        ["cat", "DIR", "--format", "xml"],
        ["cat", "DIR", "--body", "hex"],
        ["cat", "DIR", "--limit", "-1"],
        ["cat", "DIR", "--limit", "many"],
        ["cat", "DIR", "--queue", "0"],
        ["cat", "DIR", "--start", "0"],
        ["cat", "DIR", "--log", "--topic", "orders", "--start", "0"],
        ["get", "DIR"],
        ["lookup", "DIR", "orders"],
        ["lookup", "DIR", "orders", "all", "--start-time", "yesterday"],
        ["lookup", "DIR", "orders", "all", "--end-time", "2024-02-30"],
        ["tail", "DIR"],
        ["tail", "DIR", "orders", "--limit", "-1"],
        ["tail", "DIR", "orders", "-f", "--format", "json"],
        ["info", "DIR", "--no-such-option"],
        ["stats", "DIR", "extra"],
    ],
    ids=" ".join,
)
def test_usage(filled: Path, cli: Cli, arguments: list[str]) -> None:
    done = cli(*(filled if word == "DIR" else word for word in arguments))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr


def test_completion() -> None:
    def asked(**environment: str) -> str:
        command = [sys.executable, "-m", "mqstore"]
        done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    for shell in ("bash", "zsh", "fish"):
        assert f"complete_{shell}" in asked(_MQSTORE_COMPLETE=f"source_{shell}")
    found = asked(_MQSTORE_COMPLETE="complete_bash", COMP_WORDS="mqstore ver", COMP_CWORD="1")
    assert found.split() == ["verify"]


def test_colors_only_where_they_are_wanted(filled: Path) -> None:
    """On a terminal, the progress bar has colors, except with --no-color or NO_COLOR."""
    code = "from mqstore.cli import main; main()"

    def printed(*options: str, **environment: str) -> str:
        parent, child = pty.openpty()
        command = [sys.executable, "-c", code, *options, "verify", str(filled)]
        settings = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        settings |= {"TERM": "xterm-256color"} | environment
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=child, env=settings) as process:
            os.close(child)
            found = b""
            try:
                while more := os.read(parent, 4096):
                    found += more
            except OSError:
                pass  # Linux raises this when the other end is closed
        os.close(parent)
        assert process.returncode == 0
        return found.decode()

    color = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert color.search(printed())
    assert not color.search(printed("--no-color"))
    assert not color.search(printed(NO_COLOR="1"))


@pytest.mark.slow
def test_help(cli: Cli) -> None:
    done = cli("--help")
    assert done.returncode == 0
    for verb in (
        "info",
        "topics",
        "cat",
        "tail",
        "get",
        "lookup",
        "verify",
        "repair",
        "rebuild",
        "expire",
        "retention",
        "export",
        "copy-topic",
        "import",
        "snapshot",
        "fetch",
        "clean",
        "stats",
        "bench",
        "config",
    ):
        assert verb in done.stdout
        assert cli(verb, "--help").returncode == 0


def test_topics(filled: Path, cli: Cli) -> None:
    with mqstore.open(filled) as store:
        messages = sorted(store.read("orders"), key=lambda message: message.commit_log_offset)
    found = lines(cli("topics", filled, "--format", "jsonl"))
    assert [entry["topic"] for entry in found] == ["events", "orders"]
    assert found[1] == {
        "topic": "orders",
        "queues": 2,
        "messages": 40,
        "min_store_timestamp": messages[0].store_timestamp,
        "max_store_timestamp": messages[-1].store_timestamp,
        "expire_after_seconds": None,
        "bytes": None,
    }
    assert json.loads(cli("topics", filled, "--format", "json").stdout) == found
    table = cli("topics", filled).stdout
    assert re.search(r"^ orders +2 +40 ", table, re.MULTILINE)
    assert "bytes" not in table
    sized = lines(cli("topics", filled, "--sizes", "--format", "jsonl"))
    assert sized[1]["bytes"] == sum(message.size for message in messages)
    assert "KiB" in cli("topics", filled, "--sizes").stdout


def test_topics_with_their_queues(filled: Path, cli: Cli) -> None:
    found = lines(cli("topics", filled, "--queues", "--format", "jsonl"))
    assert [entry["topic"] for entry in found] == ["events", "orders"]
    queue = found[1]["queues"][1]
    assert (queue["queue_id"], queue["min_offset"], queue["max_offset"]) == (1, 0, 20)
    assert json.loads(cli("topics", filled, "--queues", "--format", "json").stdout) == found
    assert len(re.findall("^ orders", cli("topics", filled, "--queues").stdout, re.MULTILINE)) == 2
    assert cli("topics", filled, "--queues", "--sizes").returncode == 2


def test_cat_object(filled: Path, cli: Cli) -> None:
    found = lines(cli("cat", filled, "--topic", "orders", "--queue", "1"))
    assert len(found) == 20
    with mqstore.open(filled) as store:
        messages = list(store.read("orders", 1))
    for line, message in zip(found, messages, strict=True):
        assert list(line) == [*NAMES, "body_text"]
        assert line["keys"] == list(message.keys)
        assert line["properties"] == message.properties
        for name in set(NAMES) - {"keys", "body_size"}:
            assert line[name] == getattr(message, name), name
        assert line["body_text"].encode() == message.body
        assert line["body_size"] == len(message.body)


@pytest.mark.slow
def test_cat_selects(filled: Path, cli: Cli) -> None:
    def offsets(*arguments: object) -> list[tuple[str, int, int]]:
        return [(one["topic"], one["queue_id"], one["queue_offset"]) for one in lines(cli("cat", filled, *arguments))]

    everything = offsets()
    assert everything == sorted(everything)
    assert len(everything) == 45
    assert offsets("--topic", "orders", "--queue", 0, "--start", 3, "--end", 5) == [("orders", 0, 3), ("orders", 0, 4)]
    assert offsets("--topic", "orders", "--start", 19) == [("orders", 0, 19), ("orders", 1, 19)]
    assert len(offsets("--filter", "paid")) == 20
    assert len(offsets("--filter", "paid || open")) == 40
    assert len(offsets("--limit", 7)) == 7
    assert offsets("--limit", 0) == []
    log = offsets("--log")
    assert sorted(log) == everything
    assert log[:2] == [("orders", 0, 0), ("orders", 1, 0)]
    assert offsets("--log", "--topic", "events") == [("events", 0, number) for number in range(5)]
    assert len(offsets("--log", "--filter", "paid", "--limit", 3)) == 3
    assert len(offsets("--log", "--filter", "*")) == 45


def test_cat_cannot(filled: Path, cli: Cli) -> None:
    for arguments in (["--topic", "none"], ["--topic", "orders", "--queue", "9"],
                      ["--topic", "orders", "--queue", "0", "--start", "21"]):  # fmt: skip
        done = cli("cat", filled, *arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("mqstore: ")


def test_bodies(home: Path, cli: Cli) -> None:
    packed = raw.zlib_body("größe".encode())
    raw.write_log(
        home,
        [
            {"body": "größe".encode(), "queue_offset": 0},
            {"body": b"\xff\x00", "queue_offset": 1},
            {"body": packed, "sys_flag": raw.COMPRESSED, "queue_offset": 2},
            {"body": b"broken", "sys_flag": raw.COMPRESSED, "queue_offset": 3},
        ],
    )
    done = cli("cat", home, "--body", "text")
    found = lines(done)
    assert [one["body_text"] for one in found] == ["größe", "�\x00", "größe", "broken"]
    assert [one["body_size"] for one in found] == [7, 2, 7, 6]
    assert ["body_error" in one for one in found] == [False, False, False, True]
    assert "mqstore: " in done.stderr
    base = lines(cli("cat", home, "--body", "base64"))
    assert [base64.b64decode(one["body_base64"]) for one in base] == [
        "größe".encode(), b"\xff\x00", "größe".encode(), b"broken",
    ]  # fmt: skip
    none = lines(cli("cat", home, "--body", "none", "--limit", 1))
    assert list(none[0]) == NAMES


@pytest.mark.slow
def test_formats(filled: Path, cli: Cli) -> None:
    by_line = lines(cli("cat", filled))
    assert json.loads(cli("cat", filled, "--format", "json").stdout) == by_line
    assert json.loads(cli("cat", filled, "--format", "json", "--limit", 0).stdout) == []
    table = cli("cat", filled, "--format", "table").stdout.splitlines()
    assert len(table) == 45
    assert "orders/1" in table[-1]
    assert "body 39" in table[-1]


def test_machine_forms_escape_everything(home: Path, cli_process: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("t", "тело".encode(), keys="ключ", tags="a\x1b[31m", properties={"x": "\u2028😀\x7f"})
    done = cli_process("cat", home, "--body", "text", env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    (found,) = lines(done)
    assert found["keys"] == ["ключ"]
    assert found["body_text"] == "тело"
    assert found["properties"]["x"] == "\u2028😀\x7f"
    table = cli_process("cat", home, "--format", "table").stdout
    assert "\x1b" not in table
    assert "\\x1b[31m" in table


@pytest.mark.slow
def test_get(filled: Path, cli: Cli) -> None:
    with mqstore.open(filled) as store:
        message = next(store.read("orders", 1, 7))
    for identity in (message.message_id, message.message_id.lower(), message.unique_id):
        (found,) = lines(cli("get", filled, identity))
        assert found["queue_offset"] == 7
        assert found["body_text"].encode() == message.body
    for unknown in ("nothing", "F" * 32, ""):
        done = cli("get", filled, unknown)
        assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.slow
def test_tail(filled: Path, cli: Cli) -> None:
    def found(*arguments: object) -> list[tuple[int, int]]:
        return [(one["queue_id"], one["queue_offset"]) for one in lines(cli("tail", filled, *arguments))]

    in_log_order = [(number % 2, number // 2) for number in range(40)]
    assert found("orders") == in_log_order[-10:]
    assert found("orders", "-n", 3) == in_log_order[-3:]
    assert found("orders", "--limit", 1000) == in_log_order
    assert found("orders", "-n", 0) == []
    assert found("orders", "--queue", 1, "-n", 2) == [(1, 18), (1, 19)]
    assert found("orders", "--filter", "paid", "-n", 12) == [(1, number) for number in range(8, 20)]
    assert found("orders", "--filter", "none") == []
    (one,) = lines(cli("tail", filled, "events", "-n", 1, "--body", "text"))
    assert list(one) == [*NAMES, "body_text"]
    for arguments in (["none"], ["orders", "--queue", 9]):
        done = cli("tail", filled, *arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith("mqstore: ")


def test_tail_follows(home: Path) -> None:
    command = [sys.executable, "-m", "mqstore", "tail", home, "t", "-f", "-n", "1", "--body", "text"]
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("t", queues=2)
        store.append_many("t", [b"0", b"1"], queue_id=0)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body_text"] == "1"
        for number in range(2, 50):
            store.append("t", str(number).encode(), queue_id=number % 2)
            shown = json.loads(process.stdout.readline())
            assert (shown["body_text"], shown["queue_id"]) == (str(number), number % 2)
        # A large batch comes out in order.
        many = [str(number) for number in range(50, 6000)]
        store.append_many("t", [text.encode() for text in many], queue_id=1)
        assert [json.loads(process.stdout.readline())["body_text"] for _ in many] == many
    with mqstore.open(home, "rw") as store:
        store.append("t", b"the next writer's")
        assert json.loads(process.stdout.readline())["body_text"] == "the next writer's"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (130, "")


def test_tail_goes_on_behind_what_was_deleted(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqstore.open(home, "create", segment_size=1 << 12, retention_bytes=1 << 13) as store:
        store.create_topic("t")
        tail = Tail(store, "t", None, None)
        assert tail.newest(10) == []
        store.append_many("t", [b"%d" % number + bytes(200) for number in range(100)])
        store.flush()
        assert store.expire(dry_run=False).files
        first = store.queues("t")[0].min_offset
        assert first > 0
        coming = tail.coming()
        shown = list(chain(next(coming), next(coming)))
        assert [message.queue_offset for message in shown] == list(range(first, 100))
    assert capsys.readouterr().err == f"mqstore: t/0: messages 0 to {first - 1} were deleted meanwhile\n"


def test_tail_ends_with_its_reader(filled: Path) -> None:
    command = f"{sys.executable} -m mqstore tail {filled} orders -f | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert len(done.stdout.splitlines()) == 1
    assert (done.returncode, done.stderr) == (0, "")


def test_lookup(filled: Path, cli: Cli) -> None:
    found = lines(cli("lookup", filled, "orders", "all"))
    assert [one["body_text"] for one in found] == [f"body {number}" for number in range(40)]
    assert len(lines(cli("lookup", filled, "orders", "all", "--limit", 5))) == 5
    done = cli("lookup", filled, "none", "all")
    assert (done.returncode, done.stdout) == (3, "")


def test_no_hit_is_status_1_with_a_sentence(filled: Path, tmp_path: Path, cli: Cli) -> None:
    for verb, sentence in (
        (["lookup", filled, "orders", "none"], "no message of the topic orders has the key none"),
        (["cat", filled, "--topic", "orders", "--start", 1000], "no message matches --topic orders --start 1000"),
        (["cat", filled, "--log", "--key", "a", "--key", "b"], "no message matches --key a b"),
    ):
        for form, shown in (("jsonl", ""), ("table", ""), ("json", "[]\n")):
            done = cli(*verb, "--format", form)
            assert (done.returncode, done.stdout, done.stderr) == (1, shown, f"mqstore: {sentence}\n")
    assert cli("cat", filled, "--key", "a", "--limit", 0).returncode == 0
    mqstore.open(tmp_path / "empty", "create", options=SMALL).close()
    done = cli("cat", tmp_path / "empty")
    assert (done.returncode, done.stderr) == (1, "mqstore: there are no messages\n")
    # One store with a hit is enough.
    assert cli("cat", tmp_path / "empty", filled).returncode == 0


def test_lookup_times(home: Path, cli: Cli) -> None:
    stamp = 1_700_000_000_000
    raw.write_log(
        home,
        [
            {"stored": stamp + number * 1000, "queue_offset": number, "properties": raw.properties(KEYS="k")}
            for number in range(10)
        ],
    )

    def offsets(*arguments: object) -> list[int]:
        return [one["queue_offset"] for one in lines(cli("lookup", home, "t", "k", *arguments))]

    assert offsets() == list(range(10))
    assert offsets("--start-time", stamp + 7000) == [7, 8, 9]
    assert offsets("--start-time", "2023-11-14T22:13:27Z") == [7, 8, 9]
    assert offsets("--start-time", "2023-11-14T23:13:27+01:00", "--end-time", stamp + 8000) == [7, 8]


def test_verify(filled: Path, cli: Cli) -> None:
    done = cli("verify", filled, "--format", "json")
    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert list(report) == ["ok", "messages", "bytes", "problems"]
    assert (report["ok"], report["messages"], report["problems"]) == (True, 45, [])
    assert report == mqstore.verify(filled).to_dict()

    log = filled / "commitlog" / f"{0:020d}"
    content = bytearray(log.read_bytes())
    content[content.index(b"body 7")] ^= 0x01
    log.write_bytes(content)
    done = cli("verify", filled, "--format", "json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["ok"] is False
    assert all(
        list(problem) == ["kind", "path", "offset", "detail", "consequence", "repair"] for problem in report["problems"]
    )
    assert any(problem["path"] == str(log) for problem in report["problems"])
    table = cli("verify", filled)
    assert table.returncode == 1
    assert report["problems"][0]["kind"] in table.stdout
    assert len(cli("verify", filled, "--format", "jsonl").stdout.splitlines()) == 1


def test_notes_go_to_stderr_once(home: Path, cli: Cli) -> None:
    raw.write_log(home, [{"queue_offset": 0}, {"queue_offset": 1}])
    done = cli("cat", home)
    assert len(lines(done)) == 2
    notes = done.stderr.splitlines()
    assert notes
    assert len(set(notes)) == len(notes)
    assert all(note.startswith("mqstore: ") for note in notes)


@pytest.mark.slow
def test_topics_as_found_on_disk(home: Path, cli: Cli) -> None:
    names = ["%LMQ%x", "%RETRY%" + "g" * 233, "a.b c", "тема"]
    raw.write_log(home, [{"topic": name} for name in names])
    assert sorted(entry["topic"] for entry in lines(cli("topics", home, "--format", "jsonl"))) == sorted(names)
    for name in names:
        assert [one["topic"] for one in lines(cli("cat", home, "--topic", name))] == [name]


def test_closed_pipe_is_quiet(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append_many("t", [b"x" * 1000] * 2000)
    for form in ("jsonl", "json", "table"):
        command = f"{sys.executable} -m mqstore cat {home} --format {form} | head -n 1"
        done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
        assert len(done.stdout.splitlines()) == 1
        assert (done.returncode, done.stderr) == (0, ""), form


def test_ctrl_c(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append_many("t", [b"x" * 1000] * 5000)
    process = subprocess.Popen(
        [sys.executable, "-m", "mqstore", "cat", home], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    # It is now blocked on the full pipe, in the middle of its work.
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_on_a_terminal(filled: Path) -> None:
    leader, follower = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-m", "mqstore", "cat", filled, "--topic", "orders", "--limit", "2"], stdout=follower
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert done.wait(30) == 0
    assert not shown.lstrip().startswith(b"{")
    assert shown.count(b"orders/0  ") == 2


def test_without_the_extra() -> None:
    done = python(
        "import sys; sys.modules['typer'] = None\n"
        "sys.argv = ['mqstore', 'info', 'x']\n"
        "from mqstore.cli import main\n"
        "main()"
    )
    assert done.returncode == 3
    assert "mqstore[cli]" in done.stderr


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}])
def test_a_terminal_without_utf_8_gets_escapes(home: Path, cli_process: Cli, environment: dict[str, str]) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("orders", "grün".encode(), tags="ü", keys="é")
    environment = {**os.environ, "PYTHONUTF8": "0", **environment}
    done = cli_process("cat", home, "--format", "table", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("tags=\\xfc  keys=\\xe9  gr\\xfcn")
    for verb in (["info", home], ["topics", home], ["--help"]):
        assert cli_process(*verb, env=environment).returncode == 0
    missing = cli_process("info", home / "nö", env=environment)
    assert missing.returncode == 3
    assert missing.stderr.count("\n") == 1


def test_errors_name_the_options_of_the_command_line(
    store: mqstore.Store, home: Path, cli: Cli, tmp_path: Path
) -> None:
    store.append("orders", b"one")
    for verb in (["append", home, "orders", "--body", "two"], ["rebuild", home], ["compact", home, "--in-place"]):
        done = cli(*verb)
        assert done.returncode == 3
        assert done.stderr.endswith("close it there, or wait for it with --lock-timeout\n")
    (tmp_path / "out.jsonl").touch()
    done = cli("export", home, tmp_path / "out.jsonl")
    assert done.returncode == 3
    assert done.stderr.endswith("exists already; pass --overwrite to replace a file\n")
    locked = error_text(mqstore.StoreLockedError("/s", 7, _BY_ANOTHER))
    assert locked.endswith("Close the store there, or wait for it with --lock-timeout")
    full = error_text(mqstore.DiskFullError("/s", "growing it"))
    assert full == "/s: no space left on the device while growing it: free space on the disk, then try again"
    advice = "check the path, or create a store there (mqstore append --create)\n"
    for verb in (["info", home / "absent"], ["info", home / "absent", home]):
        assert advice in cli(*verb).stderr
    named = {
        ("export", home, tmp_path / "new.jsonl", "--keep-offsets"): "--keep-offsets is for stores;",
        ("export", home, tmp_path / "new.txt"): "unknown ending; choose a format, one of jsonl,",
        ("topic", "create", home, "new", "--attribute", "queue.typ=x", "--lock-timeout", "0"): "locked by process",
    }
    for arguments, text in named.items():
        assert text in cli(*arguments, columns=200).stderr
    store.close()
    assert cli("topic", "create", home, "new", "--attribute", "a=x").stderr.startswith("mqstore: --attribute: no ")
    assert cli("topic", "create", home, "new", "--max-messages", "1").returncode == 0
    cli("append", home, "new", "--body", "x")
    full = cli("append", home, "new", "--body", "x").stderr
    assert full.endswith("or set a larger quota with mqstore topic alter --max-messages\n")
    (tmp_path / "large").write_bytes(bytes(5 << 20))
    assert cli("append", home, "orders", tmp_path / "large").stderr.endswith("the limit is 4194304: send less\n")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("s3://", "s3://: cannot use this URL: it has no bucket: write s3://BUCKET/PATH"),
        ("s3://user:word@b/x", "give the credentials of s3://b/x in environment variables, not in the URL"),
        ("s3://b/x?a=1", "give the parameters of s3://b/x in environment variables, not in the URL; in a name, write"),
        ("foo://x", "cannot use foo://x: ValueError: Protocol not known: foo"),
    ],
)
def test_errors_about_urls_name_no_argument_of_python(url: str, text: str, cli: Cli) -> None:
    done = cli("published", url)
    assert done.returncode == 3
    assert done.stderr.startswith(f"mqstore: {text}")


@pytest.mark.parametrize(
    "verb",
    [
        *(["cat", "--topic", "none"], ["topics", "--hours", "--topic", "none"], ["jobs", "none"], ["tail", "none"]),
        *(["lookup", "none", "key"], ["topic", "alter", "none", "--queues", "2"]),
    ],
    ids=" ".join,
)
def test_an_unknown_topic_is_status_3_with_a_sentence(verb: list[str], filled: Path, cli: Cli) -> None:
    words = 2 if verb[0] == "topic" else 1
    done = cli(*verb[:words], filled, *verb[words:])
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "mqstore: no topic none; mqstore topics lists the topics\n"


def test_errors_about_damage_advise_verbs(home: Path, cli: Cli) -> None:
    """A program of Python can open the store with other options; the command line has verbs."""
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append_many("orders", [bytes(3000)] * 40)
    last = max((home / "commitlog").iterdir())
    last.rename(home / "away")
    done = cli("append", home, "orders", "--body", "x")
    assert done.returncode == 3
    assert done.stderr.endswith("put the missing files back, or read the rest with a verb that only reads\n")
    (home / "away").rename(last)
    shutil.rmtree(home / "mqstore" / "meta")
    done = cli("append", home, "orders", "--body", "x")
    assert done.returncode == 3
    assert "use a verb that only reads, or run mqstore repair, which continues" in done.stderr


def test_each_advice_of_python_is_in_a_text() -> None:
    root = Path(__file__).parents[2]
    files = [*(root / "python/mqstore").rglob("*.py"), *(root / "rust").rglob("src/**/*.rs")]
    texts = re.sub(r"\\\n\s*", "", "\n".join(file.read_text() for file in files)).replace('\\"', '"')
    for advice, _ in _ADVICE:
        assert re.search(advice.removesuffix("$"), texts), advice
