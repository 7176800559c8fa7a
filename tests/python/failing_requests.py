"""Requests of a target that fail in turn: before or after they are carried out, or at the end of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mqstore._remote.failure import RequestFailure

WAYS = ["lost request", "lost answer", "kill before", "kill after"]


class KilledError(BaseException):
    """The process has ended."""


class Hooked(Protocol):
    """What calls `before` and `after` for each request, with its number and its name."""

    before: Callable[[int, str], None]
    after: Callable[[int, str], None]


def failing(way: str, fails: int) -> Callable[[Hooked], None]:
    """Returns a setup in which one request fails, before or after the server has carried it out."""

    def fail(number: int, name: str) -> None:
        if number == fails and not way.startswith("kill"):
            raise RequestFailure("other", "", f"{name} fails as the test wants")
        if number >= fails and way.startswith("kill"):
            raise KilledError

    def stay_dead(number: int, _name: str) -> None:
        # Nothing that the process would do after its end has an effect.
        if number > fails:
            raise KilledError

    def setup(target: Hooked) -> None:
        if way in ("lost request", "kill before"):
            target.before = fail
        else:
            target.after = fail
        if way == "kill after":
            target.before = stay_dead

    return setup
