# SPDX-License-Identifier: Apache-2.0
"""An embedded Kubernetes API server with a simulated kubelet, for `koordpy demo` and for tests without a cluster.

It serves the part of the Kubernetes API that a scheduler, kubectl and kopf use: watches, patches, Tables, CRDs.
Optional controllers of Jobs and JobSets create pods.

Main types: `ApiServer` (`embedded_server.py`): the server; `Store` (`object_store.py`): the objects; `FakeKubelet`
(`fake_kubelet.py`): sets the phases of pods, without containers.

Must not import the scheduler: the scheduler uses it only over HTTP.
Start reading at `embedded_server.py`, then `object_store.py`.
"""
