"""A log that survives the death of its writer: after a kill, every event that was appended is still in the log."""

import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import mqstore


def write_and_die(path: Path) -> None:
    store = mqstore.open(path, "create")
    for number in range(1000):
        store.append("events", f"event {number}".encode(), keys=f"user-{number % 250}")
    os.kill(os.getpid(), signal.SIGKILL)


def main(path: Path) -> None:
    writer = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(path,))
    writer.start()
    writer.join()
    print("exit code of the writer:", writer.exitcode)

    with mqstore.open(path, "rw") as store:
        print("events after the kill:", store.count("events"))
        print("events of one user:", [message.text() for message in store.lookup("events", "user-7")])
        # With durable=True, the event also survives a power loss as soon as the call returns.
        placed = store.append("events", b"the writer was killed", durable=True)
        print("offset of the next event:", placed.queue_offset)

    # A reader continues where it stopped, here at offset 998. It needs no lock and changes nothing.
    with mqstore.open(path) as reader:
        for message in reader.read("events", 0, start=998):
            print(message.queue_offset, message.text())


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder, "store"))
