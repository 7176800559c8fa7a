"""A key table: the program counts visits of pages, and continues with its counts after any stop."""

import mqstore

with mqstore.open("data", mode="create") as store:
    if "visits" not in store.topics():
        store.create_topic("visits", attributes={"cleanup.policy": "COMPACTION"})
    visits = store.table("visits")
    counted = sum(int(message.text()) for message in visits.values())
    for number in range(counted, 100):
        page = f"page {number % 5}"
        visits[page] = str(number // 5 + 1).encode()
        print("counted", number)
    store.compact()
    for page, message in sorted(visits.items()):
        print(page, message.text())
