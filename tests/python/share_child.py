"""A process that shares a store with others: appends, works on a queue, and writes what it knows into its journal."""

from __future__ import annotations

import random
import sys
from contextlib import suppress
from pathlib import Path

import mqstore
from conftest import SMALL

GROUP = "workers"
OPTIONS = {"visibility_timeout": 1.0, "max_attempts": None, "backoff": lambda _attempt: 0.0}


def main(home: str, journal_path: str, name: str) -> None:
    """Runs until it is killed. Each line of the journal is written after the call that it names has returned."""
    chance = random.Random(name)
    with Path(journal_path).open("a", buffering=1) as journal, mqstore.open(home, "share", options=SMALL) as store:
        queue = store.work_queue("jobs", GROUP, **OPTIONS)
        # Its messages become due, and a reclaim rewrites the segments that have them.
        store.create_topic("noise", 1)
        store.set_retention("noise", max_bytes=2048)
        journal.write("ready\n")
        number = 0
        while True:
            what = chance.random()
            if chance.random() < 0.05:
                store.append_many("noise", [b"x" * 200] * 10)
            if chance.random() < 0.02:
                with suppress(mqstore.StoreBusyError):
                    if what < 0.5:
                        store.expire()
                    else:
                        store.reclaim()
            if what < 0.5:
                store.append("log", f"{name} {number}".encode(), durable=what < 0.05)
                journal.write(f"stored {number}\n")
                number += 1
            elif what < 0.6:
                count = chance.randrange(1, 20)
                results = store.append_many("log", [f"{name} {number + at}".encode() for at in range(count)])
                assert len(results) == count
                journal.write("".join(f"stored {number + at}\n" for at in range(count)))
                number += count
            elif what < 0.8:
                queue.put(f"{name} {number}".encode())
                journal.write(f"put {number}\n")
                number += 1
            else:
                for message in queue.get_many(3, timeout=0.01):
                    journal.write(f"got {message.body.decode()} {message.attempt}\n")
                    try:
                        message.ack()
                    except mqstore.LeaseLostError:
                        continue
                    journal.write(f"acked {message.body.decode()}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
