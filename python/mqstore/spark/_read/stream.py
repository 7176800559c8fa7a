"""Offsets of a streaming read.

An offset is ``{"orders": {"0": 17}}``, as in Kafka: the next queue offset of each queue. Topics and queues are sorted,
because Spark compares and stores the text. The first offset contains the start of the query in words
(``{"starting": ...}``). Spark asks for it more than once, and numbers would skip messages that arrive between two
requests. The first batch converts the words to numbers; for ``latest`` this batch is empty. After it, the checkpoint
contains numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore.spark._read import planning

if TYPE_CHECKING:
    import mqstore

_LATEST = -1
_SAMPLES = 3

_Positions = dict[tuple[str, int], int]


def initial(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the start of a query in words."""
    return {"starting": options["start"]}


def _shown(positions: _Positions) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for (topic, queue_id), at in sorted(positions.items()):
        found.setdefault(topic, {})[str(queue_id)] = at
    return found


def _positions(shown: dict[str, Any]) -> _Positions:
    return {(topic, int(queue)): at for topic, queues in shown.items() for queue, at in queues.items()}


def ends(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the current ends of the queues."""
    with planning.open_store(options["paths"][0]) as store:
        return _shown({queue: limits[1] for queue, limits in planning.bounds(store, options["topics"]).items()})


def _starts(store: mqstore.Store, limits: planning.Bounds, start: dict[str, Any]) -> _Positions:
    """Returns the numbers of an offset. A queue that it does not contain is new and starts at its first message."""
    if "starting" not in start:
        known = _positions(start)
        return {queue: known.get(queue, bounds[0]) for queue, bounds in limits.items()}
    asked = start["starting"]
    return {queue: planning.position(store, queue, bounds, asked) for queue, bounds in limits.items()}


def latest(
    options: dict[str, Any], start: dict[str, Any] | None, target: dict[str, Any] | None, capped: bool
) -> dict[str, Any]:
    """Returns the end of the next batch: the current end, within the limits and up to the target."""
    with planning.open_store(options["paths"][0]) as store:
        limits = planning.bounds(store, options["topics"])
        most = {queue: bounds[1] for queue, bounds in limits.items()}
        if target is not None:
            aims = _positions(target)
            most = {queue: min(at, aims.get(queue, at)) for queue, at in most.items()}
        if start is None or start == {"starting": _LATEST}:
            return _shown(most)
        begins = _starts(store, limits, start)
        wanted: dict[tuple[str, int], tuple[int, int]] = {}
        for queue, begin in begins.items():
            # Deleted messages do not count for a limit. The plan of the batch reports them.
            wanted[queue] = max(begin, limits[queue][0]), max(begin, most[queue])
        if capped:
            _cap(store, options, wanted)
        found = {queue: max(begins[queue], end) for queue, (_, end) in wanted.items()}
    if "starting" not in start:
        # A queue that does not exist at the moment keeps its offset.
        found = {**_positions(start), **found}
    return _shown(found)


def _cap(store: mqstore.Store, options: dict[str, Any], wanted: dict[tuple[str, int], tuple[int, int]]) -> None:
    """Reduces the wanted ranges to the limits, each queue by its share."""
    most: int | None = options["max_offsets"]
    if options["max_bytes"] is not None:
        fitting = max(1, options["max_bytes"] // _mean_size(store, wanted))
        most = fitting if most is None else min(most, fitting)
    total = sum(max(0, end - begin) for begin, end in wanted.values())
    if most is None or total <= most:
        return
    shares = {queue: most * max(0, end - begin) / total for queue, (begin, end) in wanted.items()}
    given = {queue: int(share) for queue, share in shares.items()}
    # The rest from rounding goes to the queues that lost most by it.
    by_rest = sorted(shares, key=lambda queue: (given[queue] - shares[queue], queue))
    for queue in by_rest[: most - sum(given.values())]:
        given[queue] += 1
    for queue, (begin, end) in wanted.items():
        wanted[queue] = begin, min(end, begin + given[queue])


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
    with planning.open_store(options["paths"][0]) as store:
        limits = planning.bounds(store, options["topics"])
        begins = _starts(store, limits, start)
        found = []
        for queue, to in _positions(end).items():
            if queue not in limits:
                if _positions({} if "starting" in start else start).get(queue) != to:
                    lost(f"queue {queue[1]} of topic {queue[0]!r} does not exist any more")
                continue
            begin, bounds = begins[queue], limits[queue]
            if begin < to and begin < bounds[0]:
                lost(planning.gone(queue, begin, bounds))
                begin = bounds[0]
            if to > bounds[1]:
                lost(planning.gone(queue, to - 1, bounds))
            if begin < min(to, bounds[1]):
                found.append(planning.Range(*queue, begin, min(to, bounds[1])))
        return planning.parts(store, sorted(found), options)
