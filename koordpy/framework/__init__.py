# SPDX-License-Identifier: Apache-2.0
"""The interface of filters, as the Filter extension point of kube-scheduler, but for all nodes at once.

A filter returns a `Verdict`: for each node either that the pod fits, or a refusal with reasons and a code. A filter
that reads only node objects computes it once. A filter that depends on other pods is a `Rule`: every placement and
eviction of the draft is reported to it, and updates its counts.

Main types: `Verdict` (`filter_protocol.py`): feasible nodes and refusals; `Refusal` (`filter_protocol.py`): code and
sentence; `Rule` (`pod_rule_filter.py`): a filter of domain counts.

Must not know a single filter: filters are in `plugins` and in the device families. Start reading at
`filter_protocol.py`, then `pod_rule_filter.py`.
"""
