"""What became of a layout, for people and for the node's label: one status made of what is said of each card."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

#: Reason of a layout that is in force, and of one that is being worked on.
APPLIED, APPLYING = "LayoutApplied", "LayoutApplying"


class LayoutState(StrEnum):
    """The values of the label ``nvidia.com/mig.config.state``, as NVIDIA's MIG manager writes them."""

    PENDING = "pending"
    REBOOTING = "rebooting"
    SUCCESS = "success"
    FAILED = "failed"


class CardStatus(msgspec.Struct, frozen=True):
    """What is to be said of one card: state, reason as CamelCase, text for people."""

    state: LayoutState
    reason: str
    text: str = ""


class LayoutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said of the node's layout.

    Attributes:
        layout: its name; empty where none is wished, and then there is nothing to tell.
        state: of the node as a whole.
        reason: CamelCase: ``LayoutApplied``, ``LayoutApplying``, ``CardsInUse``, ``LayoutRetrying``, ``LayoutUnknown``,
            ``LayoutImpossible``, ``ResetRequired``, ``Rebooting``, ``NvmlFailed``, ...
        message: for people; names the cards and who is waited for.
    """

    layout: str = ""
    state: LayoutState = LayoutState.PENDING
    reason: str = APPLYING
    message: str = ""


#: Of several cards, whose state is the node's: what needs somebody's attention first.
_ORDER = (LayoutState.REBOOTING, LayoutState.FAILED, LayoutState.PENDING, LayoutState.SUCCESS)


def summarize_cards(layout: str, verdicts: Mapping[str, CardStatus], notices: Iterable[str] = ()) -> LayoutStatus:
    """The node's status.

    Args:
        layout: its name.
        verdicts: by card, for every card that the layout says something about.
        notices: what the layout passes over.
    """
    state = next((each for each in _ORDER if any(v.state is each for v in verdicts.values())), LayoutState.SUCCESS)
    if state is LayoutState.SUCCESS:
        text = "; ".join([f'layout "{layout}" is in force', *notices])
        return LayoutStatus(layout=layout, state=state, reason=APPLIED, message=text)
    open_ = sorted(
        (each for each in verdicts.values() if each.state is not LayoutState.SUCCESS),
        key=lambda each: (_ORDER.index(each.state), each.reason == APPLYING),
    )
    texts = [each.text for each in open_ if each.text] or [f'layout "{layout}" is being applied']
    return LayoutStatus(layout=layout, state=state, reason=open_[0].reason, message="; ".join(dict.fromkeys(texts)))
