# SPDX-License-Identifier: Apache-2.0
"""The text of `nvidia-smi topo -m`: real shapes of it, and texts that are broken."""

from pathlib import Path

import pytest

from koordpy.agent.backends.topo_backend import read_topo
from koordpy.agent.gpu_facts import BackendError
from koordpy.agent.link_matrix import link_matrix

SAMPLES = Path(__file__).parent / "topo"


def matrix(name: str) -> list[list[str]]:
    backend = read_topo((SAMPLES / name).read_text(), name=name)
    return [list(row) for row in link_matrix(backend, backend.gpus()).classes]


def test_a_dgx_1_has_its_cube_of_nvlinks() -> None:
    rows = matrix("dgx-1.txt")
    assert rows[0] == ["X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"]
    assert all(sum(int(cell[2:]) for cell in row if cell.startswith("NV")) == 6 for row in rows)


@pytest.mark.parametrize(("name", "link"), [("dgx-a100.txt", "NV12"), ("hgx-h100.txt", "NV18")])
def test_a_switched_machine_links_all_pairs_alike(name: str, link: str) -> None:
    rows = matrix(name)
    assert len(rows) == 8
    assert all(cell == ("X" if i == j else link) for i, row in enumerate(rows) for j, cell in enumerate(row))


def test_pcie_boxes_show_switches_and_sockets() -> None:
    rows = matrix("pcie-two-switches.txt")
    assert rows[0] == ["X", "PIX", "PXB", "PXB", "SYS", "SYS", "SYS", "SYS"]
    assert rows[7] == ["SYS", "SYS", "SYS", "SYS", "PXB", "PXB", "PIX", "X"]


def test_blanks_in_place_of_tabs_and_network_cards_in_between() -> None:
    assert matrix("l40s.txt")[2] == ["SYS", "SYS", "X", "NODE"]


def test_the_word_of_old_drivers_for_another_socket() -> None:
    assert matrix("kepler.txt")[0] == ["X", "PIX", "SYS", "SYS"]


def test_a_bridge_joins_two_of_three_cards() -> None:
    assert matrix("consumer-bridge.txt") == [["X", "NV4", "PHB"], ["NV4", "X", "PHB"], ["PHB", "PHB", "X"]]


def test_one_gpu_has_a_matrix_of_one_cell() -> None:
    assert matrix("single.txt") == [["X"]]


@pytest.mark.parametrize(
    ("name", "numa"),
    [("dgx-a100.txt", [3, 3, 1, 1, 7, 7, 5, 5]), ("l40s.txt", [0, 0, 1, 1]), ("dgx-1.txt", [None] * 8)],
)
def test_numa_nodes_are_read_where_the_column_is_there(name: str, numa: list[int | None]) -> None:
    assert [gpu.numa for gpu in read_topo((SAMPLES / name).read_text(), name=name).gpus()] == numa


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "t: no line with the titles of the GPU columns (GPU0 GPU1 ...)"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNVX\nGPU1\tNV1\t X \n", "t: line 2, column 10: 'NVX': not a link class"),
        ("\tGPU0\tGPU1\nGPU0\tPIX\tPIX\nGPU1\tPIX\t X \n", "t: line 2, column 6: 'PIX': expected X"),
        ("\tGPU0\tGPU1\nGPU0\t X \tX\nGPU1\tPIX\t X \n", "t: line 2, column 10: 'X': not a link class"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\n", "t: GPU1 has a column and no row"),
        ("\tGPU0\tGPU1\nGPU0\t X \n", "t: line 2: 1 words for 2 columns"),
        ("\tGPU0\tGPU0\nGPU0\t X \tPIX\n", "t: line 1: duplicate GPU column"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU0\t X \tPIX\n", "t: line 3: duplicate row GPU0"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU2\t X \tPIX\n", "t: line 3: GPU2 has no column"),
    ],
)
def test_what_cannot_be_read_is_named_by_line_and_column(text: str, fault: str) -> None:
    with pytest.raises(BackendError) as raised:
        read_topo(text, name="t")
    assert str(raised.value) == fault


def test_colours_and_carriage_returns_do_not_matter() -> None:
    text = "\x1b[4m\tGPU0\tGPU1\x1b[0m\r\nGPU0\t X \tNV4\r\nGPU1\tNV4\t X \r\n"
    backend = read_topo(text, name="t")
    assert link_matrix(backend, backend.gpus()).classes == (("X", "NV4"), ("NV4", "X"))
