"""Product names as labels; the table of spellings re-expresses GPU feature discovery's."""

import pytest

from tessera.api.nodes.node_cards import LONGEST, count_label, product_label, sanitise


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a space separated string", "a-space-separated-string"),
        ("some(thing)else", "somethingelse"),
        ("some ( thing )else", "some-thing-else"),
        ("NVIDIA-TITAN-X-(Pascal)", "NVIDIA-TITAN-X-Pascal"),
        (" input  with multiple   spaces   ", "input-with-multiple-spaces"),
        ("some [ / thing / ]else", "some-thing-else"),
        ("some / thing /else", "some-thing-else"),
        ("some-thing.else_new", "some-thing.else_new"),
    ],
)
def test_sanitise(text: str, expected: str) -> None:
    assert sanitise(text) == expected


def test_a_long_product_keeps_its_suffixes() -> None:
    product = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
    value = product_label(product, "MIG", "1g.24gb", "SHARED")
    assert len(value) <= LONGEST
    assert value.startswith("NVIDIA-RTX-PRO-6000-Blackwell")
    assert value.endswith("-MIG-1g.24gb-SHARED")
    assert "--" not in value


def test_the_label_of_a_model_is_legal_however_long_its_name() -> None:
    assert count_label("NVIDIA A100-SXM4-40GB") == "tessera.dev/count.NVIDIA-A100-SXM4-40GB"
    long = count_label("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition of 2026")
    assert len(long.removeprefix("tessera.dev/")) <= LONGEST
    assert long[-1].isalnum()
