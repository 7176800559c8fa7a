"""mqstore in a separate process that a test kills: ``python -m interop.writer DIR OPTIONS_JSON``.

Reads message specifications, one JSON object on each line, appends each, and prints its result as one JSON line. At the
end of its input, it keeps the store open and waits for the kill.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import mqstore

from .java_rows import Spec, body_of

RESULT = ("topic", "queue_id", "queue_offset", "commit_log_offset", "size", "message_id", "store_timestamp")


def append_arguments(spec: Spec) -> dict[str, Any]:
    """Return a specification as arguments of `Store.append`, without hosts and other fields that it cannot set."""
    properties = dict(spec.get("properties", {}))
    return {
        "topic": spec["topic"],
        "body": body_of(spec),
        "keys": properties.pop("KEYS", "").split(),
        "tags": properties.pop("TAGS", None),
        "properties": properties,
        "queue_id": spec.get("queue_id", 0),
        "flag": spec.get("flag", 0),
        "born_timestamp": spec.get("born_timestamp"),
    }


def main() -> None:
    """Append the messages of standard input."""
    path, options = sys.argv[1], json.loads(sys.argv[2])
    with mqstore.open(path, "rw", **options) as store:
        for line in sys.stdin:
            result = store.append(**append_arguments(json.loads(line)))
            text = json.dumps({name: getattr(result, name) for name in RESULT}) + "\n"
            # One write for each line, so that a kill leaves at most the last line incomplete.
            os.write(1, text.encode())
        signal.pause()


if __name__ == "__main__":
    main()
