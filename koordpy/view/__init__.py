# SPDX-License-Identifier: Apache-2.0
"""The web UI: one versioned JSON document of a cluster, the page that draws it, and answers for tenants.

A client gets a whole document, then a stream of changes. A tenant sees its own namespace; names of other tenants are
masked in texts.

Main types: `LiveDocument` (`view_document.py`): the document; `Redactor` (`redaction.py`): masks names; `Answers`
(`tenant_answers.py`): answers for tenants.

Must not change the cluster, and must not show names of other tenants.
Start reading at `view_document.py`, then `page_server.py`.
"""
