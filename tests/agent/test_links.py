# SPDX-License-Identifier: Apache-2.0
"""From facts to link classes, by machines that a YAML file describes."""

import json
import random
import re

import pytest

from koordpy.agent.backends.file_backend import FakeBackend, read_fake
from koordpy.agent.gpu_facts import BackendError
from koordpy.agent.link_matrix import LinkMatrix, link_matrix
from koordpy.devices.gpu.gpu_links import describe_links, read_described, read_links


def machine(text: str) -> FakeBackend:
    return read_fake(text, name="m.yaml")


def links(text: str) -> LinkMatrix:
    backend = machine(text)
    return link_matrix(backend, backend.gpus())


def test_a_fabric_gives_a_pair_the_smaller_number_of_links_and_says_so() -> None:
    found = links("gpus: 3\nfabric: [18, 18, 12]")
    assert found.classes == (
        ("X", "NV18+SYS", "NV12+SYS"),
        ("NV18+SYS", "X", "NV12+SYS"),
        ("NV12+SYS", "NV12+SYS", "X"),
    )
    assert found.degraded == ("GPU-2: 12 of 18 links to the fabric are active",)


def test_links_seen_from_one_side_only_do_not_count_and_are_reported() -> None:
    found = links("gpus: 2\nlinks: [[X, NV4+PHB], [PHB, X]]")
    assert found.classes == (("X", "PHB"), ("PHB", "X"))
    assert found.degraded == ("GPU-0 - GPU-1: 4 NVLinks one way, 0 the other",)


def test_without_peer_access_data_goes_through_the_host() -> None:
    assert links("gpus: 2\nlinks: [[X, HOST], [HOST, X]]").classes[0] == ("X", "HOST")
    assert links("gpus: 2\nlinks: [[X, HOSTPIX], [HOSTPIX, X]]").classes[0] == ("X", "HOSTPIX")


def test_a_gpu_cut_into_instances_has_no_links() -> None:
    found = links("gpus: [{}, {mig: true}, {}]\nfabric: 4")
    assert found.classes[0] == ("X", "HOST", "NV4+SYS")


def test_rows_stand_in_the_order_of_minors_whatever_the_order_of_the_driver() -> None:
    text = """
gpus: [{uuid: a, minor: 2}, {uuid: b, minor: 0}, {uuid: c, minor: 1}]
links: [[X, NV1, PIX], [NV1, X, SYS], [PIX, SYS, X]]
"""
    found = links(text)
    assert found.keys == ("b", "c", "a")
    assert found.classes == (("X", "SYS", "NV1"), ("SYS", "X", "PIX"), ("NV1", "PIX", "X"))


def test_a_vanished_gpu_keeps_the_cells_it_had() -> None:
    backend = machine("gpus: 3\nfabric: 4")
    before = link_matrix(backend, backend.gpus())
    after = link_matrix(backend, backend.gpus(), present=["GPU-0", "GPU-1"], before=before.cells())
    assert after.classes == before.classes


def test_links_in_trouble_fall_back_to_the_pcie_path() -> None:
    backend = machine("gpus: 3\nlinks: [[X, NV2+PIX, PIX], [NV2+PIX, X, PIX], [PIX, PIX, X]]")
    found = link_matrix(backend, backend.gpus(), without_nvlink=["GPU-1"])
    assert found.classes[0] == ("X", "PIX", "PIX")
    assert found.degraded == ("GPU-1: NVLink errors",)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("gpus: 2\nlinks: [[X, NV1]]", "m.yaml: links: must be 2 rows of 2 cells"),
        ("gpus: 2\nlinks: [[X, NV0], [NV1, X]]", "m.yaml: links[0][1]: 'NV0' is not a link class"),
        ("gpus: 2\nlinks: [[PIX, PIX], [PIX, X]]", "m.yaml: links[0][0]: 'PIX' is not a link class"),
        ("gpus: 2\nfabric: [1]", "m.yaml: fabric: must be 2 numbers"),
        ("gpus: [{uid: x}]", "m.yaml: gpus[0].uid: unknown field, did you mean uuid?"),
    ],
)
def test_a_machine_that_cannot_be_is_refused_by_field(text: str, fault: str) -> None:
    with pytest.raises(BackendError) as raised:
        machine(text)
    assert str(raised.value) == fault


IDS = ("GPU-a1", "GPU-b1-a1", "GPU-0", "GPU-3", "GPU-x_y", "", "GPU-dead-beef", "GPU-" + "f" * 60)


@pytest.mark.parametrize("seed", range(40))
def test_described_links_are_read_back_whatever_the_ids_look_like(seed: int) -> None:
    """A GPU is left out only if its minor is the last part of another GPU's id, and its own last part will not do."""
    dice = random.Random(seed)
    size = dice.randint(1, 6)
    ids = dice.sample(IDS, size)
    minors = sorted(dice.sample(range(8), size))
    classes = [["X"] * size for _ in range(size)]
    for i in range(size):
        for j in range(i):
            classes[i][j] = classes[j][i] = dice.choice(("NV4", "NV18+NODE", "PIX", "SYS", "HOST", "HOSTPIX"))
    given = describe_links(classes, prefix="GSOC_ID_", minors=minors, ids=ids)
    assert all(re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", key) for key in given)
    read, faults = read_described(given, prefix="GSOC_ID_", minors=minors, ids=ids)
    assert not faults
    tails = {one.rpartition("-")[2] for one in ids if one}
    nameless = {i for i, one in enumerate(ids) if str(minors[i]) in tails and one != f"GPU-{minors[i]}"}
    whole = read_links(json.dumps(classes), size)
    for i in range(size):
        for j in range(size):
            found = read[i][j] if read is not None else None
            assert found == whole[i][j] or (found is None and {i, j} & nameless)
