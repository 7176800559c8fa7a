"""One export: its source, the request and the rules, and what exports to files and to stores have in common."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mqstore import _native
from mqstore._admin.export.rules import Rules
from mqstore._admin.export.settings import Settings
from mqstore._read.scan import BATCH_ROWS, request_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.partial import Partial
    from mqstore._reports import Progress
    from mqstore.types import DledgerEnd, Filter, Keys, OnDamage, Time

Place: TypeAlias = "tuple[str | _native.RemoteDirectory, DledgerEnd]"
"""Directory or URL, and the last Raft entry that is read."""


def export_request(
    *,
    topics: str | Iterable[str] | None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    keys: Keys | None = None,
    filter: Filter | None = None,
    columns: Iterable[str] | None = None,
    body_matches: str | None = None,
    on_damage: OnDamage = "skip",
) -> dict[str, Any]:
    """Returns the request for the native scan of an export; the arguments are those of `export`."""
    request = request_of(
        topics=topics,
        start_time=start_time,
        end_time=end_time,
        keys=keys,
        filter=filter,
        columns=columns,
        batch_size=BATCH_ROWS,
        body="binary",
        on_damage=on_damage,
        threads=None,
    )
    return {**request, "body_matches": body_matches}


class Export:
    """One export, to files or to a store."""

    def __init__(
        self,
        source: Place,
        dest: Path,
        request: dict[str, Any],
        keep_waiting: bool,
        overwrite: bool,
        progress: Callable[[Progress], object] | None,
        begin: int | None = None,
        *,
        keep_offsets: bool | None = False,
    ) -> None:
        """Creates the export of records from log offset `begin` on; None is from the first one on."""
        self.source = source
        # Names the source in the state of an interrupted export.
        self._place, self._dledger_end = source
        self.named = os.path.realpath(self._place) if isinstance(self._place, str) else self._place.url
        self.dest = dest
        self._request = request
        self._keep_waiting = keep_waiting
        self._overwrite = overwrite
        self._progress = progress
        self._begin = begin
        self._keep_offsets = keep_offsets

    def identity(self, kind: str, rules: Rules) -> str:
        """Returns a digest of the call and of the range of the log that it exports."""
        with closing(_native.scan_open(self.source, self._chosen(rules, None))) as stream:
            whole = [kind, self.named, self._choice(), stream.start, stream.limit]
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=repr).encode()).hexdigest()

    def rules(self, dest: Path) -> Rules:
        """Returns the rules of an export to `dest`."""
        topics, keep = self._request["topics"], self._keep_waiting
        return Rules(dest, topics, keep, lambda: _native.ExportRules(self.source, topics, keep))

    def _chosen(self, rules: Rules, start: int | None) -> dict[str, Any]:
        """Returns the request for the records that the rules decide about."""
        begin = self._begin if start is None else start
        return {**self._request, "topics": rules.get().topics, "from": begin, "to": rules.get().limit}

    def _settings(self) -> Settings:
        return Settings.of(self.source, self._request["topics"])

    def _resume(self, partial: Partial, counts: Counts) -> int | None:
        """Returns the position to resume at."""
        if partial.state is None:
            return None
        counts.resumed = True
        counts.messages = partial.state["messages"]
        counts.reasons = partial.state["reasons"]
        position: int | None = partial.state["position"]
        return position

    def _digest(self, kind: str) -> str:
        whole = [kind, self.named, os.path.realpath(self.dest), self._choice()]
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=repr).encode()).hexdigest()

    def _choice(self) -> dict[str, Any]:
        """Returns the arguments that select the messages and their form."""
        # An export that ended at damage can resume with on_damage="skip".
        shared = {name: value for name, value in self._request.items() if name not in ("threads", "on_damage")}
        mine = {
            "keep_waiting": self._keep_waiting,
            "keep_offsets": self._keep_offsets,
            "begin": self._begin,
            "dledger_end": self._dledger_end,
        }
        return {**shared, **mine}

    def _must_be_free(self, path: Path, *, folder: bool = False) -> None:
        if path.exists() and not Path(f"{path}.partial").exists():
            # An export was killed in its last step.
            _native.remove_export_state(path)
        if folder and path.exists():
            raise FileExistsError(f"{path}: exists already; choose a new folder for the parts")
        if path.is_dir() or (path.exists() and not self._overwrite):
            raise FileExistsError(f"{path}: exists already; pass overwrite=True to replace a file")

    def _tell(self, stream: Any, position: int) -> None:
        self._tell_bytes(position - stream.start, stream.limit - stream.start)

    def _tell_bytes(self, done: int, total: int) -> None:
        if self._progress is not None:
            from mqstore._reports import Progress

            self._progress(Progress(done, total))
