"""Coroutine twins of methods and functions that need a thread, with the same names, parameters and documentation.

A new verb of `mqstore.Store` gets its twin in one line: `verb = in_thread(mqstore.Store.verb)`.
"""

from __future__ import annotations

from functools import partial, wraps
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from mqstore.aio._ending import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import mqstore
    from mqstore.aio._bridge import Bridge

P = ParamSpec("P")
T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., object]")


class Bridged(Protocol):
    """An object with twins, such as a store: it has a bridge."""

    _bridge: Bridge


def in_thread(
    method: Callable[Concatenate[mqstore.Store, P], T],
) -> Callable[Concatenate[Bridged, P], Coroutine[Any, Any, T]]:
    """Returns the twin of a method that may wait for the disk or a lock, but not for long."""

    @wraps(method)
    async def twin(self: Bridged, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bridge = self._bridge
        return await bridge.run(partial(_own(bridge, method), *args, **kwargs))

    return named(twin, method.__name__)


def at_length(
    method: Callable[Concatenate[mqstore.Store, P], T],
) -> Callable[Concatenate[Bridged, P], Coroutine[Any, Any, T]]:
    """Returns the twin of a long method, which runs in a separate thread pool. If cancelled, the method ends."""

    @wraps(method)
    async def twin(self: Bridged, /, *args: P.args, **kwargs: P.kwargs) -> T:
        bridge = self._bridge
        return await bridge.run_at_length(_own(bridge, method), *args, **kwargs)

    return named(twin, method.__name__)


def _own(bridge: Bridge, method: Callable[Concatenate[mqstore.Store, P], T]) -> Callable[P, T]:
    """Returns the method of the store of this name: a store with an archive has its own."""
    found: Callable[P, T] = getattr(bridge.store, method.__name__)
    return found


def awaitable(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Returns the twin of a function on directories, in a thread of the loop. If cancelled, the function ends."""

    @wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await Ending().run(None, function, *args, **kwargs)

    twin.__module__ = "mqstore.aio"
    return twin


def named(twin: Callable[P, T], name: str) -> Callable[P, T]:
    """Gives a twin the name of the method `name` of `mqstore.aio.Store`."""
    twin.__module__ = "mqstore.aio"
    twin.__qualname__ = f"Store.{name}"
    return twin


def like(method: Callable[..., object]) -> Callable[[F], F]:
    """Returns a decorator that adds all paragraphs of `method`'s docstring except the first to that of a twin."""

    def documented(twin: F) -> F:
        own, rest = getdoc(twin), (getdoc(method) or "").partition("\n\n")[2]
        twin.__doc__ = f"{own}\n\n{rest}" if own and rest else own
        return twin

    return documented
