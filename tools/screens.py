"""Makes the pictures in docs/screens: terminal output of the command line and of Spark.

    .venv/bin/python tools/screens.py                  all of them; Spark needs Java 17 or newer
    .venv/bin/python tools/screens.py dead-broker      those of docs/dead-broker.md
    .venv/bin/python tools/screens.py spark            those of docs/spark.md

For docs/dead-broker.md, it builds the store of a broker that died: sixty thousand messages of a shop, groups with lag,
a missing queue folder, an overwritten page of the log, and an incomplete last record. Then it runs the commands of the
guide on this store, each in a separate terminal, and saves the output. For docs/spark.md, it runs the recipes of the
page on the store of a small shop.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

import mqstore

DOCS = Path(__file__).parent.parent / "docs"
SCREENS = DOCS / "screens"
COLUMNS = 132

STEPS = {
    "info": "mqstore info store",
    "verify": "mqstore verify store",
    "repair-plan": "mqstore repair store --dry-run",
    "repair": "mqstore repair store --output repaired",
    "verify-again": "mqstore verify repaired",
    "tail": "mqstore tail repaired orders -n 5",
    "lookup": "mqstore lookup repaired orders order-30001",
}


RECIPES = {1: "spark-latest", 4: "spark-join"}
"""Queries of docs/spark.md by their position after its view, and the names of their pictures."""


def main() -> None:
    """Builds the stores, runs the commands and queries, writes the pictures."""
    wanted = sys.argv[1:] or ["dead-broker", "spark"]
    SCREENS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if "dead-broker" in wanted:
            _dead_broker(Path(folder) / "store")
            for name, command in STEPS.items():
                _picture(name, f"$ {command}", _shown(command, Path(folder)))
        if "spark" in wanted:
            _recipes(Path(folder) / "shop")


def _recipes(home: Path) -> None:
    from pyspark.sql import SparkSession

    _shop(home)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    text = (DOCS / "spark.md").read_text().partition("## Recipes\n")[2]
    blocks = [block.strip() for block in re.findall(r"```sql\n(.*?)```", text, re.DOTALL)]
    spark.sql(blocks[0].replace("/data/store", str(home)).rstrip(";"))
    for place, name in RECIPES.items():
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            spark.sql(blocks[place].rstrip(";")).show(8, truncate=60)
        _picture(name, blocks[place], shown.getvalue().rstrip())
    spark.stop()


def _shop(home: Path) -> None:
    chance = random.Random(7)
    goods = ("apples", "bread", "coffee", "tea", "tomatoes")
    with mqstore.open(home, "create") as store:
        for number in range(200):
            good = chance.choice(goods)
            store.append("prices", f"{chance.randrange(80, 900) / 100:.2f} EUR".encode(), keys=good)
            order = f"{chance.randrange(1, 9)} of {good} for customer {number:03}"
            store.append("orders", order.encode(), keys=good)


def _dead_broker(home: Path) -> None:
    chance = random.Random(7)
    with mqstore.open(home, "create", segment_size=8 << 20, queue_file_entries=20_000) as store:
        store.create_topic("orders", queues=4)
        store.create_topic("payments", queues=2)
        places = []
        for number in range(60_000):
            body = json.dumps(
                {"order": number, "amount": chance.randrange(100, 99_999), "note": "x" * chance.randrange(300)}
            )
            topic = "orders" if number % 3 else "payments"
            tags = chance.choice(["created", "paid", "shipped"])
            sent = store.append(topic, body.encode(), keys=f"order-{number}", tags=tags)
            places.append(sent.commit_log_offset)
    groups = {"orders@billing": {0: 9_000, 1: 9_800, 2: 10_000, 3: 10_000}, "payments@ledger": {0: 9_990, 1: 10_000}}
    table = ",".join(f'"{key}":{{{",".join(f"{q}:{o}" for q, o in at.items())}}}' for key, at in groups.items())
    (home / "config" / "consumerOffset.json").write_text(f'{{"offsetTable":{{{table}}}}}')
    shutil.rmtree(home / "consumequeue" / "orders" / "2")
    shutil.rmtree(home / "mqstore")
    (home / "abort").touch()
    segments = sorted((home / "commitlog").iterdir())
    with segments[1].open("r+b") as log:
        log.seek(3_000_000 // 4096 * 4096)
        log.write(os.urandom(4096))
    with segments[-1].open("r+b") as log:
        log.seek(places[-1] - int(segments[-1].name) + 150)
        log.write(bytes(400))


def _shown(command: str, folder: Path) -> str:
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    words = [sys.executable, "-m", *command.split()]
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    found = b""
    with subprocess.Popen(words, cwd=folder, stdout=child, stderr=child, env=environment):
        os.close(child)
        try:
            while more := os.read(parent, 1 << 16):
                found += more
        except OSError:
            pass  # the other end is closed
    os.close(parent)
    return _last_look(found.decode().replace("\r\n", "\n"))


def _last_look(text: str) -> str:
    """Returns the final text of the terminal.

    A progress bar moves up to its own line, clears it and draws itself again.
    """
    lines, row = [""], 0
    for piece in re.split(r"(\n|\r|\x1b\[1A|\x1b\[2K|\x1b\[\?25[lh])", text):
        if piece == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif piece == "\x1b[1A":
            row = max(row - 1, 0)
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif piece != "\r" and not piece.startswith("\x1b[?"):
            lines[row] += piece
    return "\n".join(lines).strip("\n")


def _picture(name: str, command: str, text: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(command, style="bold"))
    console.print(Text.from_ansi(text))
    # Remove the font that rich loads from another server. Viewers use their own font.
    drawn = re.sub(r"@font-face \{.*?\}", "", console.export_svg(title="mqstore"), flags=re.DOTALL)
    (SCREENS / f"{name}.svg").write_text(re.sub(r"[ \t]+$", "", drawn, flags=re.MULTILINE))


if __name__ == "__main__":
    main()
