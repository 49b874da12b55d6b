"""Keeps the node's static cards in their MIG layout, one reconciler for each card, and reports the layout's status.

It first checks the desired layout as a whole (:mod:`tessera.agent.mig_config.desired`); a layout that one card cannot
follow changes no card. The layout sets the owner of each card; only cards of the static side are changed, each by its
own :mod:`tessera.agent.mig_config.card_reconciler`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.agent.base.change_notifier import Fact
from tessera.agent.base.desired_config import DesiredLayout
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.inventory.card_ownership import CardOwner, CardOwnership
from tessera.agent.inventory.gpu_inventory import GpuState, InventoryReader
from tessera.agent.mig_config.card_reconciler import RETRY_PAUSE, CardReconciler
from tessera.agent.mig_config.desired import RejectedLayout, ResolvedLayout, resolve_layout
from tessera.agent.mig_config.drain import DeviceDrainer, RebootRequests
from tessera.agent.mig_config.events import APPLYING, CardGoal, CardStatus, LayoutState, LayoutStatus, summarize_cards
from tessera.agent.mig_config.executor import MigExecutor
from tessera.agent.mig_config.state_machine import CardStateMachine

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
        #: The reconciler of each card; a card that was listed once keeps its reconciler.
        self._cards: dict[str, CardReconciler] = {}
        #: True if the desired layout was in force on all cards when the process before this one saw them last.
        self._was_in_force = False
        #: The status that :attr:`status` returns; before the first goals, of the layout in the journal.
        self._status = LayoutStatus(layout=executor.journal.record.layout)

    @property
    def fenced_devices(self) -> frozenset[str]:
        """UUIDs of cards and MIG devices that must not be allocated now."""
        return frozenset().union(*(card.fence for card in self._cards.values()))

    @property
    def status(self) -> LayoutStatus:
        """The status of the layout."""
        return self._status

    async def run(self) -> None:
        """Runs until cancelled. Sets the desired owner of every card before any part may act on it."""
        changes = self._changes.about(
            Fact.DESIRED_LAYOUT | Fact.DESIRED_PROFILE | Fact.DEVICE_API | Fact.CARDS | Fact.LAYOUT
        )
        async with asyncio.TaskGroup() as group:
            while True:
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
        )

    # Status -----------------------------------------------------------------------------------------------------

    def _update_status(self) -> None:
        status = self._make_status()
        if status != self._status:
            self._status = status
            _log.info("layout %s: %s, %s", status.layout or "(none)", status.state.value, status.message)
            self._changes.notify(Fact.LAYOUT)

    def _make_status(self) -> LayoutStatus:
        resolved = self._resolved
        if self._write_error is not None:
            text = f"the owner of each card cannot be saved, so no card is changed: {self._write_error}"
            name = self._inputs[0].name if self._inputs is not None else ""
            return LayoutStatus(layout=name, state=LayoutState.FAILED, reason="StateUnwritable", message=text)
        if resolved is None:
            return self._status
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
