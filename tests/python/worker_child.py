"""The victim of ``test_kill_workers``: a producer and three workers on one work queue, with a journal.

Each line is written after the call has returned, except `acks`::

    ready              the queue is open
    put N              message N was put in
    got N attempt      a worker has it
    acks N             the worker is about to acknowledge it
    acked N attempt    it is acknowledged

Every 17th message is bad: a worker always returns it. Every 13th message is forgotten at its first delivery, so that
its lease ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from itertools import count

import mqstore

OPTIONS = mqstore.StoreOptions(segment_size=256 << 10, queue_file_entries=256, index_slots=32, index_entries=128)
MAX_ATTEMPTS = 5


def is_bad(number: int) -> bool:
    return number % 17 == 0


def open_queue(store: mqstore.Store) -> mqstore.WorkQueue:
    store.create_topic("jobs", queues=2)
    return store.work_queue("jobs", visibility_timeout=0.1, max_attempts=MAX_ATTEMPTS)


def work(queue: mqstore.WorkQueue, say: Callable[[str], object], message: mqstore.LeasedMessage) -> None:
    number = int(message.body)
    say(f"got {number} {message.attempt}")
    try:
        if is_bad(number):
            queue.nack(message, 0)
        elif number % 13 or message.attempt > 1:
            say(f"acks {number}")
            queue.ack(message, durable=number % 7 == 0)
            say(f"acked {number} {message.attempt}")
    except mqstore.LeaseLostError:
        # Another worker has it by now.
        pass


def main(home: str, journal: str, first: int) -> None:
    log = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    say = lambda text: os.write(log, f"{text}\n".encode())  # noqa: E731
    store = mqstore.open(home, "create", options=OPTIONS)
    queue = open_queue(store)

    def produce() -> None:
        for number in count(first):
            # Keeps the queue short, so that the workers can follow.
            if queue.qsize() < 50:
                queue.put(str(number).encode(), durable=number % 11 == 0)
                say(f"put {number}")

    def consume() -> None:
        while True:
            work(queue, say, queue.get())

    say("ready")
    threads = [threading.Thread(target=target) for target in (produce, consume, consume, consume)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
