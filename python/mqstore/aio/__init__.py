"""`mqstore` for asyncio: the same names, as coroutines.

::

    import asyncio
    import mqstore.aio

    async def main() -> None:
        async with mqstore.aio.open("data", mode="create") as store:
            await store.append("orders", b"hello", keys=["A-1"], durable=True)
            async for message in store.read("orders", follow=True, timeout=1):
                print(message.queue_offset, message.body)

    asyncio.run(main())

A store belongs to the event loop that opened it. A program with several loops opens a store for writing in one of them;
the others can open it for reading. Waiting tasks need no thread, in any number. An import starts neither thread nor
loop.
"""

from __future__ import annotations

from mqstore.aio._archive import StoreArchive
from mqstore.aio._consumer import Consumer
from mqstore.aio._logic import LogicMessages, LogicQueues, open_logic_queues
from mqstore.aio._reads import Messages
from mqstore.aio._scan import Scan, scan
from mqstore.aio._store import Store, open, wrap  # noqa: A004 - the name that gzip, dbm and shelve use
from mqstore.aio._table import Table
from mqstore.aio._transaction import Transaction
from mqstore.aio._verbs import (
    clean,
    compact,
    copy_topic,
    export,
    fetch,
    import_,
    info,
    published,
    rebuild,
    repair,
    restore_compaction,
    verify,
)
from mqstore.aio._work_queue import WorkQueue

__all__ = [
    "Consumer", "LogicMessages", "LogicQueues", "Messages", "Scan", "Store", "StoreArchive", "Table", "Transaction",
    "WorkQueue", "clean", "compact", "copy_topic", "export", "fetch", "import_", "info", "open", "open_logic_queues",
    "published", "rebuild", "repair", "restore_compaction", "scan", "verify", "wrap",
]  # fmt: skip
