"""Hooks of MkDocs: the version, the link to the repository, and the ranks and titles of search results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

# Guides come before these pages in search results.
_RANKS = {"api/": 0.3, "format/": 0.3}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Sets the version in the footer, and the link to the repository next to the search field."""
    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    config.copyright = f"mqstore {version}"
    config.repo_url = _repository()
    config.repo_name = f"mqstore {version}"
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Sets the rank of a page in search results, unless the page has one."""
    for folder, rank in _RANKS.items():
        if page.file.src_uri.startswith(folder):
            page.meta.setdefault("search", {"boost": rank})
    return markdown


def on_post_build(*, config: MkDocsConfig) -> None:
    """Gives the search the names of the API in full: `WorkQueue.get` instead of `get`."""
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for entry in index["docs"]:
        page, _, anchor = entry["location"].partition("#")
        if not page.startswith("api/"):
            continue
        if re.match(r"(pytest_)?mqstore\.\w", anchor):
            inside = anchor.removeprefix("mqstore.")
            entry["title"] = inside if "." in inside or inside[0].isupper() else anchor
        elif not anchor:
            entry["title"] += " (API)"
    path.write_text(json.dumps(index, separators=(",", ":"), ensure_ascii=False), encoding="utf-8")


def _repository() -> str | None:
    """Returns the address of the repository: of the workflow that builds the site, or of the remote `origin`."""
    if name := os.environ.get("GITHUB_REPOSITORY"):
        return f"{os.environ['GITHUB_SERVER_URL']}/{name}"
    asked = subprocess.run(["git", "remote", "get-url", "origin"], cwd=ROOT, capture_output=True, text=True)
    address = asked.stdout.strip().removesuffix(".git")
    found = re.sub(r"^(ssh://git@|git@|https://[^/]*@)([^:/]+)[:/]", r"https://\2/", address)
    return found if found.startswith("https://") else None
