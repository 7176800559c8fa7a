"""Offsets of a streaming read.

An offset is ``{"orders": {"0": 17}, "@log": {...}}``, as in Kafka: the next queue offset of each queue, and the mark
(:mod:`mqstore.spark._read.mark`) by which the next batch recognizes the store. Offsets of earlier versions have no
mark. Topics and queues are sorted, because Spark compares and stores the text. The first offset contains the start of
the query in words (``{"starting": ...}``). Spark asks for it more than once, and numbers would skip messages that
arrive between two requests. The first batch converts the words to numbers; for ``latest`` this batch is empty. After
it, the checkpoint contains numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore.errors import OffsetOutOfRangeError
from mqstore.spark._read import mark, planning
from mqstore.spark._read.mark import MARK

if TYPE_CHECKING:
    from collections.abc import Callable

    import mqstore
    from mqstore.spark._read.mark import Positions

_LATEST = -1
_SAMPLES = 3


def initial(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the start of a query in words."""
    return {"starting": options["start"]}


def _shown(positions: Positions, log: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (topic, queue_id), at in sorted(positions.items()):
        found.setdefault(topic, {})[str(queue_id)] = at
    if log is not None:
        found[MARK] = log
    return found


def _positions(shown: dict[str, Any]) -> Positions:
    """Returns the next offset of each queue; an offset in words has none."""
    if "starting" in shown:
        return {}
    return {(topic, int(queue)): at for topic, queues in shown.items() if topic != MARK for queue, at in queues.items()}


def _open(options: dict[str, Any]) -> mqstore.Store:
    return planning.open_store(options["paths"][0], None, options["archive"])


def _with_archive(store: mqstore.Store, limits: planning.Bounds, begins: Positions | None = None) -> planning.Bounds:
    """Returns the bounds, with the minimum in the archive for queues that begin before the log; None is all queues."""
    found = dict(limits)
    for queue, (low, end) in limits.items():
        if begins is None or begins[queue] < low:
            found[queue] = store._oldest_offset(*queue, low), end
    return found


def ends(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the current ends of the queues."""
    with planning.open_store(options["paths"][0]) as store:
        return _shown({queue: limits[1] for queue, limits in planning.bounds(store, options["topics"]).items()})


def _starts(
    store: mqstore.Store, limits: planning.Bounds, start: dict[str, Any], lost: Callable[[str], None]
) -> Positions:
    """Returns the next offset of each queue; calls ``lost`` for what the store has lost since the offset ``start``.

    A queue that the offset does not contain is new: it starts at 0, or at its floor if its topic was deleted before.
    """
    if "starting" in start:
        asked = start["starting"]
        oldest = _with_archive(store, limits)
        return {queue: planning.position(store, queue, bounds, asked) for queue, bounds in oldest.items()}
    known, log = _positions(start), start.get(MARK)
    mark.check(store, log, lost)
    hidden = mark.Hidden(store, log)
    begins: Positions = {}
    for queue, bounds in limits.items():
        at, floor = known.get(queue, 0), _native.floor_offset(store, *queue)
        if at < floor:
            if hidden.has(queue, at, is_new=queue not in known):
                lost(f"{planning.gone(queue, at, bounds)}, because its topic was deleted or has a retention")
            at = floor
        if at > bounds[1]:
            lost(f"{planning.gone(queue, at - 1, bounds)}, which the query has read: {mark.WENT_BACK}")
            at = bounds[1]
        begins[queue] = at
    for queue in _deleted(store, known, limits):
        if hidden.has(queue, known[queue], is_new=False):
            lost(f"topic {queue[0]!r} was deleted, and the query has not read all messages of queue {queue[1]}")
    return begins


def _deleted(store: mqstore.Store, known: Positions, limits: planning.Bounds) -> list[tuple[str, int]]:
    """Returns the queues of an offset whose topics do not exist. The options may have left out the others."""
    there = set(store.topics())
    return [queue for queue in known if queue not in limits and queue[0] not in there]


def latest(
    options: dict[str, Any], start: dict[str, Any] | None, target: dict[str, Any] | None, capped: bool
) -> dict[str, Any]:
    """Returns the end of the next batch: the current end, within the limits and up to the target."""
    with _open(options) as store:
        log_end = store.stats().log_max_offset
        limits = planning.bounds(store, options["topics"])
        most = {queue: bounds[1] for queue, bounds in limits.items()}
        if start is None or start == {"starting": _LATEST}:
            # PySpark 4.1 gives no start, and compares the text: without a new message it must not change.
            return _shown(most, mark.of(store, most, None, None if start is None else log_end))
        if "starting" in start:
            planning.check_named(limits, start["starting"], "startingOffsets")
        losses: list[str] = []
        begins = _starts(store, limits, start, losses.append)
        _tell(options, losses)
        if "starting" in start:
            _check_starts(begins, limits)
        limits = _with_archive(store, limits, begins)
        known = _positions(start)
        if target is not None:
            # All that does not exist when the query starts is after its end, also new queues.
            aims = _positions(target)
            most = {queue: min(at, aims.get(queue, begins[queue])) for queue, at in most.items()}
            begins = {queue: at for queue, at in begins.items() if queue in aims or queue in known}
        wanted: dict[tuple[str, int], tuple[int, int]] = {}
        for queue, begin in begins.items():
            # Deleted messages do not count for a limit. The plan of the batch reports them.
            wanted[queue] = max(begin, limits[queue][0]), max(begin, most[queue])
        if capped:
            _cap(store, options, wanted)
        found = {queue: max(begins[queue], end) for queue, (_, end) in wanted.items()}
        for queue in _deleted(store, known, limits):
            # A later topic of this name is a new one.
            del known[queue]
        # The query may ask for the other queues again after its next start.
        found = {**known, **found}
        if found == known and not losses and "starting" not in start:
            return start
        ends = {queue: bounds[1] for queue, bounds in limits.items()}
        unread = {queue: at for queue, at in found.items() if at < ends.get(queue, 0)}
        # After a loss the mark begins again, so that the query reports it once.
        before = None if losses else start.get(MARK)
        return _shown(found, mark.of(store, ends, before, mark.first(store, unread, log_end)))


def _tell(options: dict[str, Any], losses: list[str]) -> None:
    lost = planning.lost(options, "the query continues")
    for text in losses:
        lost(text)


def _check_starts(begins: Positions, limits: planning.Bounds) -> None:
    for queue, at in begins.items():
        if at > limits[queue][1]:
            raise OffsetOutOfRangeError(*queue, at, *limits[queue])


def _cap(store: mqstore.Store, options: dict[str, Any], wanted: dict[tuple[str, int], tuple[int, int]]) -> None:
    """Reduces the wanted ranges to the limits, each queue by its share, and at least by one message."""
    most: int | None = options["max_offsets"]
    if options["max_bytes"] is not None:
        fitting = max(1, options["max_bytes"] // _mean_size(store, wanted))
        most = fitting if most is None else min(most, fitting)
    sizes = {queue: end - begin for queue, (begin, end) in wanted.items() if begin < end}
    total = sum(sizes.values())
    if most is None or total <= most:
        return
    if most < len(sizes):
        # The oldest messages first, so that each queue advances after a bounded number of batches.
        given = dict.fromkeys(sorted(sizes, key=lambda queue: _place(store, queue, wanted[queue]))[:most], 1)
    else:
        given = _shares(sizes, total, most)
    for queue, (begin, end) in wanted.items():
        wanted[queue] = begin, min(end, begin + given.get(queue, 0))


def _shares(sizes: Positions, total: int, most: int) -> Positions:
    """Divides ``most`` by sizes; there are at least as many as sizes, and each share is at least 1."""
    shares = {queue: most * size / total for queue, size in sizes.items()}
    given = {queue: int(share) for queue, share in shares.items()}
    # The rest from rounding goes to the queues that lost most by it.
    by_rest = sorted(shares, key=lambda queue: (given[queue] - shares[queue], queue))
    for queue in by_rest[: most - sum(given.values())]:
        given[queue] += 1
    for queue in sorted(given):
        if given[queue] == 0:
            given[max(given, key=lambda each: given[each])] -= 1
            given[queue] = 1
    return given


def _place(store: mqstore.Store, queue: tuple[str, int], wanted: tuple[int, int]) -> int:
    """Returns the log offset of the first message of a range."""
    first = planning.first_place(store, planning.Range(*queue, *wanted))
    return 0 if first is None else first.commit_log_offset


def _mean_size(store: mqstore.Store, wanted: dict[tuple[str, int], tuple[int, int]]) -> int:
    """Returns the approximate size of a record, from a few samples of each queue."""
    sizes = []
    for (topic, queue_id), (begin, end) in wanted.items():
        if begin < end:
            places = {begin + (end - 1 - begin) * number // _SAMPLES for number in range(_SAMPLES + 1)}
            sizes += [each.size for each in store.messages_at(topic, queue_id, sorted(places)) if each is not None]
    return sum(sizes) // len(sizes) if sizes else 1


def plan(options: dict[str, Any], start: dict[str, Any], end: dict[str, Any]) -> list[planning.Part]:
    """Returns the part of each task of a batch."""
    if start == {"starting": _LATEST}:
        return []
    lost = planning.lost(options, "the query continues")
    with _open(options) as store:
        mark.check(store, end.get(MARK), lost)
        limits = planning.bounds(store, options["topics"])
        begins = _starts(store, limits, start, lost)
        limits = _with_archive(store, limits, begins)
        known = _positions(start)
        hidden = mark.Hidden(store, start.get(MARK))
        found = []
        for queue, to in _positions(end).items():
            if queue not in limits:
                begin = known.get(queue, 0)
                # A new queue can begin at a later offset, and without a message.
                is_sure = "starting" in start or queue in known
                if begin < to and (is_sure or hidden.has(queue, begin, is_new=True)):
                    lost(f"queue {queue[1]} of topic {queue[0]!r} does not exist any more")
                continue
            begin, bounds = begins[queue], limits[queue]
            if to > bounds[1]:
                lost(planning.gone(queue, to - 1, bounds))
            part = planning.Range(*queue, begin, min(to, bounds[1]))
            # A query that starts with the oldest message loses nothing.
            if "starting" not in start or begin != bounds[0]:
                part = part._replace(start=planning.held(store, part, bounds, lost))
            if part.start < part.end:
                found.append(part)
        return planning.parts(store, sorted(found), options)
