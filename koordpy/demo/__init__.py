# SPDX-License-Identifier: Apache-2.0
"""`koordpy demo`: creates gangs on a cluster inside this process, and draws how the live scheduler places them.

The cluster is an embedded API server on 127.0.0.1, with a simulated kubelet. The demo is a sequence of acts; each act
creates the objects of one manifest in examples/. The forecast of an act is the result that the planner computes
offline. At the end, the demo checks that the live scheduler has reached all forecasts.

Main types: `Act` (`acts.py`): a manifest; `Programme` (`programme.py`): a cluster and its acts; `Stage`
(`demo_cluster.py`): the running cluster.

Must not use internals of the scheduler to check it: the checks read the API server's objects.
Start reading at `demo_run.py`, then `acts.py`.
"""
