"""The record of MPS: others read its cards as a live set, which never shows what the file does not hold."""

from pathlib import Path

import pytest

from tessera.agent.mps.state import MpsState

ONE, OTHER, SHARED = "GPU-1", "GPU-2", "nvidia.com/gpu.shared"


def test_the_set_of_cards_that_others_hold_is_always_that_of_now(tmp_path: Path) -> None:
    state = MpsState(tmp_path / "mps.json")
    cards = state.exclusive.keys()
    state.add_card(ONE, SHARED)
    state.add_card(OTHER, SHARED)
    assert cards == {ONE, OTHER} == MpsState(tmp_path / "mps.json").exclusive.keys()
    state.remove_card(ONE)
    assert cards == {OTHER} == MpsState(tmp_path / "mps.json").exclusive.keys()


def test_a_card_that_cannot_be_recorded_is_in_no_set(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    state = MpsState(folder / "mps.json")
    cards = state.exclusive.keys()
    folder.write_text("no folder")
    with pytest.raises(OSError, match="state"):
        state.add_card(ONE, SHARED)
    assert not cards
    folder.unlink()
    state.add_card(ONE, SHARED)
    assert cards == {ONE}
