"""The writer of ``test_devices``, on a file system that a test makes fail.

    python device_child.py HOME JOURNAL ROLE_JSON

Appends from several threads until something fails, and writes one line for each call to a journal on another disk::

    ready                                       the store is open
    a thread number queue offset durable at     an append returned; durable is 0 or 1, at the log offset
    f number ...                                a flush returned: each thread's last number acknowledged before it
    e verb class errno text                     a call failed; all threads end
    o verb class errno text                     result of a call after the failure; "fine 0" for no error
    end                                         the store was closed, or the close failed
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable

import mqstore

BODY = bytes(range(256)) * 16


def body_of(thread: int, number: int) -> bytes:
    size = (number * 2654435761 + thread * 40503) % (4096 if number % 8 == 0 else 300)
    return b"%d.%d|" % (thread, number) + BODY[:size]


class Writer:
    """The writing threads. All end when one of them fails."""

    def __init__(self, home: str, journal: str, threads: int, options: dict[str, object]) -> None:
        self.journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.store = mqstore.open(home, "create", **options)
        self.store.create_topic("t", queues=threads)
        self.acknowledged = [-1] * threads
        self.broken = threading.Event()

    def say(self, text: str) -> None:
        os.write(self.journal, f"{text}\n".encode())

    def run(self) -> None:
        self.say("ready")
        count = len(self.acknowledged)
        running = [threading.Thread(target=self.append, args=(thread,)) for thread in range(count)]
        running.append(threading.Thread(target=self.flush))
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    def attempt(self, mark: str, verb: str, call: Callable[[], object]) -> bool:
        try:
            call()
        except BaseException as error:
            self.say(f"{mark} {verb} {type(error).__name__} {getattr(error, 'errno', None)} {error!s}")
            return False
        return True

    def append(self, thread: int) -> None:
        number = 0

        def one() -> None:
            # Every third append asks for a sync, in every mode.
            result = self.store.append("t", body_of(thread, number), queue_id=thread, durable=number % 3 == 0)
            self.acknowledged[thread] = number
            place = f"{result.queue_id} {result.queue_offset} {int(result.durable)} {result.commit_log_offset}"
            self.say(f"a {thread} {number} {place}")

        while not self.broken.is_set():
            if not self.attempt("e", "append", one):
                self.broken.set()
            number += 1

    def flush(self) -> None:
        while not self.broken.is_set():
            before = " ".join(map(str, self.acknowledged))
            if not self.attempt("e", "flush", self.store.flush):
                self.broken.set()
                return
            self.say(f"f {before}")
            time.sleep(0.01)

    def ask_again(self) -> None:
        """Tries each call again after the failure, and notes its result."""
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: self.store.append("t", b"x", queue_id=0),
            "durable": lambda: self.store.append("t", b"x", queue_id=0, durable=True),
            "flush": self.store.flush,
            "read": lambda: next(self.store.read("t", 0)),
            "close": self.store.close,
        }
        for verb, call in calls.items():
            if self.attempt("o", verb, call):
                self.say(f"o {verb} fine 0")


def main(home: str, journal: str, role: str) -> None:
    writer = Writer(home, journal, **json.loads(role))
    writer.run()
    writer.ask_again()
    writer.say("end")


if __name__ == "__main__":
    main(*sys.argv[1:])
