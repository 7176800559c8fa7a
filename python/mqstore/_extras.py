"""Libraries that the core does without, imported where something needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def module(name: str, extra: str | None = None) -> Any:
    """The module `name`, or an ImportError that says what to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # What is missing may also be a package that holds it.
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        what = f'"mqstore[{extra}]"' if extra else name
        msg = f"this needs {name}: pip install {what}"
        raise ImportError(msg, name=name) from None


def pyarrow() -> Any:
    """pyarrow, or an ImportError that says what to install."""
    return module("pyarrow", "arrow")
