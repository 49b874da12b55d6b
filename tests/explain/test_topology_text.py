"""The matrix on an agent's page: bounded, never believed further than it fits, and one sentence for a pod's cards."""

import msgspec
import pytest

from tessera.api.nodes.usage import NETWORK_CARDS, JoinedCard, NodeTopology
from tessera.explain.topology_text import describe_joined, matrix_text


def matrix(*rows: str, cards: int = 3, network: tuple[str, ...] = ()) -> NodeTopology:
    return NodeTopology(
        cards=tuple(JoinedCard(index=2 * n, uuid=f"GPU-{n}") for n in range(cards)), network=network, rows=rows
    )


UNLIKE, SLOWEST = "its 3 cards are not joined alike:", "the slowest pair is joined"
SYS = "over PCIe and the link between the CPUs (SYS)"
MIXED = matrix("NV2 SYS PIX", "SYS NODE", "SYS", "", network=("mlx5_0",))


@pytest.mark.parametrize(
    ("rows", "uuids", "sentence"),
    [
        (("NV12 NV12", "NV12", ""), {"GPU-0", "GPU-1", "GPU-2"}, "its 3 cards are all joined by 12 NVLinks (NV12)"),
        (("NV1 SYS", "SYS", ""), {"GPU-0", "GPU-1"}, "its 2 cards are joined by 1 NVLink (NV1)"),
        (("PIX SYS", "SYS", ""), {"GPU-0", "GPU-1"}, "its 2 cards are joined over PCIe through one bridge (PIX)"),
        (("NV2 SYS", "SYS", ""), {"GPU-0", "GPU-1", "GPU-2"}, f"{UNLIKE} 1 pair NV2, 2 pairs SYS; {SLOWEST} {SYS}"),
        (
            ("NV2 NV4", "NV4", ""),
            {"GPU-0", "GPU-1", "GPU-2"},
            f"{UNLIKE} 2 pairs NV4, 1 pair NV2; {SLOWEST} by 2 NVLinks (NV2)",
        ),
        (("N/A SYS", "SYS", ""), {"GPU-0", "GPU-1"}, "its 2 cards are joined in a way that could not be read"),
        (("NV2 SYS", "SYS", ""), {"GPU-0"}, ""),
        (("NV2 SYS", "SYS", ""), {"GPU-0", "GPU-9"}, ""),
        (("NV2", "SYS"), {"GPU-0", "GPU-1"}, ""),
    ],
)
def test_how_a_pods_cards_are_joined(rows: tuple[str, ...], uuids: set[str], sentence: str) -> None:
    assert describe_joined(matrix(*rows), uuids) == sentence


def test_a_part_keeps_the_cards_indexes_and_the_network_cards() -> None:
    part = MIXED.of_cards({"GPU-0", "GPU-2"})
    assert part.cells() == [[" X ", "SYS", "PIX"], ["SYS", " X ", "SYS"], ["PIX", "SYS", " X "]]
    assert matrix_text(part).splitlines()[:4] == [
        "\tGPU0\tGPU4\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "GPU0\t X \tSYS\tPIX\tN/A\tN/A\t\tN/A",
        "GPU4\tSYS\t X \tSYS\tN/A\tN/A\t\tN/A",
        "NIC0\tPIX\tSYS\t X \t\t\t\t",
    ]
    assert matrix_text(part, visible=True).startswith("\tGPU0\tGPU1\tNIC0\t")


@pytest.mark.parametrize("rows", [(), ("SYS",), ("SYS SYS", "SYS", "", ""), ("SYS SYS SYS", "SYS", "")])
def test_rows_that_do_not_fit_the_cards_say_nothing(rows: tuple[str, ...]) -> None:
    found = matrix(*rows)
    assert found.cells() == []
    assert found.of_cards({"GPU-0", "GPU-1"}) == NodeTopology()
    assert matrix_text(found).splitlines()[1] == "GPU0\tN/A\tN/A\tN/A\tN/A\tN/A\t\tN/A"


def test_a_word_that_nvidia_does_not_know_is_not_shown() -> None:
    assert matrix("\x1b[31mSYS NV99999", "NV0", "").cells()[0] == [" X ", "N/A", "N/A"]


@pytest.mark.parametrize(
    "page",
    [
        {"cards": [{"index": 0, "uuid": "x" * 5000}]},
        {"network": ["mlx5_0"] * (NETWORK_CARDS + 1)},
        {"rows": ["SYS " * 5000]},
        {"cards": [{"index": 0, "uuid": "x", "numa": -1}]},
    ],
)
def test_a_page_beyond_the_bounds_does_not_decode(page: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(page, NodeTopology)
