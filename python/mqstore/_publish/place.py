"""A folder or a URL for the objects of an archive or a backup. The native module makes the requests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore._paths import is_url, object_path, shown_url, text_of
from mqstore._publish.target import target_of
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore._publish.target import Target
    from mqstore.types import StorePath


class TargetPlace:
    """The place: `text` as it was given, with the full path of a folder; `shown` without secrets. Makes no request.

    For a URL, `transport` has its requests; for a folder, it is None, and `root` is the folder.
    """

    def __init__(self, place: StorePath, target_options: Mapping[str, Any] | None, action: str) -> None:
        text = text_of(place)
        if not text:
            raise InvalidOptionError("target", "must name a folder or a URL, not be empty")
        if is_url(text):
            self.text = text
            self.shown = shown_url(text)
            self.root = object_path(text, "").rstrip("/") or "/"
        elif target_options is not None:
            raise InvalidOptionError("target_options", f"only for a URL, and {text!r} is a path")
        else:
            self.text = self.shown = self.root = os.path.abspath(text)  # noqa: PTH100 - keeps the text of the path
        self.transport = _transport_of(self.text, target_options, action)

    @property
    def folder(self) -> Path | None:
        """The folder; None for a URL with a transport."""
        return Path(self.root) if self.transport is None else None

    def check_outside(self, home: str) -> None:
        """Makes sure that the place is not in the directory of a store.

        Raises:
            InvalidOptionError: it is.
        """
        if (folder := self.folder) is not None:
            store = Path(home).absolute()
            # A folder of the store can be a link, and a link can lead into it.
            if folder.is_relative_to(store) or folder.resolve().is_relative_to(store.resolve()):
                reason = f"{self.shown} is in the directory of the store, {home}: choose a folder outside of it"
                raise InvalidOptionError("target", reason)


def _transport_of(text: str, options: Mapping[str, Any] | None, action: str) -> Target | None:
    """Returns the transport of a place; None for a folder, which needs none."""
    return target_of(text, options, action) if is_url(text) else None
