"""Messages that appear together or never: transactions and their checks."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import queue
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path

import pytest

import mqstore
from conftest import until
from mqstore import aio, testing

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
CHILD = Path(__file__).with_name("transaction_child.py")


def seen(store: mqstore.Store, *topics: str) -> list[list[str]]:
    """The readable bodies of each topic, from all its queues."""
    found = []
    for topic in topics:
        queues = store.queues(topic) if topic in store.topics() else []
        found.append([message.text() for each in queues for message in store.read(topic, each.queue_id)])
    return found


def leave(store: mqstore.Store, group: str = "shop", body: bytes = b"x") -> str:
    """A pending transaction without an open object."""
    transaction = store.transaction(group)
    transaction.append("a", body)
    transaction.append("b", body)
    return transaction.id


def test_the_end_of_the_block_shows_all_messages(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        store.create_topic("orders", queues=4)
        store.append("t", b"")
        with store.transaction("shop") as transaction:
            first = transaction.append("orders", b"1", keys="k", tags="paid", properties={"a": "b"}, queue_id=3, flag=7)
            second = transaction.append("mails", bytearray(b"2"), properties={"UNIQ_KEY": "mine"})
            assert (first, second) == (transaction.id, "mine")
            assert seen(store, "orders", "mails") == [[], []]
            assert transaction.outcome is None
            assert transaction.results == []
        assert transaction.outcome == "committed"
        assert seen(store, "orders", "mails") == [["1"], ["2"]]
        one, two = transaction.results
        assert (one.topic, one.queue_id, one.unique_id, two.topic) == ("orders", 3, first, "mails")
        message = store.get(one.message_id)
        assert message is not None
        assert (message.body, message.keys, message.tags, message.flag) == (b"1", ("k",), "paid", 7)
        assert message.properties["a"] == "b"
        assert message.prepared_transaction_offset > 0
        assert store.get_at(message.prepared_transaction_offset).topic == HALF
        assert [found.message_id for found in store.lookup("mails", "mine")] == [two.message_id]
        assert [found.text() for found in store.lookup("orders", "k")] == ["1"]
        assert store.pending_transactions() == []


def test_a_rollback_and_an_exception_hide_all_messages(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        with store.transaction() as transaction:
            transaction.append("a", b"1")
            transaction.rollback()
        assert transaction.outcome == "rolled back"
        with pytest.raises(KeyError, match="mine"), store.transaction() as failed:
            failed.append("a", b"2")
            failed.append("b", b"3")
            raise KeyError("mine")
        assert failed.outcome == "rolled back"
        with pytest.raises(KeyboardInterrupt), store.transaction() as stopped:
            stopped.append("a", b"4")
            raise KeyboardInterrupt
        assert seen(store, "a", "b", DISCARDED) == [[], [], []]
        assert store.pending_transactions() == []
        with store.transaction() as empty:
            pass
        assert (empty.outcome, empty.results) == ("committed", [])


def test_an_end_is_final_and_may_be_said_again(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        transaction = store.transaction()
        transaction.append("a", b"1")
        results = transaction.commit()
        assert transaction.commit() == results == transaction.results
        for call in (transaction.rollback, lambda: transaction.append("a", b"2")):
            with pytest.raises(mqstore.RefusedError, match=f"{transaction.id} was committed"):
                call()
        other = store.transaction()
        other.append("a", b"3")
        other.rollback()
        other.rollback()
        with pytest.raises(mqstore.RefusedError, match="was rolled back"):
            other.commit()
        assert seen(store, "a") == [["1"]]


def test_many_threads_have_transactions_of_their_own(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:

        def work(number: int) -> None:
            for turn in range(20):
                transaction = store.transaction()
                for part in range(3):
                    transaction.append("a" if part else "b", b"%d %d %d" % (number, turn, part))
                if turn % 4:
                    transaction.commit()
                else:
                    transaction.rollback()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        a, b = seen(store, "a", "b")
        assert len(a) == 2 * 60
        assert len(b) == 60
        assert {line.rpartition(" ")[0] for line in a} == {line.rpartition(" ")[0] for line in b}
        # The messages of one transaction are neighbours, in order.
        pairs = list(zip(a[::2], a[1::2], strict=True))
        assert all(one[:-1] == two[:-1] and (one[-1], two[-1]) == ("1", "2") for one, two in pairs)


def test_arguments(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        with pytest.raises(mqstore.InvalidOptionError):
            store.transaction("no group!")
        with pytest.raises(TypeError, match="check must be callable"):
            store.transaction(check="commit")  # type: ignore[arg-type]
        for wrong in (
            {"check_interval": 0},
            {"check_max": 0},
            {"check_max": -1},
            {"check_max": 1 << 40},
            {"check_after": timedelta(days=400)},
        ):
            with pytest.raises(mqstore.InvalidOptionError):
                store.check_transactions(lambda _: None, **wrong)  # type: ignore[arg-type]
        with store.transaction() as transaction:
            with pytest.raises(TypeError, match=r"cannot wait: delay is for Store\.append"):
                transaction.append("a", b"x", delay=5)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="durable applies to the whole transaction"):
                transaction.append("a", b"x", durable=True)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="unexpected keyword argument 'no'"):
                transaction.append("a", b"x", no=1)  # type: ignore[call-arg]
            with pytest.raises(TypeError, match="encode"):
                transaction.append("a", "x")  # type: ignore[arg-type]
            transaction.append("a", b"x")
            with pytest.raises(mqstore.TopicNotFoundError):
                transaction.append("a", b"x", queue_id=9)
            with pytest.raises(mqstore.InvalidMessageError):
                transaction.append(HALF, b"x")
            with pytest.raises(mqstore.MessageTooLargeError):
                for _ in range(100):
                    transaction.append("a", bytes(2000))
            # The refused messages are not part of it.
            transaction.rollback()
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(transaction)
        with pytest.raises(TypeError, match=r"store\.transaction"):
            mqstore.Transaction()
        assert repr(transaction) == f"<mqstore.Transaction {transaction.id!r} of group 'DEFAULT_PRODUCER', rolled back>"
    with pytest.raises(mqstore.StoreClosedError):
        store.transaction()


def test_a_reader_has_no_transactions_and_sees_them_whole(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store, mqstore.open(tmp_path / "s") as reader:
        for call in (
            reader.transaction,
            reader.pending_transactions,
            lambda: reader.check_transactions(lambda _: None),
        ):
            with pytest.raises(mqstore.StoreReadOnlyError):
                call()
        transaction = store.transaction()
        transaction.append("a", b"1")
        transaction.append("b", b"2")
        assert seen(reader, "a", "b") == [[], []]
        transaction.commit()
        assert seen(reader, "a", "b") == [["1"], ["2"]]


def test_a_store_without_transactions_gets_no_topics_of_them(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        store.append("t", b"x")
        assert store.pending_transactions() == []
    with testing.open(tmp_path / "s", "rw") as store:
        assert HALF not in store.topics()
        assert store.queues("t")[0].max_offset == 1
    assert not any("TRANS" in path.name for path in (tmp_path / "s" / "consumequeue").iterdir())


def test_pending_transactions_say_what_they_are(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        begun = clock.timestamp
        opened = store.transaction("shop")
        assert store.pending_transactions() == []
        opened.append("a", b"0")
        id_ = leave(store)
        first, second = store.pending_transactions()
        assert first == mqstore.PendingTransaction(opened.id, "shop", ("a",), 1, begun, 0, None, True, (0,))
        assert second == mqstore.PendingTransaction(id_, "shop", ("a", "b"), 2, begun, 0, None, False, (1, 2))
        bodies = [message and message.body for message in store.messages_at(HALF, 0, second.half_offsets)]
        assert bodies == [b"x", b"x"]
        assert second.to_dict()["topics"] == ["a", "b"]
        assert pickle.loads(pickle.dumps(second)) == second
        store.check_transactions(lambda _: None, "shop", check_after=10)
        assert [each.next_check for each in store.pending_transactions()] == [None, begun + 10_000]
        opened.commit()


@pytest.mark.parametrize("answer", ["commit", "rollback"])
def test_a_check_decides_what_an_earlier_process_left(answer: str, tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        ids = [leave(store), leave(store, "other")]
    asked: queue.SimpleQueue[mqstore.PendingTransaction] = queue.SimpleQueue()

    def check(pending: mqstore.PendingTransaction) -> str:
        asked.put(pending)
        return answer

    with testing.open(tmp_path / "s", "rw", clock=clock) as store:
        assert [pending.id for pending in store.pending_transactions()] == ids
        store.check_transactions(check, "shop")  # type: ignore[arg-type]
        clock.advance(6)
        pending = asked.get(timeout=60)
        assert (pending.id, pending.group, pending.checks, pending.messages) == (ids[0], "shop", 1, 2)
        until(lambda: len(store.pending_transactions()) == 1)
        assert store.pending_transactions()[0].id == ids[1]
        assert seen(store, "a", "b") == ([["x"], ["x"]] if answer == "commit" else [[], []])
    with testing.open(tmp_path / "s", "rw", clock=clock) as store:
        assert [pending.id for pending in store.pending_transactions()] == [ids[1]]
        assert seen(store, "a", "b") == ([["x"], ["x"]] if answer == "commit" else [[], []])


def test_nobody_is_asked_about_one_that_is_open_or_young(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    asked: queue.SimpleQueue[str] = queue.SimpleQueue()

    def check(pending: mqstore.PendingTransaction) -> None:
        asked.put(pending.id)

    with testing.open(tmp_path / "s", clock=clock) as store:
        opened = store.transaction("shop", check=check)
        opened.append("a", b"1")
        clock.advance(3600)
        id_ = leave(store)
        clock.advance(5.999)
        with pytest.raises(queue.Empty):
            asked.get(timeout=0.1)
        clock.advance(0.001)
        assert asked.get(timeout=60) == id_
        assert opened.outcome is None
        # No object has it any more.
        opened_id = opened.id
        del opened
        gc.collect()
        assert asked.get(timeout=60) == opened_id


def test_after_so_many_checks_messages_are_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = testing.ManualClock()
    asked: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()
    answers: list[object] = [None, OSError("no database"), "perhaps"]

    def check(pending: mqstore.PendingTransaction) -> object:
        asked.put((pending.id, pending.checks))
        answer = answers[pending.checks - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    caplog.set_level(logging.WARNING, logger="mqstore")
    with testing.open(tmp_path / "s", clock=clock) as store:
        id_ = leave(store)
        store.check_transactions(check, "shop", check_after=1, check_interval=10, check_max=3)  # type: ignore[arg-type]
        clock.advance(1)
        for number in (1, 2, 3):
            assert asked.get(timeout=60) == (id_, number)
            assert len(store.pending_transactions()) == 1
            if number == 2:
                # A stop does not change this.
                store.close()
                store = testing.open(tmp_path / "s", "rw", clock=clock)  # noqa: PLW2901
                store.check_transactions(check, "shop", check_after=1, check_interval=10, check_max=3)  # type: ignore[arg-type]
            clock.advance(10)
        until(lambda: not store.pending_transactions())
        assert seen(store, "a", "b", DISCARDED) == [[], [], ["x", "x"]]
        assert asked.empty()
        until(lambda: "TRANS_CHECK_MAX_TIME_TOPIC" in caplog.text)
        store.close()
    assert f"the check of transaction {id_} of group shop failed" in caplog.text
    assert "OSError: no database" in caplog.text
    assert "answered 'perhaps'" in caplog.text
    assert f"transaction {id_} of group shop was asked about 3 times" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), pytest.fail.Exception("no")])
def test_no_exception_of_a_check_ends_the_thread(
    error: BaseException, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def check(pending: mqstore.PendingTransaction) -> str:
        asked.append(pending.id)
        if len(asked) == 1:
            raise error
        return "commit"

    with testing.open(tmp_path / "s") as store, caplog.at_level(logging.ERROR, "mqstore"):
        left = [leave(store), leave(store)]
        store.check_transactions(check, "shop", check_after=0, check_interval=0.01)
        until(lambda: not store.pending_transactions())
        assert set(asked) == set(left)
        assert seen(store, "a") == [["x", "x"]]
        assert any("failed" in record.message for record in caplog.records)


def test_a_check_may_use_the_store_and_close_it(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    store = testing.open(tmp_path / "s", clock=clock)
    closed = threading.Event()

    def check(pending: mqstore.PendingTransaction) -> str:
        store.append("log", pending.id.encode())
        assert len(store.pending_transactions()) == 1
        store.close()
        closed.set()
        return "commit"

    id_ = leave(store)
    store.check_transactions(check, "shop", check_after=0)  # type: ignore[arg-type]
    assert closed.wait(60)
    with testing.open(tmp_path / "s", "rw", clock=clock) as again:
        assert [pending.id for pending in again.pending_transactions()] == [id_]
        assert seen(again, "log") == [[id_]]


def test_the_thread_ends_with_the_store(tmp_path: Path) -> None:
    store = testing.open(tmp_path / "s")
    store.check_transactions(lambda _: None, "shop")
    store.check_transactions(lambda _: None, "other")
    thread = store._checks._thread
    assert thread is not None
    assert (thread.name, thread.is_alive()) == ("mqstore-check", True)
    store.close()
    thread.join(60)
    assert not thread.is_alive()
    # A dropped store stops its thread, too.
    store = testing.open(tmp_path / "other")
    store.check_transactions(lambda _: None)
    thread = store._checks._thread
    with pytest.warns(ResourceWarning):
        del store
        gc.collect()
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("phase", "left", "shown"),
    [
        ("begun", 0, 0),
        ("appended", 1, 0),
        ("committed", 0, 2),
        ("rolled back", 0, 0),
        ("checked", 0, 2),
    ],
)
@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_process_dies_in_each_phase(phase: str, left: int, shown: int, end: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, CHILD, tmp_path / "s", phase, end], timeout=120, check=False)
    assert done.returncode == (5 if end == "exit" else -9)
    for _ in range(2):
        # A program that opens the store for writing sees the decided messages, even if it does not use transactions.
        with mqstore.open(tmp_path / "s", "rw") as store:
            assert [len(found) for found in seen(store, "a", "b")] == [shown, shown]
            assert len(store.pending_transactions()) == left
    with mqstore.open(tmp_path / "s", "rw") as store:
        decided = threading.Event()

        def check(pending: mqstore.PendingTransaction) -> str:
            decided.set()
            return "commit"

        store.check_transactions(check, "child", check_after=0)  # type: ignore[arg-type]
        if left:
            assert decided.wait(60)
        until(lambda: not store.pending_transactions())
        assert [len(found) for found in seen(store, "a", "b")] == [shown or 2 * left, shown or 2 * left]
    assert mqstore.verify(tmp_path / "s").ok


@pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")
def test_a_crash_at_any_write_leaves_all_or_nothing(tmp_path: Path) -> None:
    outcomes = set()
    for writes in (*range(0, 24, 3), 400):
        faults = testing.Faults()
        home = tmp_path / str(writes)
        store = testing.open(home, faults=faults)
        store.create_topic("a")
        store.create_topic("b")
        transaction = store.transaction("shop")
        faults.crash(writes)
        try:
            transaction.append("a", b"x")
            transaction.append("b", b"x")
            transaction.commit()
            outcome = "committed" if not faults.crashed else "perhaps"
        except mqstore.MQStoreError:
            assert faults.crashed
            outcome = "perhaps"
        store.close()
        faults.clear()
        with testing.open(home, "rw") as again:
            a, b = seen(again, "a", "b")
            assert a == b
            assert a in ([], ["x"])
            if outcome == "committed":
                assert a == ["x"]
            pending = again.pending_transactions()
            assert not (a and pending)
            outcomes.add(outcome)
    assert outcomes == {"perhaps", "committed"}


def test_the_event_loop_has_transactions_too(tmp_path: Path) -> None:
    clock = testing.ManualClock()

    async def use() -> None:
        with testing.open(tmp_path / "s", clock=clock) as store:
            wrapped = aio.wrap(store)
            async with wrapped.transaction("shop") as transaction:
                first = await transaction.append("a", b"1")
                await transaction.append("b", b"2")
                assert first == transaction.id
                assert transaction.outcome is None
            assert transaction.outcome == "committed"
            assert [result.topic for result in transaction.results] == ["a", "b"]
            with pytest.raises(ValueError, match="mine"):
                async with wrapped.transaction("shop") as failed:
                    await failed.append("a", b"3")
                    raise ValueError("mine")
            assert failed.outcome == "rolled back"
            other = await wrapped.transaction("shop")
            await other.append("a", b"4")
            assert [pending.id for pending in await wrapped.pending_transactions()] == [other.id]
            assert len(await other.commit()) == 1
            with pytest.raises(mqstore.RefusedError):
                await other.rollback()
            shared = wrapped.transaction("shop")

            async def part(body: bytes) -> None:
                await (await shared).append("c", body)

            await asyncio.gather(*(part(b"%d" % number) for number in range(5)))
            assert len(await shared.commit()) == 5
            assert await wrapped.pending_transactions() == []
            asked = asyncio.Event()
            loop = asyncio.get_running_loop()

            def check(_: mqstore.PendingTransaction) -> str:
                loop.call_soon_threadsafe(asked.set)
                return "rollback"

            await wrapped.check_transactions(check, "left", check_after=0)  # type: ignore[arg-type]
            await asyncio.to_thread(leave, store, "left")
            await asyncio.wait_for(asked.wait(), 60)
            assert seen(store, "a") == [["1", "4"]]
            await wrapped.close()
            with pytest.raises(mqstore.StoreClosedError):
                await wrapped.transaction("shop")

    asyncio.run(use())
