"""Prints the inputs of an installed part, so that set-up does only the necessary steps.

`fingerprint.py sources`       a digest of every file that goes into the wheel
`fingerprint.py requirements`  the requirements of the extras and of the development group, one on each line
`fingerprint.py group NAME`    the requirements of one dependency group, one on each line

The digest depends on the contents of files, not on their times, because a clone or a switch of branches changes all
times.
"""

import hashlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "Cargo.toml",
    "Cargo.lock",
    "pyproject.toml",
    "rust-toolchain.toml",
    "README.md",
    "LICENSE",
    "NOTICE",
)
FOLDERS = ("rust", "python")
IGNORED_FOLDERS = {"__pycache__", "target"}
IGNORED_SUFFIXES = {".so", ".dylib", ".pyc"}


def _sources() -> Iterator[Path]:
    yield from (ROOT / name for name in FILES if (ROOT / name).is_file())
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            inside = path.relative_to(ROOT)
            if path.is_file() and not IGNORED_FOLDERS & set(inside.parts) and path.suffix not in IGNORED_SUFFIXES:
                yield path


def sources() -> str:
    """Returns a digest of the names and contents of all files that go into the wheel."""
    digest = hashlib.sha256(sys.version.encode())
    for path in _sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def requirements(group: str | None = None) -> str:
    """Returns the requirements of a dependency group, or of the development group and all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    if group is not None:
        return "\n".join(groups[group])
    extras = project["project"]["optional-dependencies"]
    # `all` only names the others.
    wanted = dict.fromkeys([*groups["dev"], *(each for name in extras if name != "all" for each in extras[name])])
    return "\n".join(wanted)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sources"]:
            print(sources())
        case ["requirements"]:
            print(requirements())
        case ["group", name]:
            print(requirements(name))
        case _:
            sys.exit(__doc__)
