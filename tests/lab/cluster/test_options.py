"""`--nodes` names nodes and their cards; what it cannot mean is refused with the part that is wrong."""

import pytest

from tessera_lab.cluster.options import SYSTEMS, parse_nodes


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("4xA100-40GB", [("A100-40GB",) * 4]),
        ("1xA100-40GB,2xH100-80GB", [("A100-40GB",), ("H100-80GB",) * 2]),
        ("1xA30+1xH200", [("A30", "H200")]),
        ("3*1xA30", [("A30",)] * 3),
        ("0", [()]),
    ],
)
def test_a_part_is_a_node(text: str, cards: list[tuple[str, ...]]) -> None:
    assert [each.cards for each in parse_nodes(text)] == cards


def test_nodes_are_numbered_from_one() -> None:
    assert [each.name for each in parse_nodes("1xA30,1xA30")] == ["node-1", "node-2"]


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        ("4xA30@ubuntu22.04", SYSTEMS["ubuntu22.04"].kernel),
        ("2*4xA30@ubuntu22.04:5.15.0-119-generic", "5.15.0-119-generic"),
    ],
)
def test_a_node_may_run_another_system(text: str, kernel: str) -> None:
    first, *others = parse_nodes(f"{text},4xA30")
    assert (first.os_image, first.kernel) == (SYSTEMS["ubuntu22.04"].os_image, kernel)
    assert (others[-1].os_image, others[-1].kernel) == ("", "")


@pytest.mark.parametrize(
    ("text", "architecture", "kernel"),
    [
        ("1xA30@fedora41/arm64", "arm64", "6.11.4-301.fc41.aarch64"),
        ("1xA30@fedora41", "amd64", "6.11.4-301.fc41.x86_64"),
        ("1xA30@debian12/arm64", "arm64", "6.1.0-21-arm64"),
        ("1xA30@/arm64", "arm64", ""),
        ("1xA30@ubuntu22.04/arm64:5.15.0-119-generic", "arm64", "5.15.0-119-generic"),
        ("1xGH200-96GB", "arm64", ""),
    ],
)
def test_a_node_may_be_of_another_architecture(text: str, architecture: str, kernel: str) -> None:
    (node,) = parse_nodes(text)
    assert (node.architecture, node.kernel) == (architecture, kernel)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4xB52",
        "0xA30",
        "4xA100-40GB,",
        "2000*1xA30",
        "65xA30",
        "@rhcos",
        "1xA30@plan9",
        "1xA30@rhcos:a b",
        "1xA30@",
        "1xA30@/riscv64",
        "1xA30@fedora41/",
        "1xA30@a@b",
    ],
)
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_nodes(text)
