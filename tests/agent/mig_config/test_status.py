"""The status of a node summarizes the status of its cards."""

from __future__ import annotations

import pytest

from tessera.agent.mig_config.events import CardStatus, LayoutState, LayoutStatus, summarize_cards

GOOD = CardStatus(LayoutState.SUCCESS, "LayoutApplied")
BUSY = CardStatus(LayoutState.PENDING, "CardsInUse", "GPU 0: pod a/b")
WORKING = CardStatus(LayoutState.PENDING, "LayoutApplying")
BROKEN = CardStatus(LayoutState.FAILED, "NvmlFailed", "GPU 1: tried 3 times")
REBOOTING = CardStatus(LayoutState.REBOOTING, "Rebooting", "GPU 2: a reset")


@pytest.mark.parametrize(
    ("verdicts", "state", "reason", "message"),
    [
        ([GOOD, GOOD], "success", "LayoutApplied", 'layout "x" is in force'),
        ([], "success", "LayoutApplied", 'layout "x" is in force'),
        ([GOOD, WORKING], "pending", "LayoutApplying", 'layout "x" is being applied'),
        ([WORKING, BUSY], "pending", "CardsInUse", "GPU 0: pod a/b"),
        ([BUSY, BROKEN, GOOD], "failed", "NvmlFailed", "GPU 1: tried 3 times; GPU 0: pod a/b"),
        ([BROKEN, REBOOTING], "rebooting", "Rebooting", "GPU 2: a reset; GPU 1: tried 3 times"),
    ],
)
def test_the_status_of_the_node_is_that_of_the_card_that_needs_attention_most(
    verdicts: list[CardStatus], state: str, reason: str, message: str
) -> None:
    found = summarize_cards("x", {str(number): each for number, each in enumerate(verdicts)})
    assert found == LayoutStatus(layout="x", state=LayoutState(state), reason=reason, message=message)


def test_success_names_the_cards_that_the_layout_skips() -> None:
    assert (
        summarize_cards("x", {"a": GOOD}, ["GPU 1: has no MIG"]).message == 'layout "x" is in force; GPU 1: has no MIG'
    )
