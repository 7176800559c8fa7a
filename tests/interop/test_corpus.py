"""The table of damages in stores that RocketMQ writes. RocketMQ then opens the result of each repair.

The table is that of `tests/python/damage.py`. By default, one case of each (structure, kind) is tried; with
`MQSTORE_SOAK=1`, all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from hashlib import md5
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from . import corpus
from .corpus import damage, stores
from .java_build import VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .driver import JavaSession
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

CASES = (damage.cases if os.environ.get("MQSTORE_SOAK") else damage.sample)("RocketMQ")
GROUPS = 8


@pytest.fixture(scope="module")
def memory(shop: Shop) -> Iterator[Path]:
    """A folder in memory, if the machine has one, because both sides sync everything."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)
        # A store that shuts down in the background writes a last file, even if its directory was removed.
        shop.end()


@pytest.fixture(scope="module")
def subjects(shop: Shop, memory: Path) -> dict[str, stores.Subject]:
    """The stores made so far, by version."""
    return {}


def subject_of(shop: Shop, version: str, subjects: dict[str, stores.Subject], memory: Path) -> stores.Subject:
    """Return the store that RocketMQ of a version wrote. It is written once."""
    if version not in subjects:
        sent = corpus.write(shop.session(version), memory / version)
        subjects[version] = stores.subject(memory / version, stores.elsewhere(memory / f"{version}-other"), sent)
    return subjects[version]


def assert_served(session: JavaSession, home: Path, sent: list[stores.Sent], hit: set[int]) -> int:
    """RocketMQ opens the directory and serves every message that was not hit. Returns their number."""
    java = session.open(home, config=corpus.CONFIG, topics=corpus.DECLARED)
    assert [line for line in java.report.complaints() if line.level == "ERROR"] == []
    log = {each.commit_log_offset: each for each in java.log()}
    for number, one in enumerate(sent):
        if number in hit:
            continue
        found = log[one.at]
        assert (found.topic, found.queue_id, found.queue_offset, found.size) == (
            one.topic, one.queue_id, one.queue_offset, one.size,
        )  # fmt: skip
        if one.topic != "batched":
            assert found.body_md5 == md5(stores.body(number)).hexdigest()
    # RocketMQ answers a pull at a blank unit with messages of the next segment, so messages in the first one are left
    # out.
    read = {each.commit_log_offset for each in java.read().messages}
    behind = {one.at for number, one in enumerate(sent) if number not in hit and one.at >= damage.SEGMENT}
    assert behind <= read
    # A shutdown sleeps for seconds, so the test does not wait for it.
    session.leave_stores()
    return len(sent) - len(hit)


@pytest.mark.parametrize("group", range(GROUPS))
def test_rocketmq_serves_what_was_mended(
    shop: Shop, version: str, subjects: dict[str, stores.Subject], memory: Path, group: int, tally: Tally
) -> None:
    """Each case of a part of the table: the damage is found and repaired, and every message that was not
    hit is served."""
    subject = subject_of(shop, version, subjects, memory)
    session = shop.session(version)
    # 5.3.3 has no queue offset in its checkpoint. The field is 0, and most damages change nothing in it.
    unknown = ("checkpoint", "logics offset") if version == VERSIONS[0] else None
    cases = [case for case in CASES if (case.structure, case.field) != unknown]
    for number, case in enumerate(cases[group::GROUPS]):
        home = memory / f"{version}-{group}-{number}"
        shutil.copytree(subject.base.home, home)
        try:
            # RocketMQ refuses files of a length other than its setting. If no file is left, only its settings give the
            # length.
            hit = stores.assert_mended(case, subject, home, stores.OPTIONS)
            if hit is not None:
                tally.messages += assert_served(session, home, subject.sent, hit)
        except AssertionError as error:
            pytest.fail(f"{case.name}: {error}")
        finally:
            shutil.rmtree(home, ignore_errors=True)
