# SPDX-License-Identifier: Apache-2.0
"""Every mode of the queue order, by its name in the configuration (`fairness.mode`).

A new order is a subclass of `QueueKeys` in a separate module, and one line here (docs/extending.md).
"""

from collections.abc import Mapping

from koordpy.fairness.exact_order import Exact
from koordpy.fairness.kai_order import Kai
from koordpy.fairness.order_keys import CountOrder, QueueKeys

ORDERS: Mapping[str, type[QueueKeys]] = {
    "off": QueueKeys,
    "gpu-count": CountOrder,
    "exact": Exact,
    "kai": Kai,
}
