# SPDX-License-Identifier: Apache-2.0
"""Which pods have processes, by control groups of each version, driver and class of service."""

from pathlib import Path

import pytest

from koordpy.agent.plugin.control_groups import ControlGroups

UID = "6a1f3c52-0000-4b7e-9d3a-5f2e1c0b9a88"
DASHED, FLAT = f"pod{UID}", f"pod{UID.replace('-', '_')}.slice"
PLACES = [
    f"kubepods/{DASHED}",
    f"kubepods/burstable/{DASHED}",
    f"kubepods/besteffort/{DASHED}",
    f"kubelet/kubepods/besteffort/{DASHED}",
    f"kubepods.slice/kubepods-{FLAT}",
    f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-{FLAT}",
    f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-{FLAT}",
]


class Tree:
    """Control groups of a node, as files."""

    def __init__(self, root: Path, *, unified: bool) -> None:
        self.root, self.unified = root, unified
        if unified:
            (root / "cgroup.controllers").touch()
        self.groups = ControlGroups(root)

    def put(self, place: str, processes: int) -> Path:
        folder = self.root / ("" if self.unified else "pids") / place
        folder.mkdir(parents=True, exist_ok=True)
        if self.unified:
            (folder / "cgroup.events").write_text(f"populated {int(processes > 0)}\nfrozen 0\n")
        else:
            (folder / "pids.current").write_text(f"{processes}\n")
        return folder


@pytest.fixture(params=[True, False], ids=["version 2", "version 1"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    return Tree(tmp_path, unified=request.param)


@pytest.mark.parametrize("place", PLACES)
def test_a_pod_has_processes_until_its_group_is_empty_or_removed(tree: Tree, place: str) -> None:
    tree.put(f"{place.partition('/')[0]}/other", 5)
    folder = tree.put(place, 2)
    assert tree.groups.has_processes(UID) is True
    tree.put(place, 0)
    assert tree.groups.has_processes(UID) is False
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert tree.groups.has_processes(UID) is False


def test_the_group_of_another_pod_says_nothing_of_this_one(tree: Tree) -> None:
    tree.put("kubepods/burstable/pod6a1f3c52-0000-4b7e-9d3a-000000000000", 3)
    assert tree.groups.has_processes(UID) is False


def test_one_of_two_trees_with_processes_is_enough(tree: Tree) -> None:
    tree.put(PLACES[0], 0)
    tree.put(PLACES[4], 1)
    assert tree.groups.has_processes(UID) is True


def test_where_the_kubelet_makes_no_groups_of_pods_nothing_is_told(tree: Tree, tmp_path: Path) -> None:
    tree.put("system.slice/containerd.service", 3)
    assert tree.groups.has_processes(UID) is None
    assert ControlGroups(tmp_path / "nowhere").has_processes(UID) is None


def test_a_file_that_cannot_be_read_tells_nothing(tree: Tree) -> None:
    folder = tree.put(PLACES[1], 1)
    for file in folder.iterdir():
        file.write_text("garbled")
    assert tree.groups.has_processes(UID) is None
