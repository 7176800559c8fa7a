"""The victim of ``test_kill``: a busy writer that notes each step in a journal outside of the store.

The process writes each line of the journal before the next step begins, so the last line is the step in which it
died::

    open                 about to open the store
    ready                the store is open
    > verb number        about to call
    < number place       the call returned; place: "queue:offset:log offset" of its last message
"""

from __future__ import annotations

import os
import random
import sys

import mqstore

# Small files, so that rolls and new queue and index files happen often.
OPTIONS = mqstore.StoreOptions(
    segment_size=32 << 10, queue_file_entries=64, index_slots=32, index_entries=128, flush_interval=0.01
)


def main(home: str, journal: str, durability: str, seed: int) -> None:
    chance = random.Random(seed)
    log = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    # Each line goes directly to the kernel, so a kill of this process does not lose it.
    say = lambda text: os.write(log, f"{text}\n".encode())  # noqa: E731
    say("open")
    store = mqstore.open(home, "create", options=OPTIONS, durability=durability)
    store.create_topic("t", queues=2)
    say("ready")
    number = 0
    while True:
        number += 1
        body = f"{seed}/{number}".encode().ljust(chance.choice((20, 200, 2000)), b".")
        queue = number % 2
        turn = chance.random()
        if turn < 0.02:
            say(f"> flush {number}")
            store.flush()
            continue
        if turn < 0.1:
            count = chance.randrange(1, 40)
            say(f"> batch {number}")
            messages = [mqstore.Message(body, keys=f"n{number}") for _ in range(count)]
            result = store.append_many("t", messages, queue_id=queue)[-1]
        elif turn < 0.15:
            say(f"> durable {number}")
            result = store.append("t", body, keys=f"n{number}", queue_id=queue, durable=True)
        else:
            say(f"> append {number}")
            result = store.append("t", body, keys=f"n{number}", queue_id=queue)
        say(f"< {number} {result.queue_id}:{result.queue_offset}:{result.commit_log_offset}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
