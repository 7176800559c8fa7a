"""Names of the objects of an archive, below its folder or URL."""

from __future__ import annotations

import hashlib
import re
import uuid

ROOT = "v1"
"""The folder of this version of the layout."""

MANIFESTS = f"{ROOT}/_manifest/"

_TOPIC = "topic="
# The column `topic` of a partition of Hive hides that of the files, so a folder without the name has another key.
_HASHED = "topic_hash="
_MOST_NAME = 240
_KEPT_NAME = 200
_OTHER = "_bytes"
_MANIFEST = re.compile(rf"{MANIFESTS}([0-9]{{20}})\.json")
_FILE = re.compile(rf"((?:{_TOPIC}|{_HASHED})[A-Za-z0-9_%-]+|{_OTHER})/[0-9]{{20}}-[0-9]{{20}}-[0-9a-f]{{8}}\.parquet")


def file_path(topic: str | None, start: int, end: int) -> str:
    """Returns a new path below `ROOT` for records of a topic between two log offsets; None is for other bytes."""
    folder = _OTHER if topic is None else _folder_of(topic)
    return f"{folder}/{start:020}-{max(start, end - 1):020}-{uuid.uuid4().hex[:8]}.parquet"


def is_file_path(path: object) -> bool:
    """Returns whether a path below `ROOT` is that of a file."""
    return isinstance(path, str) and _FILE.fullmatch(path) is not None


def manifest_path(number: int) -> str:
    """Returns the path of a manifest."""
    return f"{MANIFESTS}{number:020}.json"


def manifest_number(path: str) -> int | None:
    """Returns the number of the manifest with this path; None for any other object."""
    found = _MANIFEST.fullmatch(path)
    return None if found is None else int(found[1])


def _folder_of(topic: str) -> str:
    """Returns the folder of a topic, as Hive and Spark write its name. The column `topic` has the name in any case.

    File systems accept names of 255 bytes; only a very long name with many special characters is longer then.
    """
    found = "".join(one if re.fullmatch(r"[A-Za-z0-9_-]", one) else _percent(one) for one in topic)
    if len(found) <= _MOST_NAME:
        return f"{_TOPIC}{found}"
    return f"{_HASHED}{found[:_KEPT_NAME].rpartition('%')[0]}_{hashlib.sha256(topic.encode()).hexdigest()[:16]}"


def _percent(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())
