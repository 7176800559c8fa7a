"""Errors for wrong calls: a walk over all public callables; no text contains a name that only the sources have."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
import mqstore.aio
import mqstore.metrics
from conftest import SMALL
from mqstore import testing

if TYPE_CHECKING:
    from pathlib import Path

INTERNAL = re.compile(
    r"Native[A-Z]|Loop[A-Z]|Making|Delivering|\bPy[A-Z]|_mqstore|_native|<locals>|\btwin\b|\bi32\b|\bu32\b|\bi64\b|\bu64\b|\busize\b"
    r"|(?<![\w.])_\w+|\b(request|options_json|request_of|opened|in_thread|wrapper)\("
)

FUNCTIONS = [
    *(getattr(mqstore, name) for name in mqstore.__all__ if inspect.isfunction(getattr(mqstore, name))),
    *(getattr(mqstore.aio, name) for name in mqstore.aio.__all__ if inspect.isfunction(getattr(mqstore.aio, name))),
    *(getattr(testing, name) for name in testing.__all__ if inspect.isfunction(getattr(testing, name))),
    mqstore.Message,
    mqstore.StoreOptions,
    mqstore.BrokerOptions,
    mqstore.StoreOptions.from_broker_conf,
    testing.ManualClock,
    mqstore.metrics.observe,
]


class Thing:
    """An argument of a type that no parameter takes."""


def calls(function: Callable[..., object]) -> Iterator[Callable[[], object]]:
    """Wrong calls of a function: no arguments, a wrong name, wrong types."""
    needed = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if needed:
        yield function
    yield lambda: function(*("x" for _ in needed), no_such_name=1)
    for wrong in (Thing(), 1.5, None):
        if needed:
            yield lambda wrong=wrong: function(*(wrong for _ in needed))
    named = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.default is not each.empty and each.name != "progress"
    ]
    for name in named:
        # A call without an error must not wait.
        limit = {"timeout": 0} if "timeout" in named and name != "timeout" else {}
        yield lambda name=name, limit=limit: function(*("x" for _ in needed), **{name: Thing()}, **limit)


def texts(function: Callable[..., object], loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """The errors of the wrong calls. A call that has no error does no harm."""
    for call in calls(function):
        try:
            found = call()
            if inspect.isawaitable(found):
                loop.run_until_complete(asyncio.wait_for(_result(found), 30))
            elif inspect.isasyncgen(found) or isinstance(found, mqstore.aio.Messages):
                loop.run_until_complete(asyncio.wait_for(anext(aiter(found)), 30))
            elif isinstance(found, Iterator):
                next(found)
        except (StopIteration, StopAsyncIteration):
            continue
        except Exception as error:
            yield str(error)


async def _result(found: Any) -> object:
    result = await found
    if hasattr(result, "close"):
        with contextlib.suppress(TypeError):
            await result.close()
    return result


def verbs(thing: object) -> list[Callable[..., object]]:
    kinds = [(name, getattr(type(thing), name)) for name in dir(type(thing)) if not name.startswith("_")]
    names = [name for name, kind in kinds if callable(kind)]
    # Calls that end the thing come last.
    return [getattr(thing, name) for name in sorted(names, key=lambda name: name in ("close", "shutdown"))]


def check(functions: list[Callable[..., object]]) -> None:
    loop = asyncio.new_event_loop()
    try:
        found = [(function.__qualname__, text) for function in functions for text in texts(function, loop)]
    finally:
        loop.close()
    assert found
    assert [(name, text) for name, text in found if INTERNAL.search(text)] == []


def test_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check(FUNCTIONS)


@pytest.mark.parametrize("kind", ["store", "reader", "consumer", "queue", "transaction", "table", "scan"])
def test_methods(home: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.parent)
    with mqstore.open(home, "create", options=SMALL) as store, mqstore.open(home) as reader:
        store.append("t", b"x", keys="k")
        things = {
            "store": lambda: store,
            "reader": lambda: reader,
            "consumer": lambda: store.consumer("g", "t"),
            "queue": lambda: store.work_queue("jobs"),
            "transaction": store.transaction,
            "table": lambda: store.table("t"),
            "scan": store.scan,
        }
        check(verbs(things[kind]()))


@pytest.mark.parametrize("kind", ["store", "consumer", "queue", "transaction", "table"])
def test_methods_for_event_loops(home: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home.parent)
    loop = asyncio.new_event_loop()

    async def thing(store: mqstore.aio.Store) -> object:
        await store.append("t", b"x", keys="k")
        if kind == "consumer":
            return await store.consumer("g", "t")
        if kind == "queue":
            return await store.work_queue("jobs")
        if kind == "table":
            return await store.table("t")
        return store.transaction() if kind == "transaction" else store

    async def opened() -> mqstore.aio.Store:
        return await mqstore.aio.open(home, "create", options=SMALL)

    store = loop.run_until_complete(opened())
    try:
        found = [
            (verb.__qualname__, text)
            for verb in verbs(loop.run_until_complete(thing(store)))
            for text in texts(verb, loop)
        ]
        assert found
        assert [(name, text) for name, text in found if INTERNAL.search(text)] == []
    finally:
        loop.run_until_complete(store.close())
        loop.close()
