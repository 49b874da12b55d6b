"""The sharing profiles that an installation brings."""

import pytest

from tessera.api.sharing.devices import SharingKind
from tessera.api.sharing.profile import choose_profile
from tessera.api.sharing.profile_parser import parse_profile
from tessera.controller.defaults import default_profiles

EXPECTED = {
    "slice-2": (SharingKind.TIME_SLICING, "nvidia.com/gpu.shared", 2),
    "slice-4": (SharingKind.TIME_SLICING, "nvidia.com/gpu.shared", 4),
    "slice-8": (SharingKind.TIME_SLICING, "nvidia.com/gpu.shared", 8),
    "slice-10": (SharingKind.TIME_SLICING, "nvidia.com/gpu.shared", 10),
    "mps-2": (SharingKind.MPS, "nvidia.com/gpu.mps", 2),
    "mps-4": (SharingKind.MPS, "nvidia.com/gpu.mps", 4),
    "mps-8": (SharingKind.MPS, "nvidia.com/gpu.mps", 8),
}


def test_there_are_these() -> None:
    assert list(default_profiles()) == list(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_each_shares_every_whole_card(name: str) -> None:
    profile = parse_profile(default_profiles()[name])
    assert profile.notices == ()
    (block,) = profile.blocks
    (resource,) = block.resources
    assert (block.kind, resource.advertised, resource.replicas) == EXPECTED[name]
    assert block.one_per_request


def test_a_node_without_a_label_keeps_whole_cards() -> None:
    assert choose_profile(default_profiles(), "", "").name == ""
