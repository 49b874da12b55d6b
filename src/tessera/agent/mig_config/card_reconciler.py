"""Drives one card: looks, asks the machine, does what it says, and says what became of it. No card waits for another.

While nothing is to be done the card is read now and then, since NVML has no event for instances that somebody else
makes or destroys; a new reading of the node's stock that differs is looked into at once. The stock is taken again when
the calls of a burst are over, before a fence shrinks: what is gone must not be offered for a moment.

Pods are evicted once the Node shows that what they hold is not to be had any more: those that take their place would be
sent to it again, and refused by kubelet for good.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.evictions import Blocked, Evictor
from tessera.agent.inventory.card_ownership import CardOwner, CardOwnership
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.mig_config.device_users import DeviceUserLookup
from tessera.agent.mig_config.events import (
    CardGoal,
    CardInstruction,
    DeviceUser,
    EvictionAnswered,
    EvictUsers,
    FenceSet,
    InSync,
    ListUsers,
    OwnerRead,
    ReleaseCard,
    RequestReboot,
    SetFence,
    UsersListed,
    UsersUnknown,
    Wait,
)
from tessera.agent.mig_config.executor import CardExecutor
from tessera.agent.mig_config.state_machine import CardStateMachine
from tessera.agent.mig_config.status import APPLIED, APPLYING, CardStatus, LayoutState
from tessera.clock import Clock
from tessera.nvml.errors import NvmlError

_log = logging.getLogger(__name__)

#: Seconds after which a card that is as it shall be is read again.
DRIFT_RECHECK = 60.0
#: Seconds after which is asked again who holds what, or a file is written again.
RETRY_PAUSE = 2.0
#: Seconds after which pods are evicted although the Node still counts what they hold: three of kubelet's node status.
EVICTION_DELAY_LIMIT = 30.0


class CardReconciler:
    """One card.

    Args:
        uuid: the card's.
        machine: says what to do.
        hands: read and change the card.
        goal: what the card shall be now; ``None`` to leave it as it is.
        roles: who has the card.
        stocktaker: the node's stock, taken again after changes.
        tenants: who holds what.
        evictor: evicts pods, where the policy says so.
        overcounted: resources of which the Node still counts devices that are fenced.
        save: writes the journal; raises OSError when it cannot.
        reboot: asks for a reboot of the node for the reason given and says what came of it.
        told: called when there is something new to say of the card.
        changes: wakes this driver, and everybody else after a change here.
        clock: for waits.

    Attributes:
        fence: UUIDs of the card and its MIG devices that nobody may be given.
        verdict: what is to be said of the card; ``None`` where it is left as it is.
        wants_reboot: only a reboot of the node helps the card.
    """

    def __init__(
        self,
        uuid: str,
        *,
        machine: CardStateMachine,
        hands: CardExecutor,
        goal: Callable[[], CardGoal | None],
        roles: CardOwnership,
        stocktaker: InventoryReader,
        tenants: DeviceUserLookup,
        evictor: Evictor | None,
        overcounted: Callable[[], Sequence[str]],
        save: Callable[[], None],
        reboot: Callable[[str], Awaitable[CardStatus]],
        told: Callable[[], None],
        changes: ChangeNotifier,
        clock: Clock,
    ) -> None:
        self.uuid = uuid
        self.machine = machine
        self.fence: frozenset[str] = frozenset()
        self.verdict: CardStatus | None = None
        self.wants_reboot = False
        self._hands = hands
        self._goal = goal
        self._roles = roles
        self._stocktaker = stocktaker
        self._tenants = tenants
        self._evictor = evictor
        self._overcounted = overcounted
        self._save = save
        self._reboot = reboot
        self._told = told
        self._changes = changes
        self._clock = clock
        self._changed = False
        self._judged: CardGoal | None = None
        self._shown_by: float | None = None

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            seen, known = self._changes.count, self._facts(tenants=True)
            goal, role = self._goal(), self._roles.owner(self.uuid)
            if goal != self._judged:
                self._judged, self._shown_by = goal, None
                self._say(None if goal is None else CardStatus(LayoutState.PENDING, APPLYING))
            self.machine.aim(goal)
            self.machine.apply(OwnerRead(role))
            if goal is not None and role is CardOwner.STATIC:
                self.machine.apply(await self._hands.look())
            step = self.machine.step(self._clock.monotonic())
            if isinstance(step, Wait | InSync | RequestReboot):
                await self._rest(step, seen, known)
            else:
                await self._carry_out(step)

    async def _carry_out(self, step: CardInstruction) -> None:
        match step:
            case SetFence(uuids=uuids):
                if uuids >= self.fence or await self._take_stock():
                    self.fence = uuids
                    self.machine.apply(FenceSet(uuids))
                    self._changes.notify()
            case ListUsers():
                self.machine.apply(await self._ask())
            case EvictUsers(users=tenants):
                await self._evict(tenants)
            case ReleaseCard():
                await self._let_go()
            case Wait() | InSync() | RequestReboot():
                raise AssertionError(f"{step} is no instruction to carry out")
            case call:
                if self.verdict is None or self.verdict.state is LayoutState.SUCCESS:
                    self._say(CardStatus(LayoutState.PENDING, APPLYING))
                self._changed = True
                self.machine.apply(await self._hands.attempt(call))

    async def _ask(self) -> UsersListed | UsersUnknown:
        try:
            return UsersListed(await self._tenants.now())
        except ConnectionError as error:
            text = f"it is not known who holds what: {error}"
            return UsersUnknown(text, self._clock.monotonic() + RETRY_PAUSE)

    async def _evict(self, tenants: Sequence[DeviceUser]) -> None:
        """Asks for the evictions, unless the Node would be sent new pods in place of those."""
        seen = self._changes.count
        if left := self._seconds_until_shown():
            pods, counted = ", ".join(map(str, tenants)), ", ".join(self._overcounted())
            text = f"{self.machine.name}: {pods}: evicted when the node stops counting the card's {counted}"
            self._say(CardStatus(LayoutState.PENDING, "CardsInUse", text))
            await self._changes.wait(seen, min(left, RETRY_PAUSE))
            return
        for each in tenants:
            assert self._evictor is not None
            answer = await self._evictor.evict(each.namespace, each.name, each.pod)
            refusal = answer.text if isinstance(answer, Blocked) else None
            self.machine.apply(EvictionAnswered(each.pod, refusal, self._clock.monotonic()))

    def _seconds_until_shown(self) -> float:
        """How long to wait at most until the Node shows what is fenced; 0 if it does, or never did in time."""
        if not self._overcounted():
            self._shown_by = None
            return 0.0
        now = self._clock.monotonic()
        if self._shown_by is None:
            self._shown_by = now + EVICTION_DELAY_LIMIT
        return max(0.0, self._shown_by - now)

    async def _let_go(self) -> None:
        try:
            self._save()
            self._roles.hand_over(self.uuid)
        except OSError as error:
            self._say(_unwritable(error))
            await self._clock.sleep(RETRY_PAUSE)
            return
        self._changes.notify()

    async def _take_stock(self) -> bool:
        """Lets everybody see what the calls have changed; returns whether everybody does."""
        if self._changed:
            try:
                await self._stocktaker.refresh()
            except NvmlError as error:
                _log.warning("cards cannot be read after a change of card %s: %s", self.uuid, error)
                await self._clock.sleep(RETRY_PAUSE)
                return False
            self._changed = False
        return True

    async def _rest(self, step: Wait | InSync | RequestReboot, seen: int, known: tuple[object, ...]) -> None:
        """Says what became of the card, and waits until something differs from what was known before the last look."""
        if not await self._take_stock():
            return
        self.wants_reboot = isinstance(step, RequestReboot)
        waits = not isinstance(step, InSync)
        until = await self._conclude(step)
        while (known if waits else known[:-1]) == self._facts(tenants=waits):
            left = None if until is None else until - self._clock.monotonic()
            if left is not None and left <= 0:
                return
            await self._changes.wait(seen, left)
            seen = self._changes.count

    async def _conclude(self, step: Wait | InSync | RequestReboot) -> float | None:
        now = self._clock.monotonic()
        match step:
            case Wait(until=until):
                state = LayoutState.FAILED if step.failed else LayoutState.PENDING
                self._say(CardStatus(state, step.reason, step.text))
                return until
            case RequestReboot(until=until):
                self._say(await self._reboot(step.text))
                return until
            case InSync():
                try:
                    self._save()
                except OSError as error:
                    self._say(_unwritable(error))
                    return now + RETRY_PAUSE
                if self._judged is None:
                    return None
                self._say(CardStatus(LayoutState.SUCCESS, APPLIED))
                return now + DRIFT_RECHECK

    def _facts(self, *, tenants: bool) -> tuple[object, ...]:
        """What a rest ends for when it changes; who holds what matters only to who waits, and stands last."""
        goal, role = self._goal(), self._roles.owner(self.uuid)
        acts = goal is not None and role is CardOwner.STATIC
        card = self._stocktaker.inventory.gpu(self.uuid) if acts else None
        return (goal, role, card, self._tenants.known()) if tenants else (goal, role, card)

    def _say(self, verdict: CardStatus | None) -> None:
        if verdict != self.verdict:
            self.verdict = verdict
            self._told()


def _unwritable(error: OSError) -> CardStatus:
    return CardStatus(LayoutState.FAILED, "StateUnwritable", f"what was done to the cards cannot be noted: {error}")
