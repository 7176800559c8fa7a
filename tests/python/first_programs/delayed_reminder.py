"""Delayed reminders: the arguments are texts and seconds. The program prints each reminder when it is due."""

import sys

import mqstore

with mqstore.open("data", mode="create") as store:
    for text, seconds in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        store.append("reminders", text.encode(), delay=float(seconds))
        print("noted", text)
    with store.consumer("screen", "reminders") as screen:
        while store.delays().pending or any(screen.lag().values()):
            for message in screen.poll(max_messages=1, timeout=1):
                print("reminder", message.text())
                screen.commit()
