"""A compacted copy of a store that is published at a URL. Driver and executors need no shared folder.

::

    driver      begins the publication, and lists the source if it is at a URL
    one task    copies the store to a temporary folder, compacts it there, uploads all files
    driver      publishes the manifest, which names the files of one attempt

The temporary folder of the executor needs the space of the whole store. Objects of other attempts of the task are in no
manifest, and `mqstore.clean` removes them.
"""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from mqstore._publish.target import result_target
from mqstore._reports import CompactionReport
from mqstore.spark._jobs.compact_copy import ACTION
from mqstore.spark._jobs.rounds import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mqstore.spark._jobs.copies import Source
    from mqstore.spark._jobs.rounds import Rounds


def published_copy(
    rounds: Rounds,
    source: Callable[[], Source],
    compaction: tuple[list[str] | None, str],
    url: str,
    target_options: Mapping[str, Any] | None,
    job_id: str | None,
) -> CompactionReport:
    """Publishes a compacted copy at a URL.

    Args:
        rounds: the rounds of the job.
        source: returns the store. It is not called if the result is published already.
        compaction: the topics, and the options for the core.
        url: the target.
        target_options: credentials and settings of the target.
        job_id: if it is given, and the URL has the result of this job, the call only returns its report.

    Raises:
        ResultExistsError: the URL has another result or other objects.
        RemoteStoreError: results cannot be written to this kind of URL.
        MQStoreError: the task failed after all its attempts.
    """
    target = result_target(url, target_options, ACTION)
    with target.publication("store", None if job_id is None else f"compaction {job_id}") as publication:
        found = publication.begin()
        if found is None:
            chosen = source()
            arguments = (chosen.for_task(), compaction, (url, dict(target_options or {}), publication.attempt))
            rounds.expect(chosen.size)
            (answer,) = rounds.run([Call("compact_copy", arguments, weight=chosen.size)])
            rounds.finish()
            done = json.loads(answer)
            report = CompactionReport._from_json(done["report"])
            found = publication.commit(
                json.dumps(report.to_dict()), [tuple(one) for one in done["files"]], done["folders"]
            )
    told = json.loads(found.report)
    known = {field.name: told[field.name] for field in fields(CompactionReport) if field.name in told}
    return CompactionReport(**{**known, "skipped": tuple(known["skipped"])})
