"""For tests of programs that use a store, or RocketMQ: clocks, faults, assertions, damage, stand-ins.

::

    import mqstore.testing

    def test_an_order_is_announced(mqstore_store):
        announce(mqstore_store, order=5)
        mqstore.testing.assert_appended(mqstore_store, "orders", 1, body={"order": 5}, keys="order-5")

Installing mqstore is enough for the fixtures of pytest: `mqstore_path`, `mqstore_store`, `mqstore_clock`,
`mqstore_faults`, `mqstore_rocketmq`. They cost nothing where no test asks for them. The rest of this package needs no
pytest.

`mqstore.testing.rocketmq`, which has to be imported, has the names of RocketMQ's Python client.
"""

from __future__ import annotations

from mqstore.testing import damage
from mqstore.testing._assertions import assert_appended, assert_clean, messages
from mqstore.testing._machine import SMALL, Faults, ManualClock, open  # noqa: A004 - the name of `mqstore.open`

__all__ = ["SMALL", "Faults", "ManualClock", "assert_appended", "assert_clean", "damage", "messages", "open"]
