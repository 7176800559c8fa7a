"""The dicts of messages and of results of appends, for JSON: `to_dict` and the command line use the same functions.

The import of the package imports this module, which gives the native classes their method `to_dict`.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import TYPE_CHECKING, Any, Literal

from mqstore import _native
from mqstore._native import AppendResult, StoredMessage

if TYPE_CHECKING:
    from mqstore._native import NativeStore

BodyForm = Literal["auto", "base64", "text", "none"]
"""Form of a body. `"auto"` is text if the body is UTF-8, else base64."""

RESULT = (
    "topic", "queue_id", "queue_offset", "commit_log_offset", "size", "message_id", "unique_id", "store_timestamp",
    "durable",
)  # fmt: skip
"""Members of the dict of an `AppendResult`, in order."""

# Members of the dict of a message before the body, in order.
_FIELDS = (
    "topic", "queue_id", "queue_offset", "commit_log_offset", "size", "message_id", "unique_id", "keys", "tags",
    "properties", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times",
    "prepared_transaction_offset", "body_crc",
)  # fmt: skip


def result_dict(self: AppendResult) -> dict[str, Any]:
    """Returns the position and the ids as a dict for JSON, the same as `mqstore append --format json` prints."""
    return {name: getattr(self, name) for name in RESULT}


def stored_message_dict(self: StoredMessage) -> dict[str, Any]:
    """Returns the message as a dict for JSON, the same as `mqstore cat --format json` prints.

    Members without a value are None, and `keys` is a list. The body is decompressed: `body_text` if it is UTF-8,
    else `body_base64`. If the body cannot be decompressed, `body_base64` has the stored bytes and `body_error` the
    reason. In a record of a delay level, `system` has the time by RocketMQ's levels.
    """
    return message_dict(self)


def message_dict(message: StoredMessage, body: BodyForm = "auto", store: NativeStore | None = None) -> dict[str, Any]:
    """Returns a message as a dict for JSON; every name is present, None if it has no value.

    The body is decompressed. If that fails, the dict has the stored bytes and `body_error`. A record of a broker's pop
    gets `pop`. A record of delays or transactions gets `system`, with the delay levels of `store`, or RocketMQ's if
    `store` is None.
    """
    found: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS}
    found["keys"] = list(message.keys)
    error = None
    try:
        content: bytes = message.body
    except ValueError as failure:
        content, error = bytes(message.body_view), str(failure)
    found["body_size"] = len(content)
    # A body that could not be decompressed is no text of the sender, even if its bytes are UTF-8 by chance.
    is_base64 = error is not None or not is_text(content) if body == "auto" else body == "base64"
    if is_base64:
        found["body_base64"] = b2a_base64(content, newline=False).decode("ascii")
    elif body != "none":
        found["body_text"] = content.decode("utf-8", "replace")
    if error is not None:
        found["body_error"] = error
    if (popped := _native.pop_record(message)) is not None:
        found["pop"] = popped
    if (waiting := _native.waiting_record(message, store)) is not None:
        found["system"] = waiting
    return found


def is_text(content: bytes) -> bool:
    """Returns whether a body is UTF-8."""
    try:
        content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


# The stub declares these methods.
AppendResult.to_dict = result_dict  # type: ignore[method-assign]
StoredMessage.to_dict = stored_message_dict  # type: ignore[method-assign]
