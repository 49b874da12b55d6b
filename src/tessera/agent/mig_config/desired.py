"""What a wished layout means for each card of the node, judged as a whole before any card is touched.

Rules:

- ``dynamic`` gives every card that has MIG to slices on demand. A layout whose name begins with ``dynamic-`` does so
  with the cards that it leaves in MIG mode without instances; its other cards are static;
- a layout that no file has may be one of those that exist without a file (``all-1g.5gb``, ``7x1g.5gb``);
- a layout that turns MIG on is refused on a node of which no card has MIG; where it is only the cluster's default,
  such a node has none;
- one card that cannot hold what its entry wants, and the whole layout is refused: half a layout is none;
- a card whose table nobody knows while MIG mode is off cannot be judged beforehand; it is judged when the mode is on;
- cards that the layout does not name, and all cards where no layout is wished, stay as they are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from tessera.agent.base.desired_config import DesiredLayout
from tessera.agent.inventory.card_ownership import CardOwner
from tessera.agent.inventory.gpu_inventory import GpuState, mig_cards_of
from tessera.agent.mig_config.events import CardGoal
from tessera.api.documents import FileRefused
from tessera.api.mig_layouts.generated import BALANCED, ENABLED, CardKind, generated_layouts, spelled_layout
from tessera.api.mig_layouts.layouts_file import CardTarget, LayoutEntry, targets_of
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL
from tessera.api.sharing.profile_selection import PROFILE_LABEL
from tessera.mig.layout_planning import Infeasible, plan_layout

#: Layouts whose name begins so leave cards to slices on demand.
DYNAMIC_PREFIX = f"{MIG_CONFIG_DYNAMIC}-"
#: In names of layouts that exist without a file: ``all-1g.5gb``, ``7x1g.5gb``.
_PROFILE = re.compile(r"[0-9]g\.[0-9]+gb")


class ResolvedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What shall become of the node's cards.

    Attributes:
        layout: its name; empty where none is wished.
        goals: by card; a card that is not here stays as it is.
        roles: who shall have each card, for every card of the node.
        notices: what the layout passes over, for people.
    """

    layout: str
    goals: Mapping[str, CardGoal]
    roles: Mapping[str, CardOwner]
    notices: tuple[str, ...] = ()


class RejectedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Why a layout is not followed; no card is touched.

    Attributes:
        layout: its name.
        reason: CamelCase: ``LayoutUnknown``, ``LayoutImpossible``, or the wish's own problem.
        text: the object, what is wrong and what to do, for people.
    """

    layout: str
    reason: str
    text: str


def resolve_layout(wish: DesiredLayout, cards: Sequence[GpuState]) -> ResolvedLayout | RejectedLayout:
    """What a wish means for these cards, or why it cannot be had.

    Args:
        wish: the node's.
        cards: all of the node, as they were read.
    """
    no_mig = _wants_mig(wish) and bool(cards) and not any(card.info.mig_capable for card in cards)
    if not wish.name or (no_mig and wish.is_default):
        return ResolvedLayout(layout="", goals={}, roles={card.uuid: CardOwner.STATIC for card in cards})
    if no_mig:
        return RejectedLayout(layout=wish.name, reason="LayoutImpossible", text=_no_mig(wish.name, cards))
    if wish.name == MIG_CONFIG_DYNAMIC:
        return _dynamic(wish.name, cards)
    entries = wish.entries if wish.entries is not None else _without_file(wish.name, cards)
    if entries is None:
        return _unknown(wish, cards)
    try:
        found = targets_of(entries, mig_cards_of(cards))
    except FileRefused as refused:
        return RejectedLayout(layout=wish.name, reason="LayoutImpossible", text=_sentence(wish.name, refused.problems))
    by_uuid = {card.uuid: card for card in cards}
    conflicts = list(_conflicts((target, by_uuid[target.card.uuid]) for target in found.targets))
    if conflicts:
        return RejectedLayout(layout=wish.name, reason="LayoutImpossible", text=_sentence(wish.name, conflicts))
    goals = {target.card.uuid: _goal(wish.name, target) for target in found.targets}
    roles = {card.uuid: goals[card.uuid].role if card.uuid in goals else CardOwner.STATIC for card in cards}
    notices = (*map(str, found.notices), *([wish.problem] if wish.problem is not None else []))
    return ResolvedLayout(layout=wish.name, goals=goals, roles=roles, notices=notices)


def _wants_mig(wish: DesiredLayout) -> bool:
    """Tells if a layout turns MIG on, by its file or by its name, since the cards are not known."""
    if wish.entries is not None:
        return all(entry.mig_enabled for entry in wish.entries)
    return wish.name in {MIG_CONFIG_DYNAMIC, ENABLED, BALANCED} or _PROFILE.search(wish.name) is not None


def _no_mig(name: str, cards: Sequence[GpuState]) -> str:
    products = list(dict.fromkeys(card.info.name for card in cards))
    have = "has" if len(products) == 1 else "have"
    return (
        f'layout "{name}" cannot be had on this node: {", ".join(products)} {have} no MIG; remove the label '
        f"{MIG_CONFIG_LABEL}. The cards are offered whole, or shared (label {PROFILE_LABEL})"
    )


def _dynamic(name: str, cards: Iterable[GpuState]) -> ResolvedLayout:
    roles = {card.uuid: CardOwner.ON_DEMAND if card.info.mig_capable else CardOwner.STATIC for card in cards}
    goal = CardGoal(role=CardOwner.ON_DEMAND, mig_enabled=True)
    goals = {uuid: goal for uuid, role in roles.items() if role is CardOwner.ON_DEMAND}
    return ResolvedLayout(layout=name, goals=goals, roles=roles)


def _goal(name: str, target: CardTarget) -> CardGoal:
    free = name.startswith(DYNAMIC_PREFIX) and target.mig_enabled and not target.counts
    return CardGoal(
        role=CardOwner.ON_DEMAND if free else CardOwner.STATIC,
        mig_enabled=target.mig_enabled,
        counts=dict(target.counts),
        path=target.path,
    )


def _conflicts(cards: Iterable[tuple[CardTarget, GpuState]]) -> Iterator[str]:
    """What no card can hold of its part: each conflict once, with all cards of which it is true."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for target, card in cards:
        if reason := _conflict(target, card):
            found.setdefault((target.path, card.info.name, reason), []).append(card.info.index)
    for (path, product, reason), indexes in found.items():
        where = f"{path}.mig-devices: " if path else ""
        yield f"{where}GPU {', '.join(map(str, sorted(indexes)))} ({product}): {reason}"


def _conflict(target: CardTarget, card: GpuState) -> str | None:
    """Why a card cannot hold its part; ``None`` if it can, or if nobody can know before its MIG mode is on."""
    if card.geometry is None or not target.counts:
        return None
    plan = plan_layout(card.geometry, target.counts)
    # The table is called after the model before MIG mode is on and after the product from then on.
    return plan.reason.removeprefix(f"{card.geometry.family}: ") if isinstance(plan, Infeasible) else None


def _without_file(name: str, cards: Iterable[GpuState]) -> tuple[LayoutEntry, ...] | None:
    """A layout that exists without a file: one that is generated, or one whose name says it."""
    kinds = _kinds(cards)
    return generated_layouts(kinds).get(name) or spelled_layout(name, kinds)


def _kinds(cards: Iterable[GpuState]) -> list[CardKind]:
    kinds = {
        card.info.pci_device_id: CardKind(int(card.info.pci_device_id, 16), card.geometry)
        for card in cards
        if card.geometry is not None
    }
    return list(kinds.values())


def _unknown(wish: DesiredLayout, cards: Iterable[GpuState]) -> RejectedLayout:
    if wish.problem is not None:
        return RejectedLayout(layout=wish.name, reason=wish.problem_reason or "LayoutUnknown", text=wish.problem)
    names = [MIG_CONFIG_DYNAMIC, *generated_layouts(_kinds(cards))]
    close = get_close_matches(wish.name[:63], [*names, wish.closest], n=1, cutoff=0.6)
    text = (
        f'layout "{wish.name}" is not known: no file of layouts has it, and it is none of those that this node has'
        f" without a file: {', '.join(names)}, or counts such as 7x1g.5gb;"
        + (f' did you mean "{close[0]}"?' if close else "")
        + f" correct the label {MIG_CONFIG_LABEL}, or add the layout to the file"
    )
    return RejectedLayout(layout=wish.name, reason="LayoutUnknown", text=text)


def _sentence(name: str, conflicts: Iterable[object]) -> str:
    listed = "; ".join(dict.fromkeys(map(str, conflicts)))
    return f'layout "{name}" cannot be had on this node, no card is touched: {listed}'
