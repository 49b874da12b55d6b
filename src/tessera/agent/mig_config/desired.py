"""Resolves a desired layout into a goal for each card of the node. Pure.

The whole layout is checked before any card is touched.

Rules:

- ``dynamic`` gives every card that has MIG to slices on demand. A layout whose name begins with ``dynamic-`` does so
  with the cards that it leaves in MIG mode without instances; its other cards are static.
- A layout without a file may be one of the generated ones (``all-1g.5gb``, ``7x1g.5gb``). So may one whose filters
  in the file select no card of the node: the file was written for other models.
- A layout that turns MIG on is rejected on a node without a card that has MIG. If it is only the cluster's default,
  such a node has no layout.
- If one card cannot hold the instances of its entry, the whole layout is rejected.
- A card whose table of profiles is unknown while MIG mode is off is checked once the mode is on.
- Cards that the layout does not name, and all cards where no layout is desired, stay as they are.
- Where ResourceClaims get whole cards, they get every card that would be static and is not in MIG mode. A node without
  MIG may be labelled ``dynamic`` there: it has nothing to cut. Cards that the sharing profile divides are given in
  shares. If the profile does not suit the cards, all of them stay static, where it is reported.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from tessera.agent.base.desired_config import DesiredLayout
from tessera.agent.inventory.card_ownership import CardOwner, CardShares
from tessera.agent.inventory.gpu_inventory import GpuState, mig_cards_of, sharing_gpus
from tessera.agent.mig_config.events import CardGoal
from tessera.api.mig_layouts.generated import BALANCED, ENABLED, LayoutCardModel, generated_layouts, make_named_layout
from tessera.api.mig_layouts.layouts_file import CardTarget, LayoutEntry, resolve_targets
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL
from tessera.api.problems import FileRefused
from tessera.api.sharing.advertisement import make_advertisement
from tessera.api.sharing.devices import SHARING_RULES, SharingKind
from tessera.api.sharing.profile import PROFILE_LABEL, MigStrategy, SharingProfile
from tessera.limits.nodes import CARD_SLOTS
from tessera.mig.layout_planning import Infeasible, plan_layout

#: Layouts with this prefix leave cards to slices on demand.
DYNAMIC_PREFIX = f"{MIG_CONFIG_DYNAMIC}-"
#: A profile in the name of a layout that exists without a file: ``all-1g.5gb``, ``7x1g.5gb``.
_PROFILE = re.compile(r"[0-9]g\.[0-9]+gb")


class ResolvedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout as goals for the node's cards.

    Attributes:
        layout: its name; empty if none is desired.
        goals: by card; a card without a goal stays as it is.
        owners: the side that must have each card, for every card of the node.
        shares: how ResourceClaims get a card that is divided.
        notices: parts of the layout that do not apply to this node, for people.
    """

    layout: str
    goals: Mapping[str, CardGoal]
    owners: Mapping[str, CardOwner]
    shares: Mapping[str, CardShares] = {}
    notices: tuple[str, ...] = ()


class RejectedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that is rejected; no card is touched.

    Attributes:
        layout: its name.
        reason: CamelCase: ``LayoutUnknown``, ``LayoutImpossible``, or the problem of the desired layout.
        text: for people: the object, the mistake and the next step.
    """

    layout: str
    reason: str
    text: str


def resolve_layout(desired: DesiredLayout, cards: Sequence[GpuState]) -> ResolvedLayout | RejectedLayout:
    """Resolves a layout for these cards, or returns why they cannot have it.

    Args:
        desired: the layout.
        cards: all cards of the node.
    """
    found = _resolve(desired, cards)
    if isinstance(found, RejectedLayout) or not desired.whole_by_claims:
        return found
    shares = _divide([card for card in cards if _stays_whole(card, found)], desired.sharing)
    owners = {uuid: CardOwner.CLAIMS if each is None else CardOwner.SHARES for uuid, each in shares.items()}
    goals = {uuid: CardGoal(owner=owner, mig_enabled=False) for uuid, owner in owners.items()}
    return msgspec.structs.replace(
        found,
        goals={**found.goals, **goals},
        owners={**found.owners, **owners},
        shares={uuid: each for uuid, each in shares.items() if each is not None},
    )


def _divide(cards: Sequence[GpuState], profile: SharingProfile | None) -> Mapping[str, CardShares | None]:
    """Returns how each card is divided, None for one that stays whole; no card if the profile does not suit them."""
    if profile is None:
        return {card.uuid: None for card in cards}
    try:
        offer = make_advertisement(sharing_gpus(cards), profile, MigStrategy.NONE)
    except FileRefused:
        return {}
    devices = {each.gpu: each for resource in offer.resources.values() for each in resource.devices}
    shared = [(card, devices[card.uuid]) for card in cards if devices[card.uuid].shared]
    if any(each.replicas > _most_shares(card, each.kind) for card, each in shared):
        return {}
    return {
        uuid: CardShares(each.kind, min(each.replicas, int(CARD_SLOTS))) if each.shared else None
        for uuid, each in devices.items()
    }


def _most_shares(card: GpuState, kind: SharingKind) -> int:
    """Returns the number of shares that a card can have; the static side says what is wrong with more."""
    clients = SHARING_RULES[kind].clients if kind in SHARING_RULES else None
    return card.info.memory_mib if clients is None else clients.of(card.info.compute_capability)


def _stays_whole(card: GpuState, layout: ResolvedLayout) -> bool:
    goal = layout.goals.get(card.uuid)
    off = not card.info.mig_enabled and not card.info.mig_pending
    return off and layout.owners[card.uuid] is CardOwner.STATIC and (goal is None or not goal.mig_enabled)


def _resolve(desired: DesiredLayout, cards: Sequence[GpuState]) -> ResolvedLayout | RejectedLayout:
    no_mig = _turns_mig_on(desired) and bool(cards) and not any(card.info.mig_capable for card in cards)
    if not desired.name or (no_mig and (desired.is_default or desired.whole_by_claims)):
        return ResolvedLayout(layout="", goals={}, owners={card.uuid: CardOwner.STATIC for card in cards})
    if no_mig:
        return RejectedLayout(layout=desired.name, reason="LayoutImpossible", text=_no_mig_text(desired.name, cards))
    if desired.name == MIG_CONFIG_DYNAMIC:
        return _resolve_dynamic(desired.name, cards)
    entries = desired.entries if desired.entries is not None else _built_in_layout(desired.name, cards)
    if entries is None:
        return _reject_unknown(desired, cards)
    if _is_for_other_models(entries, cards):
        entries = _built_in_layout(desired.name, cards) or entries
    try:
        found = resolve_targets(entries, mig_cards_of(cards))
    except FileRefused as refused:
        return RejectedLayout(
            layout=desired.name, reason="LayoutImpossible", text=_rejection_text(desired.name, refused.problems)
        )
    by_uuid = {card.uuid: card for card in cards}
    conflicts = list(_find_conflicts((target, by_uuid[target.card.uuid]) for target in found.targets))
    if conflicts:
        return RejectedLayout(
            layout=desired.name, reason="LayoutImpossible", text=_rejection_text(desired.name, conflicts)
        )
    goals = {target.card.uuid: _goal_of(desired.name, target) for target in found.targets}
    owners = {card.uuid: goals[card.uuid].owner if card.uuid in goals else CardOwner.STATIC for card in cards}
    notices = (*map(str, found.notices), *([desired.problem] if desired.problem is not None else []))
    return ResolvedLayout(layout=desired.name, goals=goals, owners=owners, notices=notices)


def _turns_mig_on(desired: DesiredLayout) -> bool:
    """True if a layout turns MIG on, by its file or by its name."""
    if desired.entries is not None:
        return all(entry.mig_enabled for entry in desired.entries)
    return desired.name in {MIG_CONFIG_DYNAMIC, ENABLED, BALANCED} or _PROFILE.search(desired.name) is not None


def _no_mig_text(name: str, cards: Sequence[GpuState]) -> str:
    products = list(dict.fromkeys(card.info.name for card in cards))
    have = "has" if len(products) == 1 else "have"
    return (
        f'layout "{name}" does not fit this node: {", ".join(products)} {have} no MIG; remove the label '
        f"{MIG_CONFIG_LABEL}. The cards are offered whole, or shared (label {PROFILE_LABEL})"
    )


def _resolve_dynamic(name: str, cards: Iterable[GpuState]) -> ResolvedLayout:
    owners = {card.uuid: CardOwner.ON_DEMAND if card.info.mig_capable else CardOwner.STATIC for card in cards}
    goal = CardGoal(owner=CardOwner.ON_DEMAND, mig_enabled=True)
    goals = {uuid: goal for uuid, owner in owners.items() if owner is CardOwner.ON_DEMAND}
    return ResolvedLayout(layout=name, goals=goals, owners=owners)


def _goal_of(name: str, target: CardTarget) -> CardGoal:
    on_demand = name.startswith(DYNAMIC_PREFIX) and target.mig_enabled and not target.counts
    return CardGoal(
        owner=CardOwner.ON_DEMAND if on_demand else CardOwner.STATIC,
        mig_enabled=target.mig_enabled,
        counts=dict(target.counts),
        path=target.path,
    )


def _find_conflicts(cards: Iterable[tuple[CardTarget, GpuState]]) -> Iterator[str]:
    """The parts of the layout that cards cannot hold: each conflict once, with all its cards."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for target, card in cards:
        if reason := _find_conflict(target, card):
            found.setdefault((target.path, card.info.name, reason), []).append(card.info.index)
    for (path, product, reason), indexes in found.items():
        where = f"{path}.mig-devices: " if path else ""
        yield f"{where}GPU {', '.join(map(str, sorted(indexes)))} ({product}): {reason}"


def _find_conflict(target: CardTarget, card: GpuState) -> str | None:
    """Reason that a card cannot hold its part; ``None`` if it can. Profiles may be unknown while MIG mode is off."""
    if card.geometry is None or not target.counts:
        return None
    plan = plan_layout(card.geometry, target.counts)
    # The table has the model's name until MIG mode is on, and the product's name from then on.
    return plan.reason.removeprefix(f"{card.geometry.family}: ") if isinstance(plan, Infeasible) else None


def _is_for_other_models(entries: Sequence[LayoutEntry], cards: Sequence[GpuState]) -> bool:
    """True if every entry has filters, and none selects a card with MIG."""
    able = [card for card in mig_cards_of(cards) if card.mig_capable]
    return all(entry.filters and not any(entry.selects(card) for card in able) for entry in entries)


def _built_in_layout(name: str, cards: Iterable[GpuState]) -> tuple[LayoutEntry, ...] | None:
    """A layout without a file: a generated one, or one whose name spells its counts."""
    kinds = _card_kinds(cards)
    return generated_layouts(kinds).get(name) or make_named_layout(name, kinds)


def _card_kinds(cards: Iterable[GpuState]) -> list[LayoutCardModel]:
    kinds = {
        card.info.pci_device_id: LayoutCardModel(int(card.info.pci_device_id, 16), card.geometry)
        for card in cards
        if card.geometry is not None
    }
    return list(kinds.values())


def _reject_unknown(desired: DesiredLayout, cards: Iterable[GpuState]) -> RejectedLayout:
    if desired.problem is not None:
        return RejectedLayout(
            layout=desired.name, reason=desired.problem_reason or "LayoutUnknown", text=desired.problem
        )
    names = [MIG_CONFIG_DYNAMIC, *generated_layouts(_card_kinds(cards))]
    close = get_close_matches(desired.name[:63], [*names, desired.closest], n=1, cutoff=0.6)
    text = (
        f'layout "{desired.name}" is not known: no file of layouts has it, and this node has only these without a file:'
        f" {', '.join(names)}, and counts such as 7x1g.5gb;"
        + (f' did you mean "{close[0]}"?' if close else "")
        + f" correct the label {MIG_CONFIG_LABEL}, or add the layout to the file"
    )
    return RejectedLayout(layout=desired.name, reason="LayoutUnknown", text=text)


def _rejection_text(name: str, conflicts: Iterable[object]) -> str:
    listed = "; ".join(dict.fromkeys(map(str, conflicts)))
    return f'layout "{name}" does not fit this node, no card is touched: {listed}'
