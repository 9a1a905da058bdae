# SPDX-License-Identifier: Apache-2.0
"""The API reference is what the code says, and leaves no field without a meaning."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.api_reference import FOLDER, pages
from tests.docs.worked import ROOT

PAGES = pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_generated_from_the_code(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES[page], "`make reference` writes it anew"


def test_every_page_of_the_folder_is_generated() -> None:
    assert set(FOLDER.iterdir()) == set(PAGES)


def undescribed(schema: dict[str, Any], at: str) -> list[str]:
    """Paths of fields without a description, except the fields of a condition."""
    out = []
    for name, field in schema.get("properties", {}).items():
        path = f"{at}.{name}"
        if "description" not in field:
            out.append(path)
        if name != "conditions":
            out += undescribed(field.get("items", field), path)
    return out


@pytest.mark.parametrize("path", sorted((ROOT / "crds").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_field_of_a_custom_resource_is_described(path: Path) -> None:
    (version,) = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    own = {name: field for name, field in properties.items() if name in ("spec", "status")}
    assert undescribed({"properties": own}, "") == []
