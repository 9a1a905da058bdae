"""The demo: creates gangs on an embedded cluster, and compares the live scheduler with the planner's forecast.

The cluster runs in this process on 127.0.0.1. An act is one manifest of examples/; its forecast is the planner's
offline result.

Main types: `Act` (`acts.py`): a manifest; `Programme` (`programme.py`): cluster and acts; `Stage` (`demo_cluster.py`):
the cluster.

Must not use internals of the scheduler to check it: the checks read the API server's objects.
Start reading at `demo_run.py`, then `acts.py`.
"""
