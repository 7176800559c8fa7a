"""The store for the table of damages (`tests/python/damage.py`), as RocketMQ writes it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.append(str(Path(__file__).parents[1] / "python"))
import damage
import damaged_stores as stores

from .java_rows import batch, message
from .scenarios import BATCH_QUEUE, topic, unique_id

if TYPE_CHECKING:
    from .driver import JavaSession
    from .java_rows import Spec

CONFIG = {
    "mappedFileSizeCommitLog": damage.SEGMENT,
    "mappedFileSizeConsumeQueue": 20 * 32,
    "mapperFileSizeBatchConsumeQueue": 46 * 32,
    "maxHashSlotNum": 64,
    "maxIndexNum": 200,
    # A checksum over the whole record, as mqstore writes it.
    "enabledAppendPropCRC": True,
}
DECLARED = {"orders": topic(2), "returned-orders": topic(), stores.LONG: topic(), "batched": topic(1, **BATCH_QUEUE)}


def spec(number: int) -> Spec:
    """Specify the message with this number."""
    name, queue_id = stores.TOPICS[number % len(stores.TOPICS)]
    one = {
        "keys": [f"k{number}"],
        "tags": stores.tag(number),
        "flag": number,
        "born_timestamp": stores.born(number),
    }
    if name == "batched":
        items = [message(name, stores.body(number), **one) for _ in range(stores.inner(number))]
        return batch(name, items, inner=True, unique_id=unique_id(number), **one)
    return message(name, stores.body(number), queue_id=queue_id, unique_id=unique_id(number), **one)


def write(session: JavaSession, home: Path) -> list[stores.Sent]:
    """Let RocketMQ write the store and close it."""
    store = session.open(home, config=CONFIG, topics=DECLARED, write_topics=True)
    sent = []
    for number in range(damage.COUNT):
        time.sleep(stores.pause(number))
        (put,) = store.put([spec(number)])
        name, queue_id = stores.TOPICS[number % len(stores.TOPICS)]
        place = (put.queue_offset, put.commit_log_offset, put.size)
        sent.append(stores.Sent(name, queue_id, *place, f"k{number}"))
    session.close_stores([store])
    return sent
