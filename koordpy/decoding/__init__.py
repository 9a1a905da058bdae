"""Strict decoding: documents and JSON into wire objects, every fault named, and hints about fields without a reader.

Manifests are decoded by `strict_decoding.py`, the API server's objects by `wire_json.py` (null is an absent field),
settings in annotations by `annotation_settings.py`.

Main types: `Decoded` (`strict_decoding.py`): an object with its faults; `Document` (`manifest_documents.py`): one YAML
document; `WireReader` (`wire_json.py`): JSON of one kind.

Must not know which objects a command needs, and must not fill in defaults.
Start reading at `strict_decoding.py`, then `wire_json.py`.
"""
