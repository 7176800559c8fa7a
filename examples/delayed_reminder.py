"""Reminders that arrive later: they wait in the store, also while no program has it open. One of them is cancelled."""

import tempfile
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import mqstore


def main(path: Path) -> None:
    begun = datetime.now(UTC)
    with mqstore.open(path, "create") as store:
        store.append("reminders", b"the tea is ready", delay=2)
        store.append("reminders", b"the water boils", deliver_at=begun + timedelta(seconds=1))
        meeting = store.append("reminders", b"the meeting starts", delay=timedelta(days=1))

    # No program has the store open now. The next open for writing delivers each reminder when it is due, or at once if
    # that time has passed.
    with mqstore.open(path, "rw") as store:
        for message in islice(store.read("reminders", follow=True, timeout=20), 2):
            print(message.text())
        print("pending:", store.delays().pending)
        print("cancelled:", store.cancel(meeting.unique_id))
        print("pending:", store.delays().pending)
    print("two seconds passed:", datetime.now(UTC) - begun >= timedelta(seconds=2))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder, "store"))
