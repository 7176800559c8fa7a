"""Log records of the logger `mqstore` for the events of retention, next to the hook `on_event`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._options import StoreOptions
    from mqstore._reports import StoreEvent

_log = logging.getLogger("mqstore")

_WARNINGS = frozenset({"appends_refused"})
_LOGGED = _WARNINGS | {"segment_deleted", "segment_kept", "queue_file_deleted", "index_file_deleted", "appends_resumed"}


def logged(options: StoreOptions) -> Callable[[StoreEvent], object] | None:
    """Returns the hook `on_event` of `options`, with a log record before each call.

    Without a hook and a retention nothing is deleted, and the result is None: a store calls no Python code then.
    """
    hook = options.on_event
    if hook is None and options.retention is None and options.retention_bytes is None:
        return None

    def on_event(event: StoreEvent) -> None:
        if event.kind in _LOGGED:
            _record(event)
        if hook is not None:
            hook(event)

    return on_event


def _record(event: StoreEvent) -> None:
    file = event.file
    loses = file is not None and file.unfinished
    level = logging.WARNING if loses or event.kind in _WARNINGS else logging.INFO
    what = event.kind.replace("_", " ")
    if file is None:
        _log.log(level, "%s: %s", what, event.detail)
    else:
        _log.log(level, "%s: %s (%d bytes): %s", what, file.path, file.bytes, event.detail)
