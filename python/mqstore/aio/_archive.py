"""The archive of a store for asyncio: the verbs of `mqstore.StoreArchive` as coroutines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mqstore
from mqstore.aio._twins import at_length

if TYPE_CHECKING:
    from mqstore.aio._bridge import Bridge


class StoreArchive:
    """The archive of an open store, from `mqstore.aio.Store.archive`.

    Works like `mqstore.StoreArchive`, with coroutines.
    """

    def __init__(self, bridge: Bridge) -> None:
        """Wraps the archive of a store. Programs use `Store.archive` instead."""
        self._bridge = bridge

    @property
    def _own(self) -> mqstore.StoreArchive:
        self._bridge.check()
        return self._bridge.store.archive

    async def target(self) -> str | None:
        """Returns the folder or URL of the archive; None if the store has none."""
        archive = self._own
        return await self._bridge.run(lambda: archive.target)

    async def archived_to(self) -> int | None:
        """Returns the log offset up to which segments may be deleted; None if the store has no archive."""
        archive = self._own
        return await self._bridge.run(lambda: archive.archived_to)

    configure = at_length(mqstore.StoreArchive.configure)
    run = at_length(mqstore.StoreArchive.run)
    run_to = at_length(mqstore.StoreArchive.run_to)
    files = at_length(mqstore.StoreArchive.files)
    paths = at_length(mqstore.StoreArchive.paths)
    verify = at_length(mqstore.StoreArchive.verify)
    restore = at_length(mqstore.StoreArchive.restore)


StoreArchive.__module__ = "mqstore.aio"
