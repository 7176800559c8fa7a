"""The archive of a store for asyncio: the verbs of `mqstore.StoreArchive` as coroutines."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mqstore.aio._bridge import Bridge

P = ParamSpec("P")
T = TypeVar("T")


def _at_length(
    method: Callable[Concatenate[mqstore.StoreArchive, P], T],
) -> Callable[Concatenate[StoreArchive, P], Coroutine[Any, Any, T]]:
    """Returns the twin of a method, which runs in a separate thread pool. If cancelled, a method with progress ends."""

    @wraps(method)
    async def twin(self: StoreArchive, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bridge = self._bridge
        bridge.check()
        return await bridge.run_at_length(method, bridge.store.archive, *args, **kwargs)

    twin.__module__ = "mqstore.aio"
    return twin


class StoreArchive:
    """The archive of an open store, from `mqstore.aio.Store.archive`.

    Works like `mqstore.StoreArchive`, with coroutines.
    """

    def __init__(self, bridge: Bridge) -> None:
        """Wraps the archive of a store. Programs use `Store.archive` instead."""
        self._bridge = bridge

    async def target(self) -> str | None:
        """Returns the folder or URL of the archive; None if the store has none."""
        return await self._bridge.run(lambda: self._bridge.store.archive.target)

    async def archived_to(self) -> int | None:
        """Returns the log offset up to which segments may be deleted; None if the store has no archive."""
        return await self._bridge.run(lambda: self._bridge.store.archive.archived_to)

    configure = _at_length(mqstore.StoreArchive.configure)
    run = _at_length(mqstore.StoreArchive.run)
    run_to = _at_length(mqstore.StoreArchive.run_to)
    files = _at_length(mqstore.StoreArchive.files)
    paths = _at_length(mqstore.StoreArchive.paths)
    verify = _at_length(mqstore.StoreArchive.verify)
    restore = _at_length(mqstore.StoreArchive.restore)


StoreArchive.__module__ = "mqstore.aio"
