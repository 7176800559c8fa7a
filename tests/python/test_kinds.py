"""The page of problems lists every kind with the words that `verify` prints."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_kind_is_on_the_page() -> None:
    source = (ROOT / "rust/mqstore-inspect/src/problem.rs").read_text()
    words = source[source.index("fn texts") :]
    page = (ROOT / "docs/verify.md").read_text()
    told = re.findall(r"^\| `([a-z_]+)` \| (.+?) \|", page, re.MULTILINE)
    meant = re.findall(r'\(\s*"([a-z]+(?:_[a-z]+)+)",\s*"((?:[^"\\]|\\.)*)"', words, re.DOTALL)
    assert len(meant) > 20
    assert told == [(kind, re.sub(r"\\\n\s*", "", text)) for kind, text in meant]
