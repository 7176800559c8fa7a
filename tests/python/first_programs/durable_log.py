"""A durable log: the program continues with the next reading, however its last run ended."""

import mqstore

with mqstore.open("data", mode="create") as store:
    first = store.count("readings") if "readings" in store.topics() else 0
    for number in range(first, 100):
        store.append("readings", f"reading {number}".encode(), durable=True)
        print("stored", number)
    for message in store.read("readings"):
        print("read", message.text())
