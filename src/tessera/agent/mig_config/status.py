"""The status of a MIG layout, for people and for the node's label: summarizes the status of the node's cards."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

#: Reasons of a layout that is in force, and of one that is being applied.
APPLIED, APPLYING = "LayoutApplied", "LayoutApplying"
#: Reason of a card that had the layout when it could be read last.
UNREADABLE = "CardUnreadable"


class LayoutState(StrEnum):
    """The values of the label ``nvidia.com/mig.config.state``, as NVIDIA's MIG manager writes them."""

    PENDING = "pending"
    REBOOTING = "rebooting"
    SUCCESS = "success"
    FAILED = "failed"


class CardStatus(msgspec.Struct, frozen=True):
    """The status of one card: state, reason in CamelCase, text for people."""

    state: LayoutState
    reason: str
    text: str = ""


class LayoutStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of the node's layout.

    Attributes:
        layout: its name; empty if none is desired, and then nothing is reported.
        state: the state of the node as a whole.
        reason: CamelCase: ``LayoutApplied``, ``LayoutApplying``, ``CardsInUse``, ``LayoutRetrying``, ``LayoutUnknown``,
            ``LayoutImpossible``, ``ResetRequired``, ``Rebooting``, ``NvmlFailed``, ...
        message: for people; names the cards, and the pods that block them.
    """

    layout: str = ""
    state: LayoutState = LayoutState.PENDING
    reason: str = APPLYING
    message: str = ""


#: The states by urgency: the most urgent state of any card is the node's.
_ORDER = (LayoutState.REBOOTING, LayoutState.FAILED, LayoutState.PENDING, LayoutState.SUCCESS)


def summarize_cards(layout: str, cards: Mapping[str, CardStatus], notices: Iterable[str] = ()) -> LayoutStatus:
    """Returns the node's status.

    Args:
        layout: name of the layout.
        cards: the status of every card with a goal, by card.
        notices: parts of the layout that do not apply to this node.
    """
    state = next((each for each in _ORDER if any(card.state is each for card in cards.values())), LayoutState.SUCCESS)
    if state is LayoutState.SUCCESS:
        unread = [each.text for each in cards.values() if each.reason == UNREADABLE]
        text = "; ".join([f'layout "{layout}" is in force', *unread, *notices])
        return LayoutStatus(layout=layout, state=state, reason=APPLIED, message=text)
    unfinished = sorted(
        (each for each in cards.values() if each.state is not LayoutState.SUCCESS),
        key=lambda each: (_ORDER.index(each.state), each.reason == APPLYING),
    )
    texts = [each.text for each in unfinished if each.text] or [f'layout "{layout}" is being applied']
    return LayoutStatus(
        layout=layout, state=state, reason=unfinished[0].reason, message="; ".join(dict.fromkeys(texts))
    )
