"""Names of models and bounds on the compute capability."""

import pytest

from tessera.offers import GIB, CapabilityBound, Requirements, is_product_name


@pytest.mark.parametrize(
    ("wanted", "product", "expected"),
    [
        ("A100", "NVIDIA A100-SXM4-40GB", True),
        ("a100", "NVIDIA A100 80GB PCIe", True),
        ("A100-40GB", "NVIDIA A100-SXM4-40GB", True),
        ("A100-80GB", "NVIDIA A100-SXM4-40GB", False),
        ("A10", "NVIDIA A100-SXM4-40GB", False),
        ("A100", "NVIDIA A10", False),
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB", True),
        ("SXM4 A100", "NVIDIA A100-SXM4-40GB", False),
        ("H100", "NVIDIA H100 NVL", True),
        ("RTX PRO 6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", True),
        ("-", "NVIDIA A10", False),
    ],
)
def test_a_model_is_known_by_whole_words_in_order(wanted: str, product: str, expected: bool) -> None:
    assert is_product_name(wanted, product) is expected


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        (">=", [False, True, True]),
        (">", [False, False, True]),
        ("<=", [True, True, False]),
        ("<", [True, False, False]),
        ("==", [False, True, False]),
        ("=", [False, True, False]),
        ("!=", [True, False, True]),
    ],
)
def test_bounds(sign: str, expected: list[bool]) -> None:
    bound = CapabilityBound(sign, (8, 6))
    assert [bound.admits(capability) for capability in ((8, 0), (8, 6), (10, 0))] == expected


def test_in_words() -> None:
    asked = Requirements(
        memory=10 * GIB, nvlink=True, capability=(CapabilityBound(">=", (8, 0)),), products=("A100", "H100")
    )
    assert str(asked) == "memory 10Gi, compute capability >=8.0, product A100 or H100, NVLink"
    assert str(Requirements()) == ""
