"""Manifests of archives, decoded and encoded by other code than that of the package."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def encoded(values: dict[str, Any]) -> bytes:
    """Returns the content of a manifest with these members."""
    members = {name: value for name, value in values.items() if name != "checksum"}
    checksum = hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()
    return json.dumps({**members, "checksum": checksum}, separators=(",", ":")).encode() + b"\n"
