"""What a store has for delivery that remembers: consumers of groups, work queues, delayed messages, transactions.

`Store` is a subclass; the verbs of the consumers and queues themselves are in `consumer` and `work_queue`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqstore._delivery.consumer import Consumer, OffsetCommit
    from mqstore._delivery.delays import DelayStats
    from mqstore._delivery.transactions import Checks, PendingTransaction, Transaction
    from mqstore._delivery.work_queue import WorkQueue
    from mqstore.types import Check, Duration, Filter, OnLost, Start, Time


class DeliveringStore(_native.NativeStore):
    """A native store that makes consumers, work queues and transactions."""

    __slots__ = ("_checks",)

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
    ) -> Consumer:
        """A consumer of `topics` in `group`; the store remembers how far the group has come.

        The consumers of one group in this process share the queues: each queue is one consumer's at a time. A topic
        may be missing; it is consumed once it is there.

        Args:
            group: the group, made where there is none: 1 to 255 characters of `%|a-zA-Z0-9_-`.
            topics: the topic, or several.
            filter: tags such as `"paid || shipped"`, or a condition on properties, `mqstore.sql("price > 5")`;
                what does not match is passed over, and counts as read.
            start: where a group begins in a topic in which it has no offset: `"earliest"`, `"latest"`, or a time.
                Queues that a topic gets later begin at their first message.
            ordered: whether a queue stays with this consumer as long as one of its messages was returned and not
                committed, so that nobody handles the next message of it before.
            broadcast: whether it gets the messages of all queues, whatever others of its group get.
            name: under which name the offsets of a broadcast consumer are kept; without one they are not.
            commit_interval: how long a commit may be lost to a failure of power at most, in seconds or as a
                `timedelta`; 0 syncs each commit, None leaves it to the background, which syncs every 0.1 s.
            on_lost: what happens when messages that the group has not read were deleted by the retention:
                `"continue"` goes on at the first message there is and tells the logger `mqstore`; `"raise"` raises
                `OffsetOutOfRangeError` until the consumer is moved.
            history: whether each commit is also kept as a message, so that it can be looked up as of any time.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            InvalidOptionError: a group that cannot be one or that has a work queue of a topic open, no topic, or a
                broadcast name that is taken.
        """
        from mqstore._admin.compaction import topic_list
        from mqstore._delivery.consumer import Consumer

        chosen = topic_list(topics, one=True) or []
        return Consumer._make(
            self, group, chosen, filter, start, ordered, broadcast, name, commit_interval, on_lost, history
        )

    def groups(self) -> list[str]:
        """The names of all groups, sorted: those of consumers and of work queues, and those a broker has had."""
        return _native.groups(self)

    def offset_history(self, group: str) -> list[OffsetCommit]:
        """What consumers of `group` that were made with `history=True` have committed, oldest first.

        It is kept in the topic `rmq_sys_OFFSET_HISTORY`: of a queue all commits until that topic is compacted, the
        newest one from then on.
        """
        from mqstore._delivery.consumer import OffsetCommit

        return [OffsetCommit(*row) for row in _native.offset_history(self, group)]

    def work_queue(
        self,
        topic: str,
        group: str = "workers",
        *,
        invisible_duration: Duration = 30.0,
        max_attempts: int | None = 16,
        backoff: Callable[[int], Duration] | None = None,
        maxsize: int = 0,
    ) -> WorkQueue:
        """The messages of `topic` as a queue of work for `group`: each is had by one worker until it is finished.

        Handles of one queue in this process share what is in it; threads may share a handle too.

        Args:
            topic: the topic, made where there is none.
            group: the group, made where there is none. Each group gets all messages.
            invisible_duration: how long a message that was got stays out of sight of others, in seconds or as a
                `timedelta`, 1 ms to 30 days; handles may differ in it.
            max_attempts: after so many deliveries that failed a message goes to the topic `%DLQ%group`; None is never.
            backoff: how long a message waits that was given back without a delay, called with the number of deliveries
                it had; None are RocketMQ's retry levels: 10 s, 30 s, 1 min and so on up to 2 h.
            maxsize: a put waits while so many messages are in the queue and nobody has them; 0 is no limit.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            InvalidOptionError: a group that cannot be one or that has consumers of the topic open, or an option that is
                out of bounds or differs from another handle's.
        """
        from mqstore._delivery.work_queue import WorkQueue

        return WorkQueue._make(self, topic, group, invisible_duration, max_attempts, backoff, maxsize)

    def cancel(self, id: str) -> bool:
        """Takes a message back that was appended with a delay or a time and waits; whether it waited.

        Once this returns True the message is never delivered, here or by a RocketMQ broker; that is as durable as an
        append. A message with a `delay_level` cannot be cancelled, and is never found.

        Args:
            id: `message_id` or `unique_id` of what `append` returned; of several messages that wait with one unique id
                the newest is taken back.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        return _native.cancel_delayed(self, id)

    def reschedule(
        self, id: str, *, delay: Duration | None = None, deliver_at: Time | None = None
    ) -> _native.AppendResult | None:
        """Has a message that waits delivered at another time: it is appended anew with its unique id, then cancelled.

        A kill of the process between the two leaves both.

        Args:
            id: as for `cancel`.
            delay: how long it waits from now on, in seconds or as a `timedelta`.
            deliver_at: until when it waits instead.

        Returns:
            The new record; None where no such message waits.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        return _native.reschedule_delayed(self, id, delay, deliver_at)

    def delays(self) -> DelayStats:
        """Where the delayed messages stand: how many wait, when the first is due, how late deliveries were.

        Of a store that is open for reading only what waits, as its writer's files have it: up to a second old, and
        what was delivered within that second may still count.
        """
        from mqstore._delivery.delays import DelayStats

        return DelayStats(**_native.delay_counts(self))

    def transaction(
        self, group: str = "DEFAULT_PRODUCER", *, check: Check | None = None, durable: bool = False
    ) -> Transaction:
        """Begins a transaction: messages, for any topics, that appear together at its end or never.

            with store.transaction("orders", check=is_paid) as transaction:
                transaction.append("orders", b"...")
                transaction.append("mails", b"...")

        Args:
            group: the producer group, under which a check finds it should the process die undecided: 1 to 255
                characters of `%|a-zA-Z0-9_-`.
            check: who is asked then, as for `check_transactions`, from now on; an earlier one of the group is replaced,
                and its timing kept.
            durable: whether its end waits for a sync whatever the store's durability.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            InvalidOptionError: a group that cannot be one.
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
        """Has `check` asked, from now on, about transactions of `group` that nobody decided and nobody has open.

        It is called with a `PendingTransaction` by the thread `mqstore-check` of this store, one transaction after the
        other, and answers `"commit"`, `"rollback"`, or None where it does not know yet. An exception counts as None and
        is told to the logger `mqstore`. One that runs while the store is closed is not waited for.

        Args:
            check: who is asked; it takes the place of an earlier one of this group.
            group: the producer group.
            check_after: how old a transaction is when it is asked about first, in seconds or as a `timedelta`.
            check_interval: how long it is left alone then, 1 ms to a year.
            check_max: after so many times its messages are moved to the topic `TRANS_CHECK_MAX_TIME_TOPIC`.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            InvalidOptionError: a group that cannot be one, or a number that is out of bounds.
        """
        from mqstore._delivery.transactions import checks_of

        checks_of(self).set(group, check, (check_after, check_interval, check_max))

    def pending_transactions(self) -> list[PendingTransaction]:
        """The transactions that are neither committed nor rolled back, the oldest first, those of a broker included.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        from mqstore._delivery.transactions import PendingTransaction

        return [PendingTransaction._of(row) for row in _native.pending_transactions(self)]
