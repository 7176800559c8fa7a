"""The verbs of a store for consumers, work queues, delayed messages and transactions.

`Store` is a subclass. The verbs of consumers and queues themselves are in `consumer` and `work_queue`.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._admin.nearest import unknown_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqstore._delivery.consumer import Consumer, OffsetCommit
    from mqstore._delivery.delays import DelayStats
    from mqstore._delivery.transactions import Checks, PendingTransaction, Transaction
    from mqstore._delivery.work_queue import WorkQueue
    from mqstore.types import Check, Duration, Filter, OnDamage, OnLost, Start, Time


def _checked_bool(name: str, value: bool) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, not {type(value).__name__}")
    return value


class DeliveringStore(_native.NativeStore):
    """A native store with consumers, work queues and transactions."""

    __slots__ = ("_checks",)

    # Whether reads can begin before the log.
    _checks: Checks

    def consumer(
        self,
        group: str,
        topics: str | Iterable[str],
        filter: Filter | None = None,
        start: Start = "earliest",
        *,
        ordered: bool = False,
        broadcast: bool = False,
        name: str | None = None,
        commit_interval: Duration | None = 0.1,
        on_lost: OnLost = "continue",
        history: bool = False,
        on_damage: OnDamage = "raise",
        create: bool = True,
    ) -> Consumer:
        """Returns a consumer of `topics` in `group`. The store remembers the progress of the group.

        The consumers of a group in this process share the queues: each queue has one consumer at a time. A topic that
        does not exist yet is consumed when it is created; the logger `mqstore` names it once.

        Args:
            group: name of the group, 1 to 255 characters of `%|a-zA-Z0-9_-`; an unknown group is created.
            topics: one topic or several.
            filter: tags such as `"paid || shipped"`, or a condition on properties, `mqstore.sql("price > 5")`. Messages
                that do not match are skipped and count as read.
            start: position in a topic for which the group has no offset: `"earliest"`, `"latest"`, or a time. Queues
                that the topic gets later start at their first message.
            ordered: whether a queue stays with this consumer until all its returned messages are committed, so that no
                other consumer processes the next message earlier.
            broadcast: whether this consumer gets the messages of all queues, independently of the group.
            name: name under which a broadcast consumer stores its offsets; without a name they are not stored.
            commit_interval: longest time for which a power loss can lose a commit. With
                0 each commit is synced; None leaves it to the background, which syncs every 0.1 s.
            on_lost: behaviour if the retention deleted messages that the group has not read, and no archive has them.
                `"continue"` continues at the first existing message and logs to the logger `mqstore`. `"raise"` raises
                `OffsetOutOfRangeError` until the consumer is moved.
            history: whether each commit is also stored as a message, so that `offset_history` can return it.
            on_damage: behaviour at a damaged message. `"raise"`: `poll` raises `CorruptionError`. `"skip"` continues
                after the message, warns with a `StoreWarning`, and counts it in `StoreStats.skipped_damage`.
            create: whether a topic may be created later. With False, all topics must exist.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            TopicNotFoundError: no such topic, and `create` is False.
            InvalidOptionError: the group name is invalid, the group has an open work queue of a topic, `topics` is
                empty, or the broadcast name is in use.
        """
        from mqstore._admin.compaction import topic_list
        from mqstore._delivery.consumer import Consumer

        chosen = topic_list(topics, one=True) or []
        missing = [topic for topic in chosen if not self._queue_ids(topic)]
        if not _checked_bool("create", create) and missing:
            raise unknown_topic(missing[0], self.topics())
        options = (filter, start, ordered, broadcast, name, commit_interval, on_lost, history, on_damage)
        consumer = Consumer._make(self, group, chosen, *options)
        for topic in missing:
            import logging

            logging.getLogger("mqstore").warning("group %s waits for topic %s, which does not exist yet", group, topic)
        return consumer

    def groups(self) -> list[str]:
        """Returns the names of all groups, sorted: those of consumers, of work queues and of a broker."""
        return _native.groups(self)

    def offset_history(self, group: str) -> list[OffsetCommit]:
        """Returns the commits of `group` by consumers that were created with `history=True`, oldest first.

        They are in the topic `rmq_sys_OFFSET_HISTORY`. A compaction of that topic keeps the newest commit of each
        queue.
        """
        from mqstore._delivery.consumer import OffsetCommit

        return [OffsetCommit(*row) for row in _native.offset_history(self, group)]

    def work_queue(
        self,
        topic: str,
        group: str | None = None,
        *,
        visibility_timeout: Duration = 30.0,
        max_attempts: int | None = 16,
        backoff: Callable[[int], Duration] | None = None,
        maxsize: int = 0,
        on_damage: OnDamage = "raise",
        create: bool = True,
    ) -> WorkQueue:
        """Returns the messages of `topic` as a work queue for `group`: each message is leased to one worker at a time.

        Handles of the same queue in this process share its state, and threads can share a handle.

        Args:
            topic: name of the topic; an unknown topic is created, unless `create` is False.
            group: name of the group; an unknown group is created. Each group gets all messages. None is
                `workers-<topic>`, so that each topic has its own dead letters.
            visibility_timeout: time for which a leased message is hidden from other workers, 1 ms to 30 days. It can
                differ between handles.
            max_attempts: number of deliveries after which a message moves to the topic `%DLQ%group`; None is no limit.
            backoff: function from the number of deliveries to the delay of a message that was returned without a delay.
                None uses RocketMQ's retry levels: 10 s, 30 s, 1 min and so on up to 2 h.
            maxsize: number of messages without a lease at which `put` waits; 0 is no limit.
            on_damage: behaviour at a damaged message. With `"raise"`, `get` raises `CorruptionError`. With `"skip"` the
                message counts as finished, with a `StoreWarning`, and `StoreStats.skipped_damage` counts it.
            create: whether to create an unknown topic.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            TopicNotFoundError: no such topic, and `create` is False.
            InvalidOptionError: the group name is invalid, the group has open consumers of the topic, or an option is
                out of bounds or differs from that of another handle.
        """
        from mqstore._delivery.work_queue import WorkQueue

        if not _checked_bool("create", create) and not self._queue_ids(topic):
            raise unknown_topic(topic, self.topics())
        return WorkQueue._make(self, topic, group, visibility_timeout, max_attempts, backoff, maxsize, on_damage)

    def cancel(self, id: str) -> bool:
        """Cancels a delayed message that waits. Returns whether it was found waiting.

        After True, neither mqstore nor a RocketMQ broker ever delivers the message; the cancellation is as durable as
        an append. A message with a `delay_level` cannot be cancelled: the result is False.

        Args:
            id: `message_id` or `unique_id` from `append`. If several waiting messages have the same unique id, the
                newest is cancelled.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        return _native.cancel_delayed(self, id)

    def reschedule(
        self, id: str, *, delay: Duration | None = None, deliver_at: Time | None = None
    ) -> _native.AppendResult | None:
        """Moves a waiting message to another time: appends it again with its unique id, then cancels the old one.

        A kill of the process between the two steps leaves both.

        Args:
            id: as for `cancel`.
            delay: time from now until the delivery.
            deliver_at: delivery time, instead of `delay`.

        Returns:
            The new record; None if no such message waits.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        return _native.reschedule_delayed(self, id, delay, deliver_at)

    def delays(self) -> DelayStats:
        """Returns counters of delayed messages: how many wait, the next delivery time, and the lateness of deliveries.

        A store that is open for reading counts only the waiting messages, from files that its writer saves every
        second. Messages delivered in that second may still be counted.
        """
        from mqstore._delivery.delays import DelayStats

        return DelayStats(**_native.delay_counts(self))

    def transaction(
        self, group: str = "DEFAULT_PRODUCER", *, check: Check | None = None, durable: bool = False
    ) -> Transaction:
        """Begins a transaction: its messages, for any topics, appear all together at its end or never.

            with store.transaction("orders", check=is_paid) as transaction:
                transaction.append("orders", b"...")
                transaction.append("mails", b"...")

        Args:
            group: producer group, whose check function decides the transaction if this process dies before its end;
                1 to 255 characters of `%|a-zA-Z0-9_-`.
            check: check function of the group, as for `check_transactions`. It replaces an earlier one and keeps
                its timing.
            durable: whether the end of the transaction waits for a sync, in every durability mode.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            InvalidOptionError: the group name is invalid.
        """
        from mqstore._delivery.transactions import Transaction, checks_of

        if check is not None:
            checks_of(self).set(group, check)
        return Transaction._make(self, group, durable)

    def check_transactions(
        self,
        check: Check,
        group: str = "DEFAULT_PRODUCER",
        *,
        check_after: Duration = 6.0,
        check_interval: Duration = 30.0,
        check_max: int = 15,
    ) -> None:
        """Registers `check` as the function that decides pending transactions of `group`.

        The thread `mqstore-check` of this store calls it with one `PendingTransaction` at a time, never with one that
        this process has open. It answers `"commit"`, `"rollback"`, or None if it does not know yet. An exception counts
        as None and is logged to the logger `mqstore`. A close of the store does not wait for a running check.

        Args:
            check: check function; it replaces an earlier one of this group.
            group: name of the producer group.
            check_after: age of a transaction at its first check.
            check_interval: time between two checks, 1 ms to a year.
            check_max: number of checks after which the messages are moved to the topic `TRANS_CHECK_MAX_TIME_TOPIC`.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            InvalidOptionError: the group name is invalid, or a number is out of bounds.
        """
        from mqstore._delivery.transactions import checks_of

        checks_of(self).set(group, check, (check_after, check_interval, check_max))

    def pending_transactions(self) -> list[PendingTransaction]:
        """Returns the pending transactions, oldest first, including those of a broker.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        from mqstore._delivery.transactions import PendingTransaction

        return [PendingTransaction._from_row(row) for row in _native.pending_transactions(self)]


# Errors for wrong arguments show the public name of the class.
for _method in vars(DeliveringStore).values():
    if isinstance(_method, FunctionType):
        _method.__qualname__ = f"Store.{_method.__name__}"
del _method
