"""Optional libraries, imported when a function needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def module(name: str, extra: str | None = None) -> Any:
    """Returns the module `name`, or raises an ImportError with the package to install."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # A missing parent package of `name` counts too.
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        what = f'"mqstore[{extra}]"' if extra else name
        msg = f"{name} is not installed: run pip install {what}"
        raise ImportError(msg, name=name) from None


def pyarrow() -> Any:
    """Returns pyarrow, or raises an ImportError with the package to install."""
    return module("pyarrow", "arrow")
