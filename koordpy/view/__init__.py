"""A cluster for its users: one versioned JSON document, one page that draws it, and answers for tenants.

A document is whole, then a stream of changes. A tenant sees its own namespace; names of other tenants are removed from
texts.

Main types: `LiveDocument` (`view_document.py`): the document; `Redactor` (`redaction.py`): removed names; `Answers`
(`tenant_answers.py`): answers for tenants.

Must not change the cluster, and must not show names of other tenants.
Start reading at `view_document.py`, then `page_server.py`.
"""
