"""Messages that an append refuses because no program could get them."""

from __future__ import annotations

import pytest

import mqstore


@pytest.mark.parametrize("tag", ["a||b", "||", " a", "a ", "a || b"])
def test_a_tag_that_no_filter_can_name_is_refused(store: mqstore.Store, tag: str) -> None:
    for append in (
        lambda: store.append("t", b"x", tags=tag),
        lambda: store.append_many("t", [mqstore.Message(b"x", tags=tag)]),
        lambda: store.append("t", b"x", tags=tag, delay=1),
        lambda: store.work_queue("jobs", group="g").put(b"x", tags=tag),
    ):
        with pytest.raises(mqstore.InvalidMessageError, match="no tag filter"):
            append()


@pytest.mark.parametrize("tag", ["a", "a|b", "a b", "*", "ä", "a&b"])
def test_a_filter_with_the_text_of_a_tag_finds_it(store: mqstore.Store, tag: str) -> None:
    store.append("t", b"x", tags=tag)
    assert [message.tags for message in store.read("t", filter=tag)] == [tag]


@pytest.mark.parametrize(
    "topic",
    ["SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"],
)
def test_a_message_for_an_internal_topic_is_refused(store: mqstore.Store, topic: str) -> None:
    def in_transaction() -> None:
        with store.transaction("g") as transaction:
            transaction.append(topic, b"x")

    for append in (
        lambda: store.append(topic, b"x"),
        lambda: store.append_many(topic, [b"x", b"y"]),
        lambda: store.append(topic, b"x", delay=1),
        lambda: store.append(topic, b"x", tags="d"),
        in_transaction,
    ):
        with pytest.raises((mqstore.RefusedError, mqstore.InvalidMessageError), match=r"internal|reserved"):
            append()
    # What the store itself appends there still works.
    store.append("t", b"later", delay=0.01)
    store.append("t", b"level", delay_level=1)
    with store.transaction("g") as transaction:
        transaction.append("t", b"whole")
