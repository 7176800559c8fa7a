"""Prints random sentences of the documentation and random comments, to judge how they read.

    tools/sample_sentences.py [--seed 1] [--count 40]

The same seed and tree give the same sample. Each line is FILE: sentence.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
LEAST_WORDS = 5


def tracked(*patterns: str) -> list[Path]:
    """Returns the files of the repository that match."""
    names = subprocess.run(["git", "ls-files", *patterns], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    return [ROOT / name for name in sorted(names.split())]


def sentences(text: str) -> list[str]:
    """Splits a paragraph into sentences."""
    parts = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join(text.split()))
    return [part for part in parts if len(part.split()) >= LEAST_WORDS]


def of_pages() -> list[tuple[Path, str]]:
    """Returns the sentences of the pages, without code blocks, tables and headings."""
    found = []
    for path in tracked("README.md", "CHANGELOG.md", "docs/*.md", "docs/**/*.md"):
        text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        # A list item is a paragraph of its own.
        for paragraph in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text):
            if not paragraph.lstrip().startswith(("#", "|", "<")):
                found += [(path, sentence) for sentence in sentences(paragraph)]
    return found


def of_comments() -> list[tuple[Path, str]]:
    """Returns the sentences of comments in Rust and Python files."""
    found = []
    for path in tracked("*.rs", "*.py"):
        mark = r"\s*//[/!]?( |$)" if path.suffix == ".rs" else r"\s*#( |$)"
        block: list[str] = []
        for line in [*path.read_text().splitlines(), ""]:
            if re.match(mark, line):
                block.append(re.sub(mark, "", line, count=1))
            elif block:
                found += [(path, sentence) for sentence in sentences(" ".join(block))]
                block = []
    return found


def main() -> None:
    """Prints the sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=40)
    arguments = parser.parse_args()
    for title, found in (("documentation", of_pages()), ("comments", of_comments())):
        print(f"# {title}: {len(found)} sentences")
        for path, sentence in random.Random(arguments.seed).sample(found, arguments.count):
            print(f"{path.relative_to(ROOT)}: {sentence}")


if __name__ == "__main__":
    main()
