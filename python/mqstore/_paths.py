"""Conversion of a path argument to text."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqstore.types import StorePath


def home_of(path: StorePath) -> str:
    """Returns the path of a store as `str`."""
    text = os.fspath(path)
    if not isinstance(text, str):
        msg = f"path must be str or os.PathLike[str], not {type(path).__name__}"
        raise TypeError(msg)
    return text
