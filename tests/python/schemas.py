"""A JSON Schema of the JSON that the command line prints, made from the classes of the results.

`python tests/python/schemas.py` prints `docs/schema.json`. `$defs` has the output of each verb with `--format json`,
and one `message`. `--format jsonl` prints the same objects, one on each line; of a list, it prints the elements.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
import typing
from dataclasses import fields, is_dataclass
from typing import Any

from mqstore import _reports
from mqstore._admin import info as _info
from mqstore._dicts import RESULT
from mqstore._read import logic as _logic
from mqstore._reports import archive, backup, base, compaction, copies, damage, published, retention, store
from mqstore.cli import bench, groups, jobs, progress, write
from mqstore.cli import logic as logic_verbs
from mqstore.cli.info import hours, processes, settings
from mqstore.cli.info import topics as topic_verbs

REPORTS: dict[str, type] = {
    "info": _info.StoreInfo,
    "verify": _reports.VerifyReport,
    "repair": _reports.RepairReport,
    "rebuild": _reports.RebuildReport,
    "expire": _reports.ExpireReport,
    "compact": _reports.CompactionReport,
    "snapshot": _reports.SnapshotReport,
    "stats": _reports.StoreStats,
    "export": _reports.ExportReport,
    "archive": _reports.ArchiveReport,
    "archive-verify": _reports.ArchiveVerifyReport,
    "archive-restore": _reports.ArchiveRestoreReport,
    "archive-clean": _reports.CleanReport,
    "backup": _reports.BackupReport,
    "backup-verify": _reports.BackupVerifyReport,
    "backup-restore": _reports.BackupRestoreReport,
    "backup-clean": _reports.CleanReport,
    "published": _reports.PublishedResult,
    "fetch": _reports.FetchReport,
    "clean": _reports.CleanReport,
    "import": _reports.ImportReport,
    "copy-topic": _reports.TopicCopyReport,
    "topic delete": write.DeletedTopic,
    "reclaim": _reports.ReclaimReport,
    "dead-letter delete": jobs.DeadLettersEnded,
    "dead-letter redrive": jobs.DeadLettersEnded,
    "ps": processes.Processes,
    "logic-queue list": logic_verbs.LogicTopics,
    "logic-queue export": logic_verbs.LogicExport,
}
LISTS: dict[str, type] = {
    "archive-files": _reports.ArchiveFile,
    "backup-files": _reports.BackupState,
    "bench": bench.Line,
    "config show": settings.Shown,
    "group lag": progress.GroupTopicLag,
    "group lag --queues": progress.GroupLag,
    "group reset": groups.OffsetReset,
    "jobs": jobs.WorkQueueJobs,
    "logic-queue lag": progress.GroupLag,
    "retention": _reports.TopicRetention,
    "topics": topic_verbs.TopicSummary,
    "topics --hours": hours.HourMessages,
}
_REPORT_MODULES = (archive, backup, base, store, retention, damage, copies, compaction, published)
_VERB_MODULES = (
    _info,
    _logic,
    bench,
    groups,
    hours,
    jobs,
    logic_verbs,
    processes,
    progress,
    settings,
    topic_verbs,
    write,
)
_MODULES = (*_REPORT_MODULES, *_VERB_MODULES)
_TREES = {module: ast.parse(inspect.getsource(module)) for module in _MODULES}
_NAMES = {name: value for module in _MODULES for name, value in vars(module).items()}
SIMPLE = {int: "integer", str: "string", bool: "boolean", float: "number"}
MESSAGES = ("cat", "tail", "get", "lookup", "last", "dead-letter list", "dead-letter show")


def page() -> str:
    """The content of `docs/schema.json`."""
    found: dict[str, Any] = {name: _object(kind) for name, kind in REPORTS.items()}
    found |= {name: {"type": "array", "items": _object(kind)} for name, kind in LISTS.items()}
    found["topics --queues"] = {"type": "array", "items": _topic()}
    found |= {name: _topic() for name in ("topic create", "topic alter")}
    found["append"] = {"type": "array", "items": _result()}
    found |= {name: {"type": "array", "items": {"$ref": "#/$defs/message"}} for name in MESSAGES}
    found["message"] = _message()
    found["logic-queue cat"] = {"type": "array", "items": _logic_message()}
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What mqstore prints with --format json, by verb",
        "$defs": dict(sorted(found.items())),
    }
    return json.dumps(document, indent=1) + "\n"


def _object(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind, _NAMES)
    told = _field_docs(kind)
    properties = {}
    for field in fields(kind):
        described = {"description": told[field.name]} if field.name in told else {}
        properties[field.name] = _type(hints[field.name]) | described
    text = (inspect.getdoc(kind) or "").partition("\n")[0]
    return {"type": "object", "description": text, "properties": properties, "required": list(properties)}


def _type(hint: Any) -> dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in SIMPLE:
        return {"type": SIMPLE[hint]}
    if hint is Any:
        return {}
    if origin is types.UnionType or origin is typing.Union:
        return {"anyOf": [{"type": "null"} if one is type(None) else _type(one) for one in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _type(arguments[0])}
    if origin is dict or (origin is not None and "Mapping" in str(origin)):
        return {"type": "object", "additionalProperties": _type(arguments[1])}
    if is_dataclass(hint):
        return _object(hint)
    message = f"no schema for {hint!r}"
    raise TypeError(message)


def _field_docs(kind: type) -> dict[str, str]:
    """The docstring of each field, also of those that are inherited."""
    found, names = {}, {one.__name__ for one in kind.__mro__}
    for tree in (_TREES[module] for module in _MODULES):
        for one in tree.body:
            if isinstance(one, ast.ClassDef) and one.name in names:
                found |= _texts(one)
    return found


def _texts(tree: ast.ClassDef) -> dict[str, str]:
    found = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _topic() -> dict[str, Any]:
    queues = {"type": "array", "items": _object(_reports.QueueInfo)}
    return {
        "type": "object",
        "properties": {
            "topic": {"type": "string"},
            "queues": queues,
            "expire_after_seconds": {
                "type": ["number", "null"],
                "description": "Time after which a value of the table expires; null if values do not expire.",
            },
        },
        "required": ["topic", "queues", "expire_after_seconds"],
    }


def _result() -> dict[str, Any]:
    texts, switches = ("topic", "message_id", "unique_id"), ("durable",)
    types = {
        name: {"type": "string" if name in texts else "boolean" if name in switches else "integer"} for name in RESULT
    }
    return {"type": "object", "properties": types, "required": list(types), "additionalProperties": False}


def _logic_message() -> dict[str, Any]:
    message = _message()
    own: dict[str, Any] = {"logic_queue_id": {"type": "integer"}, "logic_offset": {"type": "integer"}}
    return {**message, "properties": own | message["properties"], "required": [*own, *message["required"]]}


def _message() -> dict[str, Any]:
    text: dict[str, Any] = {"type": "string"}
    number: dict[str, Any] = {"type": "integer"}
    number_or_null: dict[str, Any] = {"type": ["integer", "null"]}
    offsets: dict[str, Any] = {"type": "array", "items": number}
    or_null: dict[str, Any] = {"type": ["string", "null"]}
    always = {
        "topic": text,
        "queue_id": number,
        "queue_offset": number,
        "commit_log_offset": number,
        "size": number,
        "message_id": text,
        "unique_id": or_null,
        "keys": {"type": "array", "items": text},
        "tags": or_null,
        "properties": {"type": "object", "additionalProperties": text},
        "flag": number,
        "sys_flag": number,
        "born_timestamp": number,
        "born_host": text,
        "store_timestamp": number,
        "store_host": text,
        "reconsume_times": number,
        "prepared_transaction_offset": number,
        "body_crc": number,
        "body_size": number,
    }
    popped: dict[str, Any] = {
        "type": "object",
        "description": "What a broker remembers by it of messages that it popped.",
        "properties": {
            "kind": {"enum": ["checkpoint", "ack"]},
            "group": text,
            "topic": text,
            "queue_id": number,
            "start_offset": number,
            "offsets": offsets,
            "acked_offsets": {"anyOf": [offsets, {"type": "null"}]},
            "pop_timestamp": number,
            "revive_timestamp": number_or_null,
            "broker_name": or_null,
        },
    }
    system: dict[str, Any] = {
        "type": "object",
        "description": "What it says, where it is a record of the system topics for delays and transactions.",
        "properties": {
            "kind": {
                "enum": ["deliver", "put_back", "cancel", "delay_level", "half", "decision", "discarded"],
            },
            "topic": or_null,
            "queue_id": number_or_null,
            "due_timestamp": number_or_null,
            "level": number_or_null,
            "cancels": or_null,
            "cancels_log_offset": number_or_null,
            "producer_group": or_null,
            "transaction_id": or_null,
            "checks": number_or_null,
            "half_offsets": {"anyOf": [offsets, {"type": "null"}]},
            "decision": {"enum": ["commit", "rollback", "discard", None]},
        },
    }
    body = {"body_base64": text, "body_text": text, "body_error": text}
    return {
        "type": "object",
        "description": "A message; which of the last four members there are depends on --body and on the message.",
        "properties": always | body | {"pop": popped, "system": system},
        "required": list(always),
        "additionalProperties": False,
    }


if __name__ == "__main__":
    print(page(), end="")
