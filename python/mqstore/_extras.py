"""Optional libraries, imported when a function needs them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mqstore.errors import MissingPackageError


def module(name: str, extra: str | None = None) -> Any:
    """Returns the module `name`; `extra` of mqstore installs it, else the package of this name.

    Raises:
        MissingPackageError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        # A missing parent package of `name` counts too.
        if not f"{name}.".startswith(f"{error.name}."):
            raise
        package = name.partition(".")[0]
        raise MissingPackageError(package, f"mqstore[{extra}]" if extra else package) from None


def pyarrow() -> Any:
    """Returns pyarrow.

    Raises:
        MissingPackageError: it is not installed.
    """
    return module("pyarrow", "arrow")
