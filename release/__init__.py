# SPDX-License-Identifier: Apache-2.0
"""Builds what a release publishes: `make dist`, or `python -m release --output dist [--parts NAME...]`.

A part (`parts.py`) is a function that writes files into a folder from a `Checkout`: the files of one commit, without
untracked files and local changes. The same commit gives the same bytes: archives have sorted members, root as owner,
and the time of the commit; third-party packages come from requirements-image.lock, verified by hash.

Must not be imported by koordpy, and is in no wheel and no image. Start reading at `parts.py`. RELEASING.md describes a
release.
"""
