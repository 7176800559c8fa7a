"""The `--format json` output of every verb matches docs/schema.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
import schemas
from test_logic_queues import item, write_mapping

if TYPE_CHECKING:
    from conftest import Cli

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

PAGE = Path(__file__).parents[2] / "docs" / "schema.json"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == schemas.page(), "python tests/python/schemas.py > docs/schema.json"


@pytest.mark.slow
@pytest.mark.parametrize(
    "verb",
    [
        ["info", "DIR"],
        ["topics", "DIR"],
        ["topics", "DIR", "--sizes"],
        ["topics --queues", "DIR"],
        ["topics --hours", "DIR"],
        ["cat", "DIR"],
        ["cat", "DIR", "--body", "text"],
        ["cat", "DIR", "--log", "--body", "none"],
        ["tail", "DIR", "orders"],
        ["get", "DIR", "ID"],
        ["lookup", "DIR", "orders", "all"],
        ["stats", "DIR"],
        ["config show", "DIR"],
        ["bench", "OUT", "--messages", "200"],
        ["verify", "DIR"],
        ["verify", "BAD"],
        ["repair", "BAD", "--dry-run"],
        ["repair", "BAD", "--output", "OUT/mended"],
        ["rebuild", "DIR"],
        ["expire", "DIR", "--retention", "1ms", "--dry-run"],
        ["reclaim", "DIR", "--dry-run"],
        ["compact", "DIR", "--dry-run"],
        ["snapshot", "DIR", "OUT/snapshot"],
        ["export", "DIR", "OUT/all.jsonl"],
        ["archive", "DIR", "OUT/cold"],
        ["published", "URL"],
        ["fetch", "URL", "OUT/fetched"],
        ["clean", "URL", "--dry-run"],
        ["import", "DIR", "JSONL", "--dry-run"],
        ["append", "DIR", "orders", "--body", "text"],
        ["topic create", "DIR", "fresh", "--queues", "2"],
        ["topic alter", "DIR", "orders", "--queues", "3"],
        ["topic delete", "DIR", "orders", "--yes"],
        ["group lag", "DIR"],
        ["group lag --queues", "DIR"],
        ["last", "DIR", "billing"],
        ["group reset", "DIR", "billing", "--to", "latest", "--dry-run"],
        ["dead-letter list", "DIR"],
        ["dead-letter redrive", "DIR", "workers", "--dry-run"],
        ["logic-queue list", "a=DIR"],
        ["logic-queue cat", "a=DIR"],
        ["logic-queue lag", "a=DIR"],
        ["logic-queue export", "a=DIR", "--topic", "orders", "--output", "OUT/orders.parquet"],
    ],
    ids=" ".join,
)
def test_every_verb(filled: Path, tmp_path: Path, cli: Cli, verb: list[str]) -> None:
    first = json.loads(cli("cat", filled, "--limit", "1", "--format", "jsonl").stdout)
    out = tmp_path / "out"
    out.mkdir()
    places = {"DIR": str(filled), "BAD": str(filled), "ID": first["message_id"], "JSONL": str(tmp_path / "some.jsonl")}
    (tmp_path / "some.jsonl").write_text(json.dumps(first) + "\n")
    with mqstore.open(filled, "rw") as store:
        with store.consumer("billing", "orders") as consumer:
            consumer.poll(timeout=0)
            consumer.commit()
        with store.work_queue("events", "workers", max_attempts=1) as queue:
            queue.nack(queue.get())
    if "a=DIR" in verb:
        write_mapping(filled, "a", {0: [item(0, "a", 0, 100)]})
    places["URL"] = f"file://{out}/published"
    if "URL" in verb:
        mqstore.export(filled, places["URL"], format="jsonl")
    if "BAD" in verb:
        segment = next((filled / "commitlog").iterdir())
        with segment.open("r+b") as log:
            log.seek(first["commit_log_offset"] + 100)
            log.write(b"\xff" * 8)
    words = [word for part in verb[:1] for word in part.split()]
    words += [places.get(word, word.replace("OUT", str(out)).replace("a=DIR", f"a={filled}")) for word in verb[1:]]
    done = cli(*words, "--format", "json")
    assert done.returncode in (0, 1), done.stderr
    answer: Any = json.loads(done.stdout)
    document = json.loads(PAGE.read_text())
    jsonschema.validate(answer, {"$ref": f"#/$defs/{verb[0]}".replace(" ", "%20"), "$defs": document["$defs"]})
    assert answer
