"""What a process decides about a store that it shares: its options, and their agreement with those of the owner.

The options of the store travel as JSON from one owner to the next. Functions of the program stay in their process.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._options import BrokerOptions, StoreOptions, native_form, shown
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqstore._reports import ExpiredFile

# Functions of the program, by the name of their option.
_FUNCTIONS = ("on_event", "before_delete", "archive_look")
# The entry that says that an owner had a function `before_delete`.
_ASKS = "before_delete"


def is_shared(directory: str) -> bool:
    """Returns whether a process has the store open with mode `"share"`."""
    holder = _native.lock_holder(directory)
    return holder is not None and holder[1]


def named_options(options: StoreOptions | None, overrides: Iterable[str]) -> set[str]:
    """Returns the names of the options that a program gave: all `overrides`, and what `options` changes."""
    named = set(overrides)
    given: list[StoreOptions | BrokerOptions] = [] if options is None else [options, options.advanced]
    for group in given:
        plain = type(group)()
        named |= {one.name for one in fields(group) if getattr(group, one.name) != getattr(plain, one.name)}
    return named - {"advanced", *_FUNCTIONS}


class Program:
    """The options of one open of a shared store. The native module calls its methods, from any thread."""

    def __init__(self, form: dict[str, Any], named: set[str], path: str) -> None:
        """Takes the native form of all options, and the names of those that the program gave."""
        self._form = form
        self._named = named
        self._path = path

    def options(self, last: str | None) -> tuple[dict[str, Any], str]:
        """Returns the native form of the options of an owner, and their text for the others.

        `last` is the text of the last owner, whose options stay.
        """
        values = self._values() if last is None else json.loads(last)
        had_function = bool(values.pop(_ASKS, False))
        functions = {name: self._form.get(name) for name in _FUNCTIONS}
        if had_function and functions[_ASKS] is None:
            functions[_ASKS] = self._keep
        text = json.dumps(values | {_ASKS: had_function or self._form.get(_ASKS) is not None})
        return values | functions, text

    def agree(self, owner: str) -> None:
        """Compares the options that the program gave with those of the owner.

        Raises:
            InvalidOptionError: one of them differs.
        """
        theirs, ours = json.loads(owner), self._values()
        for name in sorted(self._named & ours.keys()):
            if name in theirs and theirs[name] != ours[name]:
                reason = (
                    f"the processes that share {self._path} use {shown(name, theirs[name])}, and this open asks for "
                    f"{shown(name, ours[name])}: give the same value everywhere, or none here"
                )
                raise InvalidOptionError(name, reason)
        if self._form.get(_ASKS) is not None and not theirs.get(_ASKS):
            reason = (
                f"the owner of {self._path} has no such function and deletes segments without asking: give it to the "
                "process that opens the store first"
            )
            raise InvalidOptionError(_ASKS, reason)

    def _values(self) -> dict[str, Any]:
        plain = {name: value for name, value in self._form.items() if name not in _FUNCTIONS}
        found: dict[str, Any] = json.loads(json.dumps(plain, default=str))
        return found

    def _keep(self, _file: ExpiredFile) -> bool:
        """Keeps all segments: the process whose `before_delete` decides is gone."""
        import logging

        text = "%s: segments stay, because no process with the function before_delete is the owner"
        logging.getLogger("mqstore").warning(text, self._path)
        return False


def share_form(options: StoreOptions, named: set[str], path: str, form: dict[str, Any]) -> Program:
    """Returns the program of an open; `form` has the functions besides the options."""
    return Program(native_form(options) | form, named, path)
