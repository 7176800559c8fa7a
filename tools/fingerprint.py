"""Says in one line what an installed part was made from, so that set-up does only what is needed.

`fingerprint.py sources`       a digest of every file that goes into the wheel
`fingerprint.py requirements`  the requirements of the extras and of the development group, one a line
`fingerprint.py group NAME`    the requirements of one dependency group, one a line

Content counts, not times: a fresh clone and a switched branch look alike to `make` otherwise.
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
    """A digest of the names and contents of everything that the wheel is made of."""
    digest = hashlib.sha256(sys.version.encode())
    for path in _sources():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def requirements(group: str | None = None) -> str:
    """The requirements of a dependency group, or of development and all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    if group is not None:
        return "\n".join(groups[group])
    extras = project["project"]["optional-dependencies"]
    # Arrow's are among Spark's.
    wanted = [*groups["dev"]]
    for extra in ("cli", "opentelemetry", "prometheus", "spark"):
        wanted += extras[extra]
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
