"""The directory of a dead broker: inspect it, verify it, read it, and repair a copy. The directory does not change.

    python examples/dead_broker.py [STORE]

The repaired copy is in STORE-repaired. Without STORE, the example unpacks a store that RocketMQ 5.3.3 wrote for the
tests of mqstore, and damages it.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import mqstore

PACKED = Path(__file__).parents[1] / "tests/rust/damage/stores/rocketmq-5.3.3"


def readable(path: Path) -> dict[str, int]:
    with mqstore.open(path) as store:
        return {topic: sum(1 for _ in store.read(topic, on_damage="skip")) for topic in store.topics()}


def main(path: Path) -> None:
    found = mqstore.info(path)
    print("written by", found.written_by, "with the topics", *[topic.topic for topic in found.topics])
    problems = mqstore.verify(path).problems
    print("problems:", dict(Counter(problem.kind for problem in problems)))
    print("readable messages:", readable(path))

    copy = path.with_name(f"{path.name}-repaired")
    report = mqstore.repair(path, output=copy)
    for lost in report.lost:
        print("lost:", lost.bytes, "bytes at log offset", lost.log_offset)
    for gap in report.queue_offsets:
        print("lost:", gap.topic, "queue", gap.queue_id, "offsets", gap.from_offset, "to", gap.to_offset - 1)
    print("problems of the copy:", len(report.problems))
    print("readable messages of the copy:", readable(copy))


def damaged_store(path: Path) -> Path:
    """Unpacks the store of the tests, then overwrites 500 bytes of its log."""
    with PACKED.open("rb") as packed:

        def number(size: int) -> int:
            return int.from_bytes(packed.read(size))

        for _ in range(number(4)):
            file = path / packed.read(number(2)).decode()
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as out:
                out.truncate(number(8))
                for _ in range(number(4)):
                    out.seek(number(8))
                    out.write(packed.read(number(4)))
    with (path / "commitlog/00000000000000004096").open("r+b") as segment:
        segment.seek(900)
        segment.write(bytes(500))
    return path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else damaged_store(Path(folder, "store")))
