"""Makes the small stores of RocketMQ for tests that change bytes: `python -m interop.pack` in `tests/`.

`tests/rust/damage` changes bytes at random, `tests/python/test_damage.py` one by one. A pack is a number of files, each
with its path, its length, and its ranges that are not zero. Numbers are big-endian:

    4 files | 2 length, path | 8 length | 4 ranges | 8 offset, 4 length, bytes | ...
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from . import corpus
from .java_build import VERSIONS, build
from .java_rows import Spec, batch, message
from .scenarios import BATCH_QUEUE, KIB, Scenario, mixed, topic, unique_id
from .shop import Shop

if TYPE_CHECKING:
    from .driver import JavaSession

STRETCH = 64
TARGET = Path(__file__).parents[1] / "rust/damage/stores"


def _messages() -> list[list[Spec]]:
    specs = mixed({"orders": 2, "others": 1}, 36, "tiny", largest=200)
    for number in range(6):
        items = [message("batched", (f"b{number}/{n}", 20), tags="x", keys=[f"n{n}"]) for n in range(1 + number % 3)]
        specs.append(batch("batched", items, inner=True, unique_id=unique_id(number)))
    return [specs[::2], specs[1::2]]


TINY = Scenario(
    "tiny",
    _messages,
    {"orders": topic(2), "others": topic(), "batched": topic(1, **BATCH_QUEUE)},
    {
        "mappedFileSizeCommitLog": 4 * KIB,
        "mappedFileSizeConsumeQueue": 20 * 16,
        "mapperFileSizeBatchConsumeQueue": 46 * 20,
        "maxHashSlotNum": 13,
        "maxIndexNum": 70,
    },
)


def pack(path: Path) -> bytes:
    """Return the files of a directory."""
    files = sorted(each for each in path.rglob("*") if each.is_file())
    out = [struct.pack(">I", len(files))]
    for file in files:
        data = file.read_bytes()
        name = str(file.relative_to(path)).encode()
        starts = [at for at in range(0, len(data), STRETCH) if any(data[at : at + STRETCH])]
        out.append(struct.pack(">H", len(name)) + name + struct.pack(">QI", len(data), len(starts)))
        for at in starts:
            part = data[at : at + STRETCH]
            out.append(struct.pack(">QI", at, len(part)) + part)
    return b"".join(out)


def main() -> None:
    """Write a pack for each version."""
    TARGET.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder), {})
        for version in VERSIONS:
            build(version)
            (TARGET / f"rocketmq-{version}").write_bytes(pack(shop.write(version, TINY).path))
        _pack_corpus(shop.session(VERSIONS[-1]), Path(folder) / "corpus")
        shop.end()


def _pack_corpus(session: JavaSession, home: Path) -> None:
    sent = corpus.write(session, home)
    # No test looks at this folder.
    shutil.rmtree(home / "rocksdbstore")
    target = corpus.stores.PACKED
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(pack(home))
    target.with_suffix(".json").write_text("[" + ",\n".join(json.dumps(asdict(one)) for one in sent) + "]\n")


if __name__ == "__main__":
    main()
