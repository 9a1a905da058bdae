# SPDX-License-Identifier: Apache-2.0
"""Lists and watches each resource, decodes the objects, and reduces pods to the fields that koordpy uses.

A reflector lists a resource, watches it, and lists it again after a fault. New pods of all namespaces are handled in
turn. An object that cannot be decoded is replaced by a substitute that never offers more capacity than the object.

Main types: `Reflector` (`reflector.py`): one resource; `Mirror` (`object_mirror.py`): its objects; `PodIntake`
(`pod_intake.py`): reduced pods.

Must not decide what follows from a change: `koordpy/engine/changes` does.
Start reading at `reflector.py`, then `feeds.py`.
"""
