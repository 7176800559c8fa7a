"""The options of an open, and the source of each value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _broker_conf
from mqstore._reports import _Report

if TYPE_CHECKING:
    from pathlib import Path

# Functions have no text form; the fields of `advanced` are listed one by one.
_NO_SETTINGS = ("on_event", "before_delete", "advanced")


@dataclass(frozen=True, slots=True)
class Shown(_Report):
    """An option and its value."""

    option: str
    value: Any
    source: str
    """Source of the value: `"default"`, `"directory"`, `"conf"`, or `"conf default"` for RocketMQ's default of a
    setting that the file omits."""
    setting: str | None
    """Setting of the file that set the value."""
    rocketmq: tuple[str, ...]
    """RocketMQ's names of the option."""


def options(directory: str | None, conf: Path | None) -> list[Shown]:
    """Returns every option of an open of `directory` with the broker's file `conf`."""
    found = [] if conf is None else _broker_conf.read(_broker_conf.parse_file(conf))
    said = {one.option: one for one in found}
    there = {} if directory is None else _geometry(directory)
    chosen = mqstore.StoreOptions._from_settings(found)
    shown = []
    for name, in_force in _named_values(chosen):
        value, source, setting = in_force, "default", None
        # The file lengths of a directory always win.
        if name in there:
            value, source = there[name], "directory"
        elif name in said:
            setting = said[name].name
            source = "conf default" if setting is None else "conf"
        shown.append(Shown(name, value, source, setting, _broker_conf.names_of(name)))
    return shown


def notes(conf: Path) -> list[str]:
    """Returns notes about settings of the file: nearly the name of one that is read, and those without an effect."""
    given = _broker_conf.parse_file(conf)
    unused = set(given) & set(_broker_conf.UNUSED)
    others = set(given) - unused - {name for setting in _broker_conf.SETTINGS for name in setting.names}
    lists = {"not used by a store": others, "accepted but not used": unused}
    return _broker_conf.misspelled(given) + [
        f"{what}: {', '.join(sorted(names))}" for what, names in lists.items() if names
    ]


def _named_values(chosen: mqstore.StoreOptions) -> list[tuple[str, Any]]:
    """Returns the options by name, those of `BrokerOptions` last."""
    own = [(one.name, getattr(chosen, one.name)) for one in fields(chosen) if one.name not in _NO_SETTINGS]
    return own + [(one.name, getattr(chosen.advanced, one.name)) for one in fields(chosen.advanced)]


def _geometry(directory: str) -> dict[str, int]:
    found = mqstore.info(directory)
    sizes = {
        "segment_size": found.segment_size or None,
        "queue_file_entries": None if found.queue_file_size is None else found.queue_file_size // 20,
        "index_slots": found.index_slots,
        "index_entries": found.index_entries,
    }
    return {name: size for name, size in sizes.items() if size is not None}
