"""The site: its search finds names and options as they are written. `mkdocs build --strict` checks the rest."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text()


def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "tools" / "site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_search_keeps_names_and_options_whole() -> None:
    separator = re.search(r"^      separator: '(.*)'$", CONFIG, re.MULTILINE)
    assert separator is not None
    text = 'Call <code>WorkQueue.get</code>, or "mqstore cat --since 24h" (dead-letter): visibility_timeout=30.'
    words = {"WorkQueue.get", "--since", "24h", "dead", "letter", "visibility_timeout", "30"}
    assert words <= set(re.split(separator[1], text))


def test_results_have_full_names_and_guides_come_first(tmp_path: Path) -> None:
    titles = {
        "api/work-queues/": ("Work queues", "Work queues (API)"),
        "api/work-queues/#mqstore.WorkQueue": ("mqstore.WorkQueue", "WorkQueue"),
        "api/work-queues/#mqstore.WorkQueue.get": ("get", "WorkQueue.get"),
        "api/asyncio/#mqstore.aio.WorkQueue.get": ("get", "aio.WorkQueue.get"),
        "api/store/#mqstore.open": ("mqstore.open", "mqstore.open"),
        "api/testing/#pytest_mqstore.mqstore_path": ("mqstore_path", "pytest_mqstore.mqstore_path"),
        "api/store/#options": ("Options", "Options"),
        "work-queue/": ("Work queues", "Work queues"),
    }
    path = tmp_path / "search" / "search_index.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"docs": [{"location": each, "title": title} for each, (title, _) in titles.items()]}))
    hooks().on_post_build(config=SimpleNamespace(site_dir=tmp_path))
    found = {entry["location"]: entry["title"] for entry in json.loads(path.read_text())["docs"]}
    assert found == {location: title for location, (_, title) in titles.items()}
    for page, meta in (("api/store.md", {"search": {"boost": 0.3}}), ("retention.md", {})):
        shown = SimpleNamespace(file=SimpleNamespace(src_uri=page), meta={})
        hooks().on_page_markdown("", page=shown, config=None, files=None)
        assert shown.meta == meta
