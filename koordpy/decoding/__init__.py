# SPDX-License-Identifier: Apache-2.0
"""Decoding: reads manifests of users, and JSON of the API server, into wire objects (typed records, `koordpy.api`).

Reading is strict: every fault of a document is reported, not only the first, and fields without effect get warnings.
`strict_decoding.py` decodes manifests, `wire_json.py` objects of the API server (null is an absent field there), and
`annotation_settings.py` settings in annotations.

Main types: `Decoded` (`strict_decoding.py`): an object with its faults; `Document` (`manifest_documents.py`): one YAML
document; `WireReader` (`wire_json.py`): a reader of JSON for one kind.

Must not know which objects a command needs, and must not set defaults.
Start reading at `strict_decoding.py`, then `wire_json.py`.
"""
