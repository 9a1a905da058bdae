# SPDX-License-Identifier: Apache-2.0
"""An embedded Kubernetes API server with a simulated kubelet, for `koordpy demo` and for tests without a cluster.

It serves the part of the Kubernetes API that a scheduler, kubectl and kopf use: watches, patches, Tables, CRDs.
Optional controllers of Jobs and JobSets create pods.

Main types: `ApiServer` (`embedded_server.py`): the server; `Store` (`object_store.py`): the objects; `FakeKubelet`
(`fake_kubelet.py`): pods' phases.

Must not know the scheduler, which uses it over HTTP only.
Start reading at `embedded_server.py`, then `object_store.py`.
"""
