"""Tries an installed wheel in a few lines: write, close, reopen, read, look up, verify.

Needs only the wheel, and must not import the package from the current folder.
"""

import tempfile
from pathlib import Path

import mqstore

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "store"
    bodies = [f"message {number}".encode() for number in range(100)]

    with mqstore.open(path, mode="create", segment_size=1 << 16, queue_file_entries=64) as store:
        store.append_many("smoke", bodies)
        last = store.append("smoke", b"last", keys=["K-1"], tags="end", durable=True)
        assert last.durable

    with mqstore.open(path) as store:
        assert [message.body for message in store.read("smoke", 0)] == [*bodies, b"last"]
        assert store.get(last.message_id).tags == "end"
        assert [message.body for message in store.lookup("smoke", "K-1")] == [b"last"]

    report = mqstore.verify(path)
    assert report.ok, report

print(f"mqstore {mqstore.__version__} works: {report.messages} messages")
