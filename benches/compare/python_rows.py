"""The rows of Python programs: one thread stores and reads bodies of 1 KiB, in mqstore and in other libraries."""

from __future__ import annotations

from .rows import OURS, Contender, Row, Spec

MEMORY = "queue.Queue"


def peer(name: str, messages: int) -> Contender:
    """Return a side that handles this many messages. A side that is a hundred times slower handles fewer."""
    return Contender(name, "peers", {"pattern": name, "messages": messages})


def _row(name: str, title: str, spec: Spec, messages: dict[str, int]) -> Row:
    sides = tuple(peer(side, count) for side, count in messages.items())
    figures = ("rate", "overhead_bytes") if spec["op"] == "put" else ("rate",)
    return Row(f"py-{name}", f"Python, 1 KiB: {title}", {"body_bytes": 1024} | spec, sides, (), figures)


PYTHON_ROWS: tuple[Row, ...] = (
    _row(
        "append",
        "one a call, as durable as the process",
        {"op": "put", "warm_up": 2_000},
        {
            OURS: 500_000,
            "file": 500_000,
            MEMORY: 500_000,
            "plyvel": 200_000,
            "rocksdict": 200_000,
            "lmdb": 200_000,
            "sqlite3": 50_000,
            "litequeue": 20_000,
            "persist-queue": 5_000,
            "diskcache": 10_000,
        },
    ),
    _row(
        "append-many",
        "a thousand a call, as durable as the process",
        {"op": "put", "batch": 1_000, "warm_up": 10_000},
        {
            OURS: 500_000,
            "file": 500_000,
            "plyvel": 200_000,
            "rocksdict": 200_000,
            "lmdb": 500_000,
            "sqlite3": 200_000,
        },
    ),
    _row(
        "durable",
        "one a call, safe from a power cut when the call returns",
        {"op": "put", "durability": "sync", "warm_up": 200},
        {OURS: 2_000, "file": 2_000, "sqlite3": 2_000, "lmdb": 2_000, "plyvel": 2_000, "rocksdict": 2_000},
    ),
    _row(
        "iterate",
        "all bodies in order",
        {"op": "iterate"},
        {
            OURS: 500_000,
            "file": 500_000,
            MEMORY: 500_000,
            "plyvel": 200_000,
            "rocksdict": 200_000,
            "lmdb": 500_000,
            "sqlite3": 200_000,
        },
    ),
    _row(
        "work",
        "put, got under a lease and acknowledged, one after the other",
        {"op": "work", "warm_up": 100},
        {
            OURS: 100_000,
            MEMORY: 500_000,
            "lmdb": 50_000,
            "sqlite3": 20_000,
            "litequeue": 500,
            "persist-queue": 2_000,
        },
    ),
    Row(
        "py-import",
        "Python: `import`, beyond an interpreter that imports nothing",
        {"op": "import"},
        tuple(peer(name, 1) for name in (OURS, "sqlite3", "lmdb", "plyvel", "rocksdict", "litequeue", "diskcache")),
        (),
        figures=("taken_ms",),
    ),
)
