# SPDX-License-Identifier: Apache-2.0
"""PCIe classes from paths of the kernel."""

from pathlib import Path

import pytest

from koordpy.agent.pcie_paths import PciPath, path_class, read_path, sysfs_address

ROOT = "pci0000:3a"


def path(*parts: str, numa: int | None = 0) -> PciPath:
    return PciPath(parts, numa)


BASE = path(ROOT, "0000:3a:00.0", "0000:3b:00.0", "0000:3c:08.0", "0000:3d:00.0")


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (path(ROOT, "0000:3a:00.0", "0000:3b:00.0", "0000:3c:08.0", "0000:3d:00.1"), "PSB"),
        (path(ROOT, "0000:3a:00.0", "0000:3b:00.0", "0000:3c:10.0", "0000:3e:00.0"), "PIX"),
        (path(ROOT, "0000:3a:00.0", "0000:3b:00.0", "0000:3c:10.0", "0000:40:00.0", "0000:41:00.0", "x"), "PXB"),
        (path(ROOT, "0000:3a:02.0", "0000:5b:00.0"), "PHB"),
        (path("pci0000:5d", "0000:5d:00.0", "0000:5e:00.0"), "NODE"),
        (path("pci0000:d7", "0000:d7:00.0", "0000:d8:00.0", numa=1), "SYS"),
        (path("pci0000:d7", "0000:d7:00.0", "0000:d8:00.0", numa=None), "SYS"),
    ],
)
def test_the_nearest_common_part_of_two_paths_gives_their_class(other: PciPath, expected: str) -> None:
    assert path_class(BASE, other) == expected
    assert path_class(other, BASE) == expected


def test_the_drivers_address_is_written_as_the_kernel_writes_it() -> None:
    assert sysfs_address("00000000:3B:00.0") == "0000:3b:00.0"


def test_a_path_is_read_through_the_link_of_the_function(tmp_path: Path) -> None:
    real = tmp_path / "devices" / ROOT / "0000:3a:00.0" / "0000:3b:00.0"
    real.mkdir(parents=True)
    (real / "numa_node").write_text("1\n")
    links = tmp_path / "bus" / "pci" / "devices"
    links.mkdir(parents=True)
    (links / "0000:3b:00.0").symlink_to(real)
    found = read_path("00000000:3B:00.0", sysfs=tmp_path)
    assert found == PciPath((ROOT, "0000:3a:00.0", "0000:3b:00.0"), 1)
    assert found.root == "0000:3a:00.0"
    assert read_path("0000:99:00.0", sysfs=tmp_path) is None
