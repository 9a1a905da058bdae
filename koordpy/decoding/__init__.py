"""Strict decoding of documents and JSON into wire objects, with every fault, and warnings about fields without effect.

`strict_decoding.py` decodes manifests, `wire_json.py` the API server's objects (null is an absent field), and
`annotation_settings.py` settings in annotations.

Main types: `Decoded` (`strict_decoding.py`): an object with its faults; `Document` (`manifest_documents.py`): one YAML
document; `WireReader` (`wire_json.py`): JSON of one kind.

Must not know which objects a command needs, and must not fill in defaults.
Start reading at `strict_decoding.py`, then `wire_json.py`.
"""
