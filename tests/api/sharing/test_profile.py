"""Patterns name whole texts; a star stands for anything, everything else for itself."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.sharing.profile import ResourcePattern


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("1g.24gb", "1g.24gb", True),
        ("1g.24gb", "2g.48gb", False),
        ("1g.24gb", "1g.24gb-me", False),
        ("1g.24gb", "1g.24gb+me.all", False),
        ("1g.24gb", "x1g.24gb", False),
        ("1g.24gb-me", "1g.24gb-me", True),
        ("1g.24gb+me.all", "1g.24gb+me.all", True),
        ("*", "1g.24gb-me", True),
        ("1g.*", "1g.24gb", True),
        ("1g.*", "2g.48gb", False),
        ("1g.24gb+gfx", "1g.24gb+gfx", True),
        ("1g.24gb", "1g.24gb+gfx", False),
        ("1g.24gb+gfx", "1g.24gb", False),
        ("1g.24gb+gfx", "1g.24gb-me", False),
        ("2g.48gb+gfx", "2g.48gb+gfx", True),
        ("2g.48gb", "2g.48gb+gfx", False),
        ("*gb", "1g.24gb", True),
        ("*gb", "1g.24gb-me", False),
        ("1g.24gb", "1gx24gb", False),  # a dot is a dot
        ("*A100*40GB*", "NVIDIA A100-SXM4-40GB", True),
    ],
)
def test_a_pattern_matches_the_whole_text(pattern: str, text: str, matches: bool) -> None:
    assert ResourcePattern(pattern, "nvidia.com/x").matches(text) is matches


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_a_star_stands_for_anything(pattern: str, text: str) -> None:
    expected = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text) is not None
    assert ResourcePattern(pattern, "nvidia.com/x").matches(text) is expected
