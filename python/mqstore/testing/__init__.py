"""Helpers for tests of programs that use a store or RocketMQ: clocks, faults, assertions, damage, stand-ins.

::

    import mqstore.testing

    def test_an_order_is_announced(mqstore_store):
        announce(mqstore_store, order=5)
        mqstore.testing.assert_appended(mqstore_store, "orders", 1, body={"order": 5}, keys="order-5")

pytest finds the fixtures as soon as mqstore is installed: `mqstore_path`, `mqstore_store`, `mqstore_clock`,
`mqstore_faults` and `mqstore_rocketmq`. A test that uses none of them pays nothing. The rest of this package does not
need pytest.

`mqstore.testing.rocketmq` has the names of RocketMQ's Python client. Import it explicitly.
"""

from __future__ import annotations

from mqstore.testing import damage
from mqstore.testing._assertions import assert_appended, assert_clean, messages
from mqstore.testing._machine import SMALL, Faults, ManualClock, open  # noqa: A004 - the name of `mqstore.open`

__all__ = ["SMALL", "Faults", "ManualClock", "assert_appended", "assert_clean", "damage", "messages", "open"]
