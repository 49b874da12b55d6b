"""Brings one card to its goal: reads the card, asks the state machine, carries out the instruction.

No card waits for another.

NVML has no event for instances that another program makes or destroys, so the reconciler reads a finished card now and
then; if a new reading of the node's inventory differs, it reads the card at once. It reads the inventory again after a
burst of calls and before a fence shrinks: a destroyed device must not be offered even for a moment.

The reconciler evicts pods only once the Node no longer counts the devices that they hold. Otherwise the pods that
replace them would be scheduled to the same node, and kubelet would refuse them for good.

Rules of a reboot: it is for a card that cannot be reset, once for a layout. The other cards are finished first. No pod
and no process may be on any card of the node. The journal records the reboot, flushed to disk, before the request. If a
layout still needs a reboot after one, it has failed. Tessera does not cordon or drain here: an administrator who allows
reboots decides what else runs on the node.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from tessera.agent.base.runtime import AgentRuntime, RebootNode
from tessera.agent.base.wake_ups import Fact
from tessera.agent.inventory.gpu_inventory import CardOwner, CardOwnership, GpuState, InventoryReader
from tessera.agent.mig_config.events import (
    APPLIED,
    APPLYING,
    UNREADABLE,
    CardEvent,
    CardGoal,
    CardInstruction,
    CardStatus,
    EvictionAnswered,
    EvictUsers,
    FenceSet,
    GoalSet,
    InSync,
    LayoutState,
    ListUsers,
    OwnerRead,
    ReleaseCard,
    RequestReboot,
    SetFence,
    UserPod,
    UsersListed,
    UsersUnknown,
    Wait,
)
from tessera.agent.mig_config.executor import DeviceDrainer, LayoutJournal, MigExecutor
from tessera.agent.mig_config.state_machine import CardStateMachine
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuUuid

_log = logging.getLogger(__name__)

#: Seconds after which a card that has reached its goal is read again.
DRIFT_RECHECK = 60.0
#: Seconds after which users are listed again, or a failed write of a file is tried again.
RETRY_PAUSE = 2.0
#: Seconds after which pods are evicted although the Node still counts their devices: three node status of kubelet.
EVICTION_DELAY_LIMIT = 30.0

#: What decides about a card that is in sync.
_GOAL = Fact.LAYOUT | Fact.OWNERS | Fact.CARDS


class _Inputs(NamedTuple):
    """Inputs of a decision that are known without a request; a change of one ends a wait.

    Attributes:
        goal: the goal that the layout sets.
        owner: the present owner of the card.
        card: the card in the inventory's last reading; ``None`` while the reconciler must not act on it.
        users: the users of devices, see :meth:`.DeviceDrainer.snapshot`; ``None`` if they do not matter.
    """

    goal: CardGoal | None
    owner: CardOwner
    card: GpuState | None
    users: object


class CardReconciler:
    """Brings one card to its goal.

    Args:
        machine: decides.
        runtime: wakes this reconciler, and the parts that a change here concerns.
        goal_of: the goal that the layout sets for a card; ``None`` to leave the card as it is.
        request_reboot: asks for a reboot of the node; returns the status of the card that needs it.
        executor: reads and changes the card.
        inventory: the node's cards, read again after changes.
        ownership: the owner of each card.
        users: lists the users of each device.
        fences: by card, UUIDs of the card and its MIG devices that must not be allocated; the entry of this card is
            kept here.

    Attributes:
        status: the card's status; ``None`` if the card has no goal.
        needs_reboot: true if only a reboot of the node helps the card.
    """

    def __init__(
        self,
        machine: CardStateMachine,
        runtime: AgentRuntime,
        *,
        goal_of: Callable[[str], CardGoal | None],
        request_reboot: Callable[[str], Awaitable[CardStatus]],
        executor: MigExecutor,
        inventory: InventoryReader,
        ownership: CardOwnership,
        users: DeviceDrainer,
        fences: dict[str, frozenset[str]],
    ) -> None:
        self._fences = fences
        fences[machine.uuid] = frozenset()
        self.status: CardStatus | None = None
        self.needs_reboot = False
        self._uuid = GpuUuid(machine.uuid)
        self._machine = machine
        self._goal_of = goal_of
        self._request_reboot = request_reboot
        self._executor = executor
        self._inventory = inventory
        self._ownership = ownership
        self._users = users
        self._changes = runtime.changes
        self._clock = runtime.clock
        #: Events since the last decision.
        self._events: list[CardEvent] = []
        #: True if a call was made since the inventory was read.
        self._changed = False
        #: The goal of the last decision.
        self._goal: CardGoal | None = None
        #: Time at which evictions begin although the Node still counts the devices; ``None`` while it does not.
        self._evict_at: float | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            inputs = self._inputs(users=True)
            if inputs.goal != self._goal:
                self._goal, self._evict_at = inputs.goal, None
                self._set_status(None if inputs.goal is None else CardStatus(LayoutState.PENDING, APPLYING))
            events = [*self._events, GoalSet(inputs.goal), OwnerRead(inputs.owner)]
            self._events = []
            if _must_act(inputs.goal, inputs.owner):
                events.append(await self._executor.read(self._uuid))
            instruction = self._machine.handle(events, self._clock.monotonic())
            if isinstance(instruction, Wait | InSync | RequestReboot):
                await self._rest(instruction, inputs)
            else:
                await self._carry_out(instruction)

    async def _carry_out(self, instruction: CardInstruction) -> None:
        match instruction:
            case SetFence(uuids=uuids):
                if not uuids <= self._fences[self._uuid]:
                    await self._users.close(uuids)
                if uuids >= self._fences[self._uuid] or await self._refresh_inventory():
                    self._fences[self._uuid] = uuids
                    self._events.append(FenceSet(uuids))
                    self._changes.notify(Fact.LAYOUT)
            case ListUsers():
                self._events.append(await self._list_users())
            case EvictUsers(users=users):
                await self._evict(users)
            case ReleaseCard():
                await self._release()
            case Wait() | InSync() | RequestReboot():
                raise AssertionError(f"{instruction} is no instruction to carry out")
            case call:
                if self.status is None or self.status.state is LayoutState.SUCCESS:
                    self._set_status(CardStatus(LayoutState.PENDING, APPLYING))
                self._changed = True
                self._events.append(await self._executor.execute(self._uuid, call, self._machine.managed_places))

    async def _list_users(self) -> UsersListed | UsersUnknown:
        try:
            return UsersListed(await self._users.list())
        except ConnectionError as error:
            text = f"the users of the devices are not known: {error}"
            return UsersUnknown(text, self._clock.monotonic() + RETRY_PAUSE)

    async def _evict(self, users: Sequence[UserPod]) -> None:
        """Requests the evictions, unless the scheduler would still send new pods to the Node in their place."""
        pause = self._seconds_until_eviction()
        if pause:
            pods, resources = ", ".join(map(str, users)), ", ".join(self._users.overcounted_resources())
            text = f"{self._machine.name}: {pods}: evicted when the node stops counting the card's {resources}"
            self._set_status(CardStatus(LayoutState.PENDING, "CardsInUse", text))
            await self._changes.wait_differs(self._eviction_inputs, self._eviction_inputs(), min(pause, RETRY_PAUSE))
            return
        for user in users:
            refusal = await self._users.evict(user)
            self._events.append(EvictionAnswered(user.pod, refusal, self._clock.monotonic()))

    def _eviction_inputs(self) -> object:
        return self._users.overcounted_resources(), self._inputs(users=True)

    def _seconds_until_eviction(self) -> float:
        """Seconds to wait for a Node that still counts the fenced devices; 0 once it does not or the wait is over."""
        if not self._users.overcounted_resources():
            self._evict_at = None
            return 0.0
        now = self._clock.monotonic()
        if self._evict_at is None:
            self._evict_at = now + EVICTION_DELAY_LIMIT
        return max(0.0, self._evict_at - now)

    async def _release(self) -> None:
        try:
            self._save_managed()
            self._ownership.transfer(self._uuid)
        except OSError as error:
            self._set_status(_unwritable(error))
            await self._clock.sleep(RETRY_PAUSE)
            return
        self._changes.notify(Fact.OWNERS)

    def _save_managed(self) -> None:
        self._executor.journal.save_managed(self._uuid, self._machine.managed_places)

    async def _refresh_inventory(self) -> bool:
        """Reads the inventory again if a call was made; returns true unless that failed."""
        if self._changed:
            try:
                await self._inventory.refresh()
            except NvmlError as error:
                _log.warning("cards cannot be read after a change of card %s: %s", self._uuid, error)
                await self._clock.sleep(RETRY_PAUSE)
                return False
            self._changed = False
        return True

    async def _rest(self, instruction: Wait | InSync | RequestReboot, inputs: _Inputs) -> None:
        """Reports the status, and waits until an input differs from those before the last decision.

        Only a waiting card depends on users; a card that is in sync ignores them.
        """
        if not await self._refresh_inventory():
            return
        self.needs_reboot = isinstance(instruction, RequestReboot)
        waits = not isinstance(instruction, InSync)
        if not waits:
            inputs = inputs._replace(users=None)
        until = await self._report(instruction)
        pause = None if until is None else max(0.0, until - self._clock.monotonic())
        changes = self._changes if waits else self._changes.about(_GOAL)
        await changes.wait_differs(lambda: self._inputs(users=waits), inputs, pause)

    async def _report(self, instruction: Wait | InSync | RequestReboot) -> float | None:
        """Sets the status; returns the time of the next decision, ``None`` for at the next change."""
        now = self._clock.monotonic()
        match instruction:
            case Wait(until=until, reason=reason):
                waiting = LayoutState.SUCCESS if reason == UNREADABLE else LayoutState.PENDING
                state = LayoutState.FAILED if instruction.failed else waiting
                self._set_status(CardStatus(state, instruction.reason, instruction.text))
                return until
            case RequestReboot(until=until):
                self._set_status(await self._request_reboot(instruction.text))
                return until
            case InSync():
                try:
                    self._save_managed()
                except OSError as error:
                    self._set_status(_unwritable(error))
                    return now + RETRY_PAUSE
                if self._goal is None:
                    return None
                self._set_status(CardStatus(LayoutState.SUCCESS, APPLIED))
                return now + DRIFT_RECHECK

    def _inputs(self, *, users: bool) -> _Inputs:
        """The present inputs, with the users of devices if asked for."""
        goal, owner = self._goal_of(self._uuid), self._ownership.owner(self._uuid)
        card = self._inventory.inventory.gpu(self._uuid) if _must_act(goal, owner) else None
        return _Inputs(goal, owner, card, self._users.snapshot() if users else None)

    def _set_status(self, status: CardStatus | None) -> None:
        if status != self.status:
            self.status = status
            self._changes.notify(Fact.LAYOUT)


def _must_act(goal: CardGoal | None, owner: CardOwner) -> bool:
    """True if the reconciler reads and changes the card: it has a goal, and the static side owns it."""
    return goal is not None and owner is CardOwner.STATIC


def _unwritable(error: OSError) -> CardStatus:
    return CardStatus(LayoutState.FAILED, "StateUnwritable", f"the journal of changes cannot be written: {error}")


#: Seconds from the request until a node that still runs counts as one that does not reboot.
REBOOT_TIMEOUT = 600.0


class RebootRequests:
    """Asks for reboots of the node.

    Args:
        runtime: the node's cards, and its boot id; empty while unknown.
        reboot: reboots the node.
        journal: records reboots.
        users: lists the users of each device.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        reboot: RebootNode,
        *,
        journal: LayoutJournal,
        users: DeviceDrainer,
    ) -> None:
        self._reboot = reboot
        self._boot_id = runtime.mirror.boot_id
        self._journal = journal
        self._users = users
        self._hardware = runtime.hardware
        self._clock = runtime.clock
        #: Time at which this process requested a reboot or learned of a request; monotonic seconds.
        self._asked_at: float | None = None
        self._lock = asyncio.Lock()

    async def request(self, reason: str, *, others_pending: bool) -> CardStatus:
        """Reboots the node if that is allowed now; returns the status of the card.

        Args:
            reason: the card that needs the reboot, and why.
            others_pending: true if another card is not finished yet.
        """
        async with self._lock:
            boot_id = self._boot_id()
            if not boot_id:
                return _failed_status(f"{reason}; the node's boot id is not known, so no reboot is requested")
            before = self._journal.record.rebooted_from
            if before == boot_id:
                return self._wait_for_reboot(reason)
            if before:
                return _failed_status(f"{reason}; the node was rebooted for this layout once, which did not help")
            blocker = "the other cards" if others_pending else await self._find_blocker()
            if blocker:
                text = f"{reason}; the node's reboot waits for {blocker}"
                return CardStatus(LayoutState.PENDING, "CardsInUse", text)
            return await self._request(boot_id, reason)

    async def _request(self, boot_id: str, reason: str) -> CardStatus:
        try:
            self._journal.save_reboot(boot_id)
            self._asked_at = self._clock.monotonic()
            try:
                await self._reboot()
            except OSError:
                self._journal.save_reboot("")
                raise
        except OSError as error:
            return _failed_status(f"{reason}; the node cannot be rebooted: {error}")
        return self._wait_for_reboot(reason)

    def _wait_for_reboot(self, reason: str) -> CardStatus:
        now = self._clock.monotonic()
        if self._asked_at is None:
            self._asked_at = now
        if now - self._asked_at > REBOOT_TIMEOUT:
            return _failed_status(
                f"{reason}; the node was asked to reboot {REBOOT_TIMEOUT:.0f} s ago and has not; reboot it"
            )
        return CardStatus(LayoutState.REBOOTING, "Rebooting", reason)

    async def _find_blocker(self) -> str:
        """The pods or processes on any card, for people; empty if there are none."""
        try:
            found = await self._users.list()
            if pods := sorted({str(each) for users in found.values() for each in users}):
                return ", ".join(pods)
            cards = [each.uuid for each in await self._hardware.devices() if each.readable]
            pids = [str(one.pid) for uuid in cards for one in await self._hardware.processes(uuid)]
        except (ConnectionError, NvmlError) as error:
            return f"the list of pods and processes on the cards, which cannot be read: {error}"
        return f"process {', '.join(pids)}" if pids else ""


def _failed_status(text: str) -> CardStatus:
    return CardStatus(LayoutState.FAILED, "ResetRequired", text)
