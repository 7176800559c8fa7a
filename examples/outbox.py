"""An outbox: a row in a database and the message about it exist together or not at all, also after a crash."""

import sqlite3
import tempfile
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Literal

import mqstore


def sell(database: sqlite3.Connection, transaction: mqstore.Transaction, item: str) -> None:
    transaction.append("sold", item.encode())
    with database:
        database.execute("insert into sales values (?, ?)", (item, transaction.id))


def main(path: Path) -> None:
    file = path / "shop.db"

    def was_sold(pending: mqstore.PendingTransaction) -> Literal["commit", "rollback"]:
        """Decides about a transaction that a dead program left: it commits if the row exists."""
        with closing(sqlite3.connect(file)) as own:
            row = own.execute("select 1 from sales where transaction_id = ?", (pending.id,)).fetchone()
        return "commit" if row else "rollback"

    with mqstore.open(path / "store", "create") as store, closing(sqlite3.connect(file)) as database:
        database.execute("create table sales (item text unique, transaction_id text primary key)")
        for item in ("a lamp", "a chair", "a lamp"):
            try:
                with store.transaction("sales") as transaction:
                    sell(database, transaction, item)
            except sqlite3.IntegrityError:
                print("rolled back, because it was sold before:", item)
        # A program that dies between the two commits leaves the row and a pending transaction, as this call does.
        sell(database, store.transaction("sales"), "a table")

    with mqstore.open(path / "store", "rw") as store, closing(sqlite3.connect(file)) as database:
        print("messages:", [message.text() for message in store.read("sold")])
        print("pending transactions:", len(store.pending_transactions()))
        store.check_transactions(was_sold, "sales", check_after=0)
        messages = islice(store.read("sold", follow=True, timeout=20), 3)
        print("messages:", [message.text() for message in messages])
        print("rows:    ", [item for (item,) in database.execute("select item from sales order by rowid")])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
