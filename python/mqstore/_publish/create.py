"""Creation of an object that must not exist: the step that publishes a result or a state of an archive.

If a request fails, it may still have been carried out, or be carried out later. So the object is read then. It is that
of this request, that of another one, or missing; in the last case the request may still come.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mqstore._remote.failure import RequestFailure
from mqstore.errors import RemoteStoreError

if TYPE_CHECKING:
    from mqstore._publish.target import Target

# Seconds between two requests that conflict with requests in progress.
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1, 2, 4)

# Requests that create an object that exists.
_PROBES = 3


class WriteRefused(RequestFailure):
    """The server refused the request, so it has no effect."""


def create(target: Target, path: str, content: bytes) -> bytes | None:
    """Creates an object. Returns None; or the content of the object that exists.

    Raises:
        WriteRefused: the access was denied.
        RequestFailure: the request failed, and the object may appear later.
    """
    for pause in (*_PAUSES, None):
        failure: RequestFailure | None = None
        try:
            if target.put_if_absent(path, content):
                return None
        except RequestFailure as error:
            if error.cause == "denied":
                raise WriteRefused(error.cause, error.path, error.reason) from None
            failure = error
        try:
            found = target.get(path)
        except RequestFailure as error:
            raise failure or error from None
        if found is not None:
            if failure is not None:
                # The request can have ended before the name was durable.
                target.settle(path[: path.rindex("/") + 1])
            return found
        if failure is not None:
            raise failure
        if pause is not None:
            # A server can refuse a request because another one for the same object has not ended yet.
            time.sleep(pause)
    raise RequestFailure("other", path, "another request for the object does not end: try again")


def probe(target: Target, path: str, action: str) -> None:
    """Makes sure that the second of two equal requests for `path` fails. An old server overwrites the object instead.

    Raises:
        RemoteStoreError: the server ignores the condition.
        RequestFailure: a request failed.
    """
    target.put_if_absent(path, b"probe")
    for _ in range(_PROBES):
        # A `clean` can remove the object before the second request, which then creates it again.
        if not target.put_if_absent(path, b"probe"):
            return
    reason = "the server overwrites an object that a request creates only if it is absent (If-None-Match)"
    raise RemoteStoreError(target.shown, action, f"{reason}; use another server")
