"""The victim of ``test_transactions``: a process that dies at one point of a transaction."""

from __future__ import annotations

import os
import signal
import sys
import threading

import mqstore


def die(end: str) -> None:
    if end == "exit":
        os._exit(5)
    os.kill(os.getpid(), signal.SIGKILL)


def main(home: str, phase: str, end: str) -> None:
    store = mqstore.open(home, "create")
    transaction = store.transaction("child")
    if phase == "begun":
        die(end)
    for topic in ("a", "b", "a", "b"):
        transaction.append(topic, b"x")
    if phase == "committed":
        transaction.commit()
    elif phase == "rolled back":
        transaction.rollback()
    elif phase == "checked":
        decided = threading.Event()

        def check(_: mqstore.PendingTransaction) -> str:
            decided.set()
            return "commit"

        del transaction
        store.check_transactions(check, "child", check_after=0)  # type: ignore[arg-type]
        decided.wait(60)
        while store.pending_transactions():
            pass
    die(end)


if __name__ == "__main__":
    main(*sys.argv[1:])
