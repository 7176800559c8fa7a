"""The function that Spark runs on the executors.

It is pickled by value, because it is defined inside another function. So an executor without mqstore on its path can
run it, and it makes the shipped copy importable before it imports the package. For this reason it refers to no name of
this module and contains its own imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


def tasks(
    calls: Sequence[tuple[str | None, str, tuple[Any, ...]]],
    shares: Sequence[Sequence[int]],
    round_number: int,
    tells: bool,
    keeps: bool = False,
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns the function for ``mapInArrow`` over ``spark.range(0, len(shares), 1, len(shares))``.

    Args:
        calls: for each call the folder of its job, and verb and arguments for :func:`mqstore.spark._jobs.work.call`.
            Each attempt has its own folder ``task-<round>-<number>-...`` in the folder of the job.
        shares: for each partition the numbers of its calls.
        round_number: round of the job.
        tells: whether attempts report their progress.
        keeps: whether the error of a call is its answer, so that the others continue.
    """
    from mqstore.spark._session import FAILED
    from mqstore.spark._source import entering

    (enter, home), mark = entering(), FAILED

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import os
        import pickle
        import secrets

        import pyarrow as pa
        from pyspark import TaskContext

        enter(home, mark, "the job")
        from mqstore import MQStoreError
        from mqstore.spark._jobs import work

        context = TaskContext.get()
        if context is None:
            raise RuntimeError(f"{mark}it was not started in a Spark task")

        numbers, answers, failed = [], [], []
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for at in shares[partition]:
                    job, verb, arguments = calls[at]
                    # The name is unique for each attempt.
                    own = f"{context.stageId()}-{context.attemptNumber()}-{context.taskAttemptId()}"
                    name = f"task-{round_number}-{at}-{own}-{secrets.token_hex(8)}"
                    attempt = None if job is None else os.path.join(job, name)  # noqa: PTH118
                    try:
                        answer, is_error = work.call(verb, arguments, attempt, tells), False
                    except (MQStoreError, OSError) as error:
                        if not keeps:
                            raise RuntimeError(f"{mark}{error}{work.hint(error)} ({type(error).__name__})") from None
                        # The driver may not have the classes of other libraries.
                        is_known = isinstance(error, MQStoreError) or type(error).__module__ == "builtins"
                        kept = error if is_known else MQStoreError(f"{error} ({type(error).__name__})")
                        if advice := work.hint(error):
                            kept.add_note(advice.removeprefix("; "))
                        answer, is_error = pickle.dumps(kept), True
                    numbers.append(at)
                    answers.append(answer)
                    failed.append(is_error)
        yield pa.RecordBatch.from_pydict(
            {
                "number": pa.array(numbers, pa.int64()),
                "answer": pa.array(answers, pa.binary()),
                "failed": pa.array(failed, pa.bool_()),
            }
        )

    return run
