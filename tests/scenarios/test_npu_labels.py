# SPDX-License-Identifier: Apache-2.0
"""A misspelt accelerator-type of a node with NPUs is named, once a pod asks for NPUs."""

from collections.abc import Mapping

import pytest

from koordpy.planner.planning_round import plan_round
from tests.scenarios.cluster import World, node, pod

NPUS = {"huawei.com/Ascend910": "8"}


@pytest.mark.parametrize(
    ("labels", "annotations", "text"),
    [
        ({}, {}, ""),
        ({"accelerator-type": "module-910b-8"}, {}, ""),
        ({"accelerator-type": "module"}, {"acelerator-type": "half"}, ""),
        ({"accelerator": "huawei-Ascend910"}, {}, ""),
        (
            {"accelerator-type": "modul"},
            {},
            "label accelerator-type: 'modul' is not a known product, did you mean module?",
        ),
        ({"accelerator-type": "gpu"}, {}, "label accelerator-type: 'gpu' is not a known product"),
        (
            {"acelerator-type": "half"},
            {},
            "label acelerator-type is not read, did you mean label accelerator-type? The node counts as product module",
        ),
        (
            {},
            {"accelerator-type": "half"},
            "annotation accelerator-type is not read, did you mean label accelerator-type? "
            "The node counts as product module",
        ),
    ],
)
def test_a_misspelt_product_is_named(labels: Mapping[str, str], annotations: Mapping[str, str], text: str) -> None:
    made = node("n1:8", labels, **NPUS)
    made.metadata.annotations.update(annotations)
    world = World().add(made, pod("p", requests={"huawei.com/Ascend910": "1"}))
    said = [told for about, told in plan_round(world.snapshot()).warnings if about == "Node/n1"]
    assert said == ([text] if text else [])
    # nobody asks for NPUs: nothing is looked at
    other = World().add(made, pod("p"))
    assert not plan_round(other.snapshot()).warnings
