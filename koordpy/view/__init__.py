# SPDX-License-Identifier: Apache-2.0
"""The web UI: a versioned JSON document of a cluster, the page that draws it, and answers to questions of tenants.

A client gets a whole document, then a stream of changes. A tenant sees only one namespace; in texts, names of other
tenants are masked.

Main types: `LiveDocument` (`view_document.py`): the document; `Redactor` (`redaction.py`): masks names; `Answers`
(`tenant_answers.py`): answers to tenants.

Must not change the cluster, and must not show names of other tenants.
Start reading at `view_document.py`, then `page_server.py`.
"""
