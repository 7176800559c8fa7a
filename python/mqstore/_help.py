"""Help for the options of a store: the texts and the defaults that `help` shows for `open` and `StoreOptions`.

The texts are those of `StoreOptionsDict`. The class `StoreOptions` is imported only if a default is shown, because its
import takes long.
"""

from __future__ import annotations

import inspect
import sys
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore.types import StoreOptionsDict

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._options import StoreOptions

T = TypeVar("T", bound="type[Any] | Callable[..., object]")


class _Default:
    """The default of an option in a signature: its value in `options`, or in those of a store."""

    __slots__ = ("_option", "_options")

    def __init__(self, option: str, options: StoreOptions | None) -> None:
        self._option = option
        self._options = options

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Default):
            return NotImplemented
        return (self._option, self._options) == (other._option, other._options)

    def __hash__(self) -> int:
        return hash(self._option)

    def __repr__(self) -> str:
        value = getattr(self._options or sys.modules["mqstore"].StoreOptions(), self._option)
        return f"{type(value).__name__}()" if hasattr(value, "__dataclass_fields__") else repr(value)


def describes_options(thing: T) -> T:
    """Adds the description of each option to a docstring."""
    options = inspect.cleandoc(StoreOptionsDict.__doc__ or "").partition("\nArgs:\n")[2]
    if thing.__doc__ and options:
        thing.__doc__ = f"{inspect.cleandoc(thing.__doc__)}\n\nOptions:\n{options}\n"
    return thing


def lists_options(function: T, defaults: StoreOptions | None = None) -> T:
    """Gives a function with `**overrides` a signature and a docstring with each option of a store."""
    signature = inspect.signature(function)
    *others, overrides = signature.parameters.values()
    assert overrides.kind is overrides.VAR_KEYWORD
    options = [
        inspect.Parameter(
            name, overrides.KEYWORD_ONLY, default=_Default(name, defaults), annotation=kind.__forward_arg__
        )
        for name, kind in StoreOptionsDict.__annotations__.items()
    ]
    vars(function)["__signature__"] = signature.replace(parameters=[*others, *options])
    return describes_options(function)
