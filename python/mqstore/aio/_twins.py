"""Coroutine twins of methods and functions that block, with the same names, parameters and documentation.

A new verb of `mqstore.Store` gets its twin in one line: `verb = in_thread(mqstore.Store.verb)`.
"""

from __future__ import annotations

from functools import cache, partial, wraps
from inspect import getdoc, signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from mqstore.aio._ending import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from mqstore.aio._bridge import Bridge

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class Twin(Protocol):
    """An object with twins, such as a store."""

    @property
    def _bridge(self) -> Bridge:
        """The bridge of its store."""

    @property
    def _own(self) -> Any:
        """The blocking object."""


def in_thread(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Twin, P], Coroutine[Any, Any, T]]:
    """Returns the twin of a method that may wait for the disk or a lock, but not for long."""
    name = method.__name__

    @wraps(method)
    async def twin(self: Twin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self._bridge.run(partial(getattr(self._own, name), *args, **kwargs))
        return found

    return named(twin, method)


def at_length(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Twin, P], Coroutine[Any, Any, T]]:
    """Returns the twin of a long method, which runs in a separate thread pool. If cancelled, one with progress ends."""
    name = method.__name__

    @wraps(method)
    async def twin(self: Twin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = await self._bridge.run_at_length(getattr(self._own, name), *args, **kwargs)
        return found

    return named(twin, method)


def reading(method: Callable[Concatenate[Any, P], T], kind: Callable[[T], R]) -> Callable[Concatenate[Any, P], R]:
    """Returns the twin of a method whose result reads when it is used; the twin returns a `kind` of the result."""
    name = method.__name__

    @wraps(method)
    def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return kind(getattr(self._own, name)(*args, **kwargs))

    return named(twin, method)


def awaitable(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Returns the twin of a function on directories, in a thread of the loop. If cancelled, the function ends."""

    @wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await Ending().run(None, function, *args, **kwargs)

    return named(twin, function)


def like(
    method: Callable[Concatenate[Any, P], object],
) -> Callable[[Callable[..., T]], Callable[Concatenate[Any, P], T]]:
    """Returns a decorator that gives a twin the parameters of `method`.

    The twin's docstring also gets all paragraphs of that of `method` except the first.
    """

    def documented(twin: Callable[..., T]) -> Callable[Concatenate[Any, P], T]:
        own, rest = getdoc(twin), (getdoc(method) or "").partition("\n\n")[2]
        twin.__doc__ = f"{own}\n\n{rest}" if own and rest else own
        # `inspect.signature` follows this.
        vars(twin)["__wrapped__"] = method
        return named(twin, method)

    return documented


# The signature of a native method is parsed from text.
_signature = cache(signature)


def bound_arguments(method: Callable[..., object], args: tuple[Any, ...], given: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call of `method` by name.

    Raises:
        TypeError: the parameters of `method` do not allow the call. The text names the method.
    """
    try:
        arguments = _signature(method).bind(None, *args, **given).arguments
    except TypeError as error:
        raise TypeError(f"{method.__name__}(): {error}") from None
    del arguments["self"]
    return arguments


def named(twin: Callable[P, T], blocking: Callable[..., object]) -> Callable[P, T]:
    """Gives a twin the qualified name of the blocking method or function."""
    twin.__module__ = "mqstore.aio"
    twin.__qualname__ = blocking.__qualname__.removeprefix("Native")
    return twin
