# SPDX-License-Identifier: Apache-2.0
"""Faults of section `dra` of the configuration."""

import pytest

from koordpy.config.dra_settings import DeviceClassMapping, Dra, mapping_faults


def mapping(name: str, *classes: str) -> DeviceClassMapping:
    return DeviceClassMapping(name=name, device_class_names=classes)


@pytest.mark.parametrize(
    ("mappings", "twice"),
    [
        ((mapping("nvidia.com/gpu", "gpu"), mapping("example.com/card", "card")), []),
        (
            (mapping("nvidia.com/gpu", "gpu"), mapping("example.com/card", "gpu")),
            [("dra.deviceClassMappings[1].deviceClassNames[0]", '"gpu" is mapped twice')],
        ),
    ],
)
def test_a_class_is_mapped_once(mappings: tuple[DeviceClassMapping, ...], twice: list[tuple[str, str]]) -> None:
    found = [(field, text) for field, _, text in mapping_faults(Dra(device_class_mappings=mappings))]
    assert found == twice
