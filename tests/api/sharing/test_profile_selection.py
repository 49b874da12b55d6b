"""A node follows the profile of its label, else the cluster's default, else the obvious one."""

import pytest

from tessera.api.sharing.profile import UnknownSharingProfile, choose_profile

SLICES = {"slice-4": "four", "slice-10": "ten"}


@pytest.mark.parametrize(
    ("profiles", "label", "default", "name"),
    [
        (SLICES, "slice-4", "slice-10", "slice-4"),
        (SLICES, "", "slice-10", "slice-10"),
        (SLICES, "", "", ""),
        (SLICES | {"default": "d"}, "", "", "default"),
        ({"slice-4": "four"}, "", "", "slice-4"),
        ({}, "", "", ""),
    ],
)
def test_a_profile_is_chosen(profiles: dict[str, str], label: str, default: str, name: str) -> None:
    chosen = choose_profile(profiles, label, default)
    assert (chosen.name, chosen.text) == (name, profiles.get(name, ""))
    assert chosen.reason


@pytest.mark.parametrize(("label", "default"), [("slice-5", ""), ("", "slice-5"), ("slice-5", "slice-4")])
def test_a_name_that_does_not_exist_is_told_with_those_that_do(label: str, default: str) -> None:
    with pytest.raises(UnknownSharingProfile, match=r'"slice-5".*does not exist.*: slice-10, slice-4'):
        choose_profile(SLICES, label, default)
