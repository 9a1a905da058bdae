# SPDX-License-Identifier: Apache-2.0
"""`koordpy demo`: creates gangs on a cluster inside this process, and draws how the live scheduler places them.

The cluster is an embedded API server on 127.0.0.1, with a simulated kubelet. The demo is a sequence of acts. An act
creates one manifest of examples/. Its forecast is the result of the planner offline; at the end, the demo checks that
the live scheduler has reached all forecasts.

Main types: `Act` (`acts.py`): a manifest; `Programme` (`programme.py`): cluster and acts; `Stage` (`demo_cluster.py`):
the cluster.

Must not use internals of the scheduler to check it: the checks read the API server's objects.
Start reading at `demo_run.py`, then `acts.py`.
"""
