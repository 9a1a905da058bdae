"""The interface of filters: a verdict per node, with one reason and one code, and its update as a draft changes.

A filter of node objects returns a `Verdict` once. A filter that depends on other pods is a `Rule`, which updates domain
counts.

Main types: `Verdict` (`filter_protocol.py`): feasible nodes and refusals; `Refusal` (`filter_protocol.py`): code and
sentence; `Rule` (`pod_rule_filter.py`): a filter of domain counts.

Must not know a single filter: filters are in `plugins` and in the device families. Start reading at
`filter_protocol.py`, then `pod_rule_filter.py`.
"""
