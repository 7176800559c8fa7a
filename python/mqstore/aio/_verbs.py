"""The verbs on whole directories as coroutines: see the functions of the same names in `mqstore`."""

from __future__ import annotations

import mqstore
from mqstore.aio._twins import awaitable

info = awaitable(mqstore.info)
verify = awaitable(mqstore.verify)
repair = awaitable(mqstore.repair)
rebuild = awaitable(mqstore.rebuild)
compact = awaitable(mqstore.compact)
copy_topic = awaitable(mqstore.copy_topic)
export = awaitable(mqstore.export)
import_ = awaitable(mqstore.import_)
restore_compaction = awaitable(mqstore.restore_compaction)
fetch = awaitable(mqstore.fetch)
published = awaitable(mqstore.published)
clean = awaitable(mqstore.clean)
