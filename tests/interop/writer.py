"""mqstore in a process of its own, to be killed: ``python -m interop.writer DIR OPTIONS_JSON``.

Reads message specifications, one JSON object a line, appends each, and prints its result as one JSON line. At the end
of its input it waits, with the store open, for the kill.
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
    """Return a specification as arguments of `Store.append`; hosts and the like, which it cannot set, are left out."""
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
    """Append what standard input says."""
    path, options = sys.argv[1], json.loads(sys.argv[2])
    with mqstore.open(path, "rw", **options) as store:
        for line in sys.stdin:
            result = store.append(**append_arguments(json.loads(line)))
            text = json.dumps({name: getattr(result, name) for name in RESULT}) + "\n"
            # One write a line, so that a kill leaves no half line before a later one.
            os.write(1, text.encode())
        signal.pause()


if __name__ == "__main__":
    main()
