"""Progress of groups: `mqstore group lag DIR` and `mqstore last DIR GROUP`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

import typer

import mqstore
from mqstore._admin.info import SYSTEM_GROUPS
from mqstore._admin.nearest import unknown_topic
from mqstore._admin.tables import duration, human
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.groups import DEAD_LETTERS, AnyGroup, Group, check_group, group_app
from mqstore.cli.options import BodyForm, Directory, MessageForm, ReportForm, message_form
from mqstore.cli.render import Body, Format
from mqstore.cli.status import CLEAN, PROBLEMS

# The commits of consumers that were created with `history=True`.
_HISTORY = "rmq_sys_OFFSET_HISTORY"


@dataclass(frozen=True, slots=True)
class GroupLag(_Report):
    """Progress of a group in a queue."""

    group: str
    topic: str
    queue_id: int
    offset: int
    """Offset that the group reads next."""
    max_offset: int | None
    """One past the last offset of the queue; None if the store has no such queue."""
    lag: int | None
    """Messages from `offset` to the end of the queue; None if the store has no such queue."""


@dataclass(frozen=True, slots=True)
class GroupTopicLag(_Report):
    """Progress of a group in a topic."""

    group: str
    topic: str
    queues: int
    """Queues in which the group has an offset."""
    lag: int
    """Messages of these queues that the group has not read."""
    oldest_unread_timestamp: int | None
    """Store time of the oldest message that the group has not read, in epoch milliseconds; None without one."""
    behind_seconds: float | None
    """Age of that message in seconds; None without one."""
    committed_timestamp: int | None
    """Time of the last commit, in epoch milliseconds; None without a history of commits."""


@verb("lag", group_app)
def lag(
    directory: Directory,
    group: AnyGroup = None,
    queues: Annotated[bool, typer.Option("--queues", help="List each queue with its offsets.")] = False,
    form: ReportForm = Format.TABLE,
) -> None:
    """Shows how far each group is behind in its topics, largest lag first, or with --queues in each queue."""
    found = [one for one in _progress(directory) if group in (None, one.group)]
    if group is not None and not found:
        check_group(directory, group)
    if queues:
        print_lag(
            [
                GroupLag(one.group, one.topic, queue.queue_id, queue.offset, _end(queue), queue.lag)
                for one in found
                for queue in one.queues
            ],
            form,
        )
        return
    with mqstore.open(directory) as store:
        _print_topic_lag(_topic_lags(store, found), form)


@verb()
def last(
    directory: Directory,
    group: Group,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic; by default all topics of the group.")
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", min=0, help="Maximum number of messages.")] = 10,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
) -> int:
    """Prints the last message before the committed offset of a group in each queue, newest first."""
    check_group(directory, group)
    progress = [one for one in _progress(directory) if one.group == group and topic in (None, one.topic)]
    with mqstore.open(directory) as store:
        if topic is not None and topic not in store.topics():
            raise unknown_topic(topic, store.topics())
        found = [message for one in progress for message in _last_messages(store, one)]
        found.sort(key=lambda message: (message.store_timestamp, message.commit_log_offset), reverse=True)
        render.messages(store, found[:limit], message_form(form), body)
    if found:
        return CLEAN
    where = "" if topic is None else f" of the topic {topic}"
    render.note_later(f"the group {group} has consumed no message{where} that is still in the store")
    return PROBLEMS


def print_lag(found: list[GroupLag], form: Format) -> None:
    """Prints the progress of groups in queues."""
    if not render.machine(found, form):
        render.listing(found, "group", "topic", "queue_id", "offset", "max_offset", "lag", max_offset="end")


def _progress(directory: Directory) -> list[mqstore.GroupInfo]:
    """Returns the progress of the groups of programs, without the dead letters that were redriven."""
    return [
        one
        for one in mqstore.info(directory).consumers
        if one.topic != DEAD_LETTERS + one.group and not one.group.startswith(SYSTEM_GROUPS)
    ]


def _end(queue: mqstore.GroupOffset) -> int | None:
    return None if queue.lag is None else queue.offset + queue.lag


def _topic_lags(store: mqstore.Store, progress: list[mqstore.GroupInfo]) -> list[GroupTopicLag]:
    commits = _last_commits(store, {one.group for one in progress})
    now = time.time()
    found = []
    for one in progress:
        oldest = _oldest_unread(store, one)
        age = None if oldest is None else max(now - oldest / 1000, 0.0)
        committed = commits.get((one.group, one.topic))
        found.append(GroupTopicLag(one.group, one.topic, len(one.queues), one.lag, oldest, age, committed))
    return sorted(found, key=lambda one: -one.lag)


def _last_commits(store: mqstore.Store, groups: set[str]) -> dict[tuple[str, str], int]:
    """Returns the time of the last commit by group and topic."""
    if _HISTORY not in store.topics():
        return {}
    # A later commit replaces an earlier one.
    return {(group, one.topic): one.timestamp for group in sorted(groups) for one in store.offset_history(group)}


def _oldest_unread(store: mqstore.Store, progress: mqstore.GroupInfo) -> int | None:
    """Returns the store time of the oldest message that the group has not read in a topic."""
    if progress.lag == 0:
        return None
    oldest = _oldest_offsets(store, progress.topic)
    firsts = [
        next(
            store.read(progress.topic, queue.queue_id, max(queue.offset, oldest[queue.queue_id]), on_damage="skip"),
            None,
        )
        for queue in progress.queues
        if queue.lag is not None and queue.lag > 0 and queue.queue_id in oldest
    ]
    return min((message.store_timestamp for message in firsts if message is not None), default=None)


def _last_messages(store: mqstore.Store, progress: mqstore.GroupInfo) -> list[mqstore.StoredMessage]:
    """Returns the last message before the offset of the group in each queue of a topic."""
    known = [queue for queue in progress.queues if queue.lag is not None]
    oldest = _oldest_offsets(store, progress.topic) if known else {}
    found = []
    for queue in known:
        # A group can be ahead of the end of its queue.
        end = queue.offset + min(queue.lag or 0, 0)
        message = _message_before(store, progress.topic, queue.queue_id, oldest.get(queue.queue_id, end), end)
        if message is not None:
            found.append(message)
    return found


def _message_before(
    store: mqstore.Store, topic: str, queue_id: int, oldest: int, end: int
) -> mqstore.StoredMessage | None:
    """Returns the last message of a queue from the offset `oldest` to `end`, exclusive."""
    step = 1
    while end > oldest:
        start = max(end - step, oldest)
        found = list(store.read(topic, queue_id, start, end))
        if found:
            return found[-1]
        # A compaction leaves gaps, which can be long.
        end, step = start, step * 2
    return None


def _oldest_offsets(store: mqstore.Store, topic: str) -> dict[int, int]:
    """Returns the first offset of each queue, also in the archive of the store."""
    return {one.queue_id: store._oldest_offset(topic, one.queue_id, one.min_offset) for one in store.queues(topic)}


def _print_topic_lag(found: list[GroupTopicLag], form: Format) -> None:
    if render.machine(found, form):
        return
    rows = [
        (
            one.group,
            one.topic,
            one.queues,
            one.lag,
            "-" if one.behind_seconds is None else f"{duration(one.behind_seconds)} behind",
            human("committed_timestamp", one.committed_timestamp),
        )
        for one in found
    ]
    render.table(("group", "topic", "queues", "messages behind", "oldest unread", "last commit"), rows)
