"""Iterators that stay failed after an error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Lasting(Iterator[T], Generic[T]):
    """An iterator that raises an error of its source again, each time it is asked.

    A generator ends with its first error. A program that catches the error and continues would take this end for the
    end of the messages.
    """

    def __init__(self, source: Iterator[T]) -> None:
        self._source = source
        self._error: BaseException | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return next(self._source)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """Ends the iteration, and its source if that can be ended."""
        close = getattr(self._source, "close", None)
        self._source = iter(())
        if close is not None:
            close()


class LastingAsync(AsyncIterator[T], Generic[T]):
    """The same for asyncio."""

    def __init__(self, source: AsyncGenerator[T]) -> None:
        self._source = source
        self._error: BaseException | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return await anext(self._source)
        except StopAsyncIteration:
            raise
        except BaseException as error:
            self._error = error
            raise

    async def aclose(self) -> None:
        """Ends the iteration, and its source."""
        await self._source.aclose()
