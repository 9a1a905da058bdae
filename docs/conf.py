# SPDX-License-Identifier: Apache-2.0
"""How the documentation is built as pages: `make docs`, where every warning is an error.

The sources are the Markdown files in the repository, including the README, so that one text serves both.
"""

import tomllib
from pathlib import Path

from koordpy import __version__

_ROOT = Path(__file__).resolve().parents[1]
_project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

project = _project["name"]
release = version = __version__
project_copyright = f"{project}, {_project['license']}"

root_doc = "docs/index"
extensions = ["myst_parser", "sphinx_design"]
include_patterns = [
    "*.md", "docs/*.md", "docs/rules/*.md", "docs/reference/*.md", "examples/README.md",
]  # fmt: skip
exclude_patterns = [".*", "build"]
nitpicky = True

myst_enable_extensions = ["colon_fence"]  # cards: a fence that a plain Markdown viewer shows as text
myst_heading_anchors = 4
myst_links_external_new_tab = True

html_theme = "furo"
html_title = f"{project} {version}"
html_css_files = ["custom.css"]
html_favicon = "static/icon.svg"
html_static_path = ["static"]
html_extra_path = ["site"]  # index.html: the root of the site redirects to root_doc
html_copy_source = False
