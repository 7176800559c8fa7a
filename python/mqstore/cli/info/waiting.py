"""Tables of delayed messages and pending transactions, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore._admin.tables import moment
from mqstore.cli.render import bar, listing, table

if TYPE_CHECKING:
    from mqstore import StoreInfo

# Kinds of delayed messages and their labels.
_KINDS = {"timer": "a time of their own", "levels": "a delay level"}
# The states of messages of work queues.
STATES = ("ready", "delayed", "leased", "dying", "dead")
# Columns of the histogram: JSON name and label.
_PARTS = {
    "overdue": "overdue",
    "within_minute": "< 1 min",
    "within_hour": "< 1 h",
    "within_day": "< 1 day",
    "within_three_days": "< 3 days",
    "later": "later",
}


def tables(report: StoreInfo) -> None:
    """Prints the tables that have rows."""
    if report.delayed:
        rows = [(_KINDS.get(one.kind, one.kind), one.messages, moment(one.first_due)) for one in report.delayed]
        table(("delayed by", "messages", "first due"), rows)
        counts = {name: sum(getattr(one, name) for one in report.delayed) for name in _PARTS}
        most = max(counts.values())
        table(("due", "messages", ""), [(_PARTS[name], count, bar(count, most)) for name, count in counts.items()])
    if report.work_queues:
        listing(report.work_queues, "group", "topic", *STATES, group="work queue of")
    if report.undecided:
        titles = {"producer_group": "pending of", "oldest_timestamp": "oldest"}
        names = ("producer_group", "transactions", "messages", "oldest_timestamp", "checks")
        listing(report.undecided, *names, **titles)
