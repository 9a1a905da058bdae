# SPDX-License-Identifier: Apache-2.0
"""The interface of filters, as the Filter extension point of kube-scheduler, but for all nodes at once.

A filter returns a `Verdict`: for each node either that the pod fits, or a refusal with reasons and a code. The verdict
of a filter that reads only node objects is computed once per snapshot. A filter that depends on other pods is a `Rule`:
the draft reports every placement and eviction to it, and the rule updates its counts.

Main types: `Verdict` (`filter_protocol.py`): feasible nodes and refusals; `Refusal` (`filter_protocol.py`): code and
sentences of one filter; `Rule` (`pod_rule_filter.py`): base class of filters that count pods, volumes or devices.

Must not import a filter: filters are in `plugins` and in the device families. Start reading at `filter_protocol.py`,
then `pod_rule_filter.py`.
"""
