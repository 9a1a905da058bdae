# SPDX-License-Identifier: Apache-2.0
"""Reads manifests of users and JSON of the API server into wire objects (`koordpy.api`).

Reading is strict: every fault of a document is reported, not only the first, and fields without effect get warnings.
`strict_decoding.py` decodes manifests, `wire_json.py` the API server's objects (null is an absent field), and
`annotation_settings.py` settings in annotations.

Main types: `Decoded` (`strict_decoding.py`): an object with its faults; `Document` (`manifest_documents.py`): one YAML
document; `WireReader` (`wire_json.py`): JSON of one kind.

Must not know which objects a command needs, and must not fill in defaults.
Start reading at `strict_decoding.py`, then `wire_json.py`.
"""
