# SPDX-License-Identifier: Apache-2.0
"""List and watch of each resource: lines decoded, pods reduced to the fields in use, fair order between namespaces.

A reflector lists, watches and lists again after a fault. An object that cannot be decoded is replaced by a stand-in
that never frees capacity.

Main types: `Reflector` (`reflector.py`): one resource; `Mirror` (`object_mirror.py`): its objects; `PodIntake`
(`pod_intake.py`): reduced pods.

Must not know what a change means: `changes` does.
Start reading at `reflector.py`, then `feeds.py`.
"""
