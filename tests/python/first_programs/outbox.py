"""An outbox: a row in a database and a message for the warehouse exist together, or not at all."""

import sqlite3
from contextlib import closing
from itertools import islice
from typing import Literal

import mqstore


def was_sold(pending: mqstore.PendingTransaction) -> Literal["commit", "rollback"]:
    with closing(sqlite3.connect("shop.db")) as own:
        row = own.execute("select 1 from sales where transaction_id = ?", (pending.id,)).fetchone()
    return "commit" if row else "rollback"


with mqstore.open("data", mode="create") as store, closing(sqlite3.connect("shop.db")) as database:
    database.execute("create table if not exists sales (item text primary key, transaction_id text)")
    store.check_transactions(was_sold, "sales")
    for number in range(10):
        item = f"lamp {number}"
        if database.execute("select 1 from sales where item = ?", (item,)).fetchone():
            continue
        with store.transaction("sales") as transaction:
            transaction.append("sold", item.encode())
            print("noted", item)
            with database:
                database.execute("insert into sales values (?, ?)", (item, transaction.id))
            print("paid", item)
        print("sold", item)
    for message in islice(store.read("sold", follow=True, timeout=30), 10):
        print("delivered", message.text())
