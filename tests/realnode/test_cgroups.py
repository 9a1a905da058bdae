# SPDX-License-Identifier: Apache-2.0
"""Where a node's control groups go: version 1 with joint hierarchies, hybrid, version 2, and where none can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.realnode.cgroups import Hierarchy, Unsupported, hierarchies, make, remove


def process(folder: Path, cgroup: str, mounts: list[tuple[str, str, str, str]]) -> Path:
    """A folder like /proc/PID; mounts are (root, point below folder, file system, options)."""
    (folder / "cgroup").write_text(cgroup)
    lines = [f"30 20 0:{n} {r} {folder}/{p} rw - {k} {k} {o}" for n, (r, p, k, o) in enumerate(mounts)]
    (folder / "mountinfo").write_text("".join(f"{line}\n" for line in lines))
    return folder


def test_version_1_goes_below_the_callers_own_groups(tmp_path: Path) -> None:
    mounts = [
        ("/", "cpu,cpuacct", "cgroup", "rw,seclabel,cpu,cpuacct"),
        ("/job", "memory", "cgroup", "rw,memory"),
        ("/", "pids", "cgroup", "rw,pids"),
        ("/", "systemd", "cgroup", "rw,xattr,name=systemd"),
        ("/", "unified", "cgroup2", "rw"),
    ]
    own = "5:pids:/\n4:memory:/job/7\n3:cpu,cpuacct:/user\n2:name=systemd:/\n0::/\n"
    found = hierarchies(process(tmp_path, own, mounts))
    assert found == [
        Hierarchy("pids", tmp_path / "pids"),
        Hierarchy("memory", tmp_path / "memory/7"),
        Hierarchy("cpu,cpuacct", tmp_path / "cpu,cpuacct/user"),
        Hierarchy("name=systemd", tmp_path / "systemd"),
    ]


def test_version_1_copies_processors_and_memory(tmp_path: Path) -> None:
    (tmp_path / "cpuset.cpus").write_text("0-1")
    (tmp_path / "cpuset.mems").write_text("0")
    (group,) = make([Hierarchy("cpuset", tmp_path)], "nodes/n1")
    assert group == tmp_path / "nodes/n1"
    for each in (group, group.parent):
        assert ((each / "cpuset.cpus").read_text(), (each / "cpuset.mems").read_text()) == ("0-1", "0")


@pytest.mark.parametrize(
    ("handed_down", "expected"),
    [
        # systemd as root in a session: the slice of all users hands down what a session's does not
        ({"": "cpuset cpu io memory pids", "user": "cpu memory pids", "user/session": ""}, "user"),
        ({"": "cpu memory pids", "user": "memory pids", "user/session": ""}, ""),
        ({"": "cpu memory pids", "user": "", "user/session": "cpu memory pids"}, "user/session"),
    ],
)
def test_version_2_goes_where_controllers_are_handed_down(
    tmp_path: Path, handed_down: dict[str, str], expected: str
) -> None:
    for group, names in handed_down.items():
        (tmp_path / "top" / group).mkdir(parents=True, exist_ok=True)
        (tmp_path / "top" / group / "cgroup.subtree_control").write_text(names)
    own = process(tmp_path, "0::/user/session\n", [("/", "top", "cgroup2", "rw,nsdelegate")])
    assert hierarchies(own) == [Hierarchy("", tmp_path / "top" / expected)]


def test_version_2_hands_controllers_on_to_nodes(tmp_path: Path) -> None:
    # what the kernel puts into a new group
    (tmp_path / "nodes").mkdir()
    (tmp_path / "nodes/cgroup.controllers").write_text("cpu memory pids\n")
    (group,) = make([Hierarchy("", tmp_path)], "nodes/n1")
    assert (group.parent / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    assert not (group / "cgroup.subtree_control").exists(), "the kubelet's to write"


@pytest.mark.parametrize(
    ("own", "mounts", "why"),
    [
        ("0::/\n", [("/", "top", "cgroup2", "rw")], "hands cpu, memory, pids down"),
        ("1:name=systemd:/\n0::/\n", [], "not mounted: cpu, memory, pids"),
        ("2:cpu:/\n1:memory:/\n", [("/", "cpu", "cgroup", "rw,cpu")], "not mounted: memory, pids"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, own: str, mounts: list[tuple[str, str, str, str]], why: str
) -> None:
    (tmp_path / "top").mkdir()
    (tmp_path / "top/cgroup.subtree_control").write_text("")
    with pytest.raises(Unsupported, match=why):
        hierarchies(process(tmp_path, own, mounts))


def test_groups_go_with_those_below(tmp_path: Path) -> None:
    (tmp_path / "nodes/n1/pod/container").mkdir(parents=True)
    remove(tmp_path / "nodes")
    assert not (tmp_path / "nodes").exists()
    remove(tmp_path / "nodes")
