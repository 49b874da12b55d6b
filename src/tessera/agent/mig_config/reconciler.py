"""Keeps the node's static cards in their MIG layout, one reconciler for each card, and reports the layout's status.

It first checks the desired layout as a whole; a layout that one card cannot
follow changes no card. The layout sets the owner of each card; only cards of the static side are changed, each by its
own :mod:`tessera.agent.mig_config.card_reconciler`.

The desired layout is resolved into a goal for each card of the node by pure functions. Rules:

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

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.settings import DesiredLayout
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.gpu_inventory import (
    CardOwner,
    CardOwnership,
    CardShares,
    GpuState,
    InventoryReader,
    mig_cards_of,
    sharing_gpus,
)
from tessera.agent.mig_config.card_reconciler import RETRY_PAUSE, CardReconciler, RebootRequests
from tessera.agent.mig_config.events import APPLYING, CardGoal, CardStatus, LayoutState, LayoutStatus, summarize_cards
from tessera.agent.mig_config.executor import DeviceDrainer, MigExecutor
from tessera.agent.mig_config.state_machine import CardStateMachine
from tessera.api.mig_layouts import (
    BALANCED,
    ENABLED,
    CardTarget,
    LayoutCardModel,
    LayoutEntry,
    generated_layouts,
    make_named_layout,
    resolve_targets,
)
from tessera.api.names import MIG_CONFIG_DYNAMIC, MIG_CONFIG_LABEL
from tessera.api.problems import FileRefused
from tessera.api.sharing.advertisement import make_advertisement
from tessera.api.sharing.devices import SHARING_RULES, SharingKind
from tessera.api.sharing.profile import PROFILE_LABEL, MigStrategy, SharingProfile
from tessera.limits import CARD_SLOTS
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


_log = logging.getLogger(__name__)


class LayoutReconciler:
    """Applies the desired layout on one node.

    Args:
        runtime: wakes all parts, and records the decisions of the cards' state machines.
        desired: the layout that the node must have; the same object until something changes.
        inventory: the node's cards; they were read at least once before :meth:`run`.
        ownership: the owner of each card; gets the desired owners from here.
        executor: reads and changes cards.
        users: lists the users of each device.
        reboots: requests reboots; ``None`` if the node is never rebooted for a card.

    Attributes:
        status: the status of the layout.
        fences: by card, UUIDs of the card and its MIG devices that must not be allocated; always those of now.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        desired: Callable[[], DesiredLayout],
        inventory: InventoryReader,
        ownership: CardOwnership,
        executor: MigExecutor,
        users: DeviceDrainer,
        reboots: RebootRequests | None,
    ) -> None:
        self._desired = desired
        self._inventory = inventory
        self._ownership = ownership
        self._executor = executor
        self._users = users
        self._reboots = reboots
        self._runtime = runtime
        self._changes = runtime.changes
        #: The desired layout and the cards behind :attr:`_resolved`.
        self._inputs: tuple[DesiredLayout, Sequence[GpuState]] | None = None
        #: The goals in force; ``None`` before the first were written to the journal.
        self._resolved: ResolvedLayout | RejectedLayout | None = None
        #: Reason that journal or ownership cannot be written; no card gets a new goal meanwhile.
        self._write_error: str | None = None
        self.fences: dict[str, frozenset[str]] = {}
        #: The reconciler of each card; a card that was listed once keeps its reconciler.
        self._cards: dict[str, CardReconciler] = {}
        #: True if the desired layout was in force on all cards when the process before this one saw them last.
        self._was_in_force = False
        #: The status that :attr:`status` returns; before the first goals, of the layout in the journal.
        self.status = LayoutStatus(layout=executor.journal.record.layout)

    async def run(self) -> None:
        """Runs until cancelled. Sets the desired owner of every card before any part may act on it."""
        async with asyncio.TaskGroup() as group:
            while True:
                shares = Fact.DESIRED_PROFILE if self._desired().whole_by_claims else Fact(0)
                changes = self._changes.about(Fact.DESIRED_LAYOUT | Fact.DEVICE_API | Fact.CARDS | Fact.LAYOUT | shares)
                count = changes.count
                self._resolve()
                for card in self._inventory.inventory.gpus:
                    if card.uuid not in self._cards:
                        reconciler = self._cards[card.uuid] = self._make_card(card)
                        group.create_task(reconciler.run(), name=f"layout of card {card.uuid}")
                self._update_status()
                if self._write_error is None:
                    await changes.wait(count)
                else:
                    await changes.wait_differs(self._read_inputs, self._inputs, RETRY_PAUSE)

    # Requests of card reconcilers -------------------------------------------------------------------------------

    def _goal_of(self, uuid: str) -> CardGoal | None:
        """The goal that the layout sets for a card; ``None`` to leave the card as it is."""
        return self._resolved.goals.get(uuid) if isinstance(self._resolved, ResolvedLayout) else None

    async def _request_reboot(self, reason: str) -> CardStatus:
        """Requests a reboot of the node once the other cards are finished; returns the status of the card."""
        assert self._reboots is not None
        pending = any(
            card.status is not None and card.status.state is LayoutState.PENDING and not card.needs_reboot
            for card in self._cards.values()
        )
        return await self._reboots.request(reason, others_pending=pending)

    # The desired layout -----------------------------------------------------------------------------------------

    def _read_inputs(self) -> tuple[DesiredLayout, Sequence[GpuState]]:
        return self._desired(), self._inventory.inventory.gpus

    def _resolve(self) -> None:
        """Checks the desired layout if it or the inventory has changed."""
        layout, cards = inputs = self._read_inputs()
        if self._inputs is not None and self._write_error is None:
            last_layout, last_cards = self._inputs
            if layout == last_layout and cards is last_cards:
                return
        self._inputs = inputs
        cards = [card for card in cards if card.info.identified]  # no layout is for a card of which nothing is known
        resolved = resolve_layout(layout, cards)
        try:
            if isinstance(resolved, ResolvedLayout):
                if self._resolved is None:
                    self._was_in_force = self._executor.journal.shows_in_force(layout)
                self._executor.journal.begin(layout, resumes=self._resolved is None)
                changed = self._ownership.set_desired(resolved.owners, resolved.shares)
            else:
                changed = not self._ownership.decided and self._ownership.set_desired(self._present_owners(cards))
        except OSError as error:
            self._write_error = str(error)
            return
        self._write_error = None
        if resolved != self._resolved or changed:
            self._resolved = resolved
            self._changes.notify(Fact.LAYOUT | Fact.OWNERS)

    def _present_owners(self, cards: Sequence[GpuState]) -> Mapping[str, CardOwner]:
        return {card.uuid: self._ownership.owner(card.uuid) for card in cards}

    def _make_card(self, card: GpuState) -> CardReconciler:
        machine = CardStateMachine(
            card.uuid,
            name=f"GPU {card.info.index} ({card.uuid})",
            managed=self._executor.journal.record.managed.get(card.uuid, ()),
            may_evict=self._users.may_evict,
            may_reboot=self._reboots is not None,
            reached=self._goal_of(card.uuid) if self._was_in_force else None,
        )
        self._runtime.recorders.attach("mig-config", machine, card.uuid)
        return CardReconciler(
            machine,
            self._runtime,
            goal_of=self._goal_of,
            request_reboot=self._request_reboot,
            executor=self._executor,
            inventory=self._inventory,
            ownership=self._ownership,
            users=self._users,
            fences=self.fences,
        )

    # Status -----------------------------------------------------------------------------------------------------

    def _update_status(self) -> None:
        status = self._make_status()
        if status != self.status:
            self.status = status
            _log.info("layout %s: %s, %s", status.layout or "(none)", status.state.value, status.message)
            self._changes.notify(Fact.LAYOUT)

    def _make_status(self) -> LayoutStatus:
        resolved = self._resolved
        if self._write_error is not None:
            text = f"the owner of each card cannot be saved, so no card is changed: {self._write_error}"
            name = self._inputs[0].name if self._inputs is not None else ""
            return LayoutStatus(layout=name, state=LayoutState.FAILED, reason="StateUnwritable", message=text)
        if resolved is None:
            return self.status
        if isinstance(resolved, RejectedLayout):
            return LayoutStatus(
                layout=resolved.layout, state=LayoutState.FAILED, reason=resolved.reason, message=resolved.text
            )
        if not resolved.layout:
            return LayoutStatus(state=LayoutState.SUCCESS, reason="NoLayout", message="cards are left as they are")
        pending = CardStatus(LayoutState.PENDING, APPLYING)
        cards = {
            uuid: (self._cards[uuid].status if uuid in self._cards else None) or pending for uuid in resolved.goals
        }
        return self._with_attempts(summarize_cards(resolved.layout, cards, resolved.notices))

    def _with_attempts(self, status: LayoutStatus) -> LayoutStatus:
        """Adds the number of attempts to apply the layout; forgets them once the layout is in force."""
        attempts = self._executor.journal.record.attempts
        if status.state is not LayoutState.SUCCESS:
            more = f"; begun {attempts} times" if attempts > 1 else ""
            return msgspec.structs.replace(status, message=status.message + more)
        if attempts:
            try:
                self._executor.journal.clear_attempts()
            except OSError as error:
                _log.warning("the journal of layouts still counts attempts of one that is in force: %s", error)
        return status
