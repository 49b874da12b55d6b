"""Keeps the node's static cards as its MIG layout says, one driver a card, and says what became of the layout.

The wish is judged as a whole first (:mod:`tessera.agent.mig_config.desired`); a layout that one card cannot have
touches none. Who shall have which card follows from it and is wished of the roles; cards are acted on only while they
are static. From there every card goes its own way (:mod:`tessera.agent.mig_config.state_machine`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.desired_config import DesiredLayout
from tessera.agent.base.evictions import Evictor
from tessera.agent.inventory.card_ownership import CardOwner, CardOwnership
from tessera.agent.inventory.gpu_inventory import GpuState, InventoryReader
from tessera.agent.mig_config.card_reconciler import RETRY_PAUSE, CardReconciler
from tessera.agent.mig_config.desired import RejectedLayout, ResolvedLayout, resolve_layout
from tessera.agent.mig_config.device_users import DeviceUserLookup
from tessera.agent.mig_config.events import CardGoal
from tessera.agent.mig_config.executor import CardExecutor
from tessera.agent.mig_config.journal import LayoutJournal, LayoutRecord, digest_of
from tessera.agent.mig_config.reboot import RebootRequests
from tessera.agent.mig_config.state_machine import CardStateMachine
from tessera.agent.mig_config.status import APPLYING, CardStatus, LayoutState, LayoutStatus, summarize_cards
from tessera.clock import Clock
from tessera.kube.resources import Pod
from tessera.kubelet.interfaces import Kubelet
from tessera.nvml.asynchronous.async_nvml import AsyncNvml

_log = logging.getLogger(__name__)


class LayoutReconciler:
    """The layouts of one node.

    Args:
        hardware: the node's cards.
        stocktaker: the node's stock; has read it at least once before :meth:`run`.
        roles: who has which card; told here who shall have it.
        wish: the layout that is wished now.
        kubelet: the node's.
        live: the pods of the node that are not over, as far as is known.
        bound: the same asked of the API server itself; raises ConnectionError if it does not say.
        evictor: pods that hold what must go are evicted; ``None``: they are waited for.
        reboot: reboots the node for a card that cannot be reset; raises OSError if it cannot. ``None``: never done.
        boot_id: the node's boot id, empty while it is not known.
        journal: the file of what must not be forgotten, in the agent's folder.
        told: called with every new status.
        lately_given: UUIDs of static devices that were given to containers that kubelet may not list yet.
        was_reset: told after every reset of a card.
        instance_gone: told of every GPU instance that was destroyed, by card and id; the next of that id is another.
        overcounted: resources of which the Node still counts devices that are fenced.
        changes: wakes all parts.
        clock: the time.
    """

    def __init__(
        self,
        *,
        hardware: AsyncNvml,
        stocktaker: InventoryReader,
        roles: CardOwnership,
        wish: Callable[[], DesiredLayout],
        kubelet: Kubelet,
        live: Callable[[], Sequence[Pod]],
        bound: Callable[[], Awaitable[Sequence[Pod]]],
        evictor: Evictor | None,
        reboot: Callable[[], Awaitable[None]] | None,
        boot_id: Callable[[], str],
        journal: Path,
        told: Callable[[LayoutStatus], None],
        changes: ChangeNotifier,
        clock: Clock,
        lately_given: Callable[[], frozenset[str]] = frozenset,
        was_reset: Callable[[str], None] = lambda _uuid: None,
        instance_gone: Callable[[str, int], None] = lambda _uuid, _gi_id: None,
        overcounted: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._was_reset = was_reset
        self._instance_gone = instance_gone
        self._hardware = hardware
        self._stocktaker = stocktaker
        self._roles = roles
        self._wish = wish
        self._evictor = evictor
        self._overcounted = overcounted
        self._tell = told
        self._changes = changes
        self._clock = clock
        self._tenants = DeviceUserLookup(kubelet, live=live, bound=bound, lately_given=lately_given)
        self._file = LayoutJournal(journal)
        self._journal = self._file.load()
        self._judged: tuple[DesiredLayout, Sequence[GpuState]] | None = None
        self._wanted: ResolvedLayout | RejectedLayout | None = None
        self._unwritable: str | None = None
        self._drivers: dict[str, CardReconciler] = {}
        self._status = LayoutStatus(layout=self._journal.layout)
        self._reboots: RebootRequests | None = None
        if reboot is not None:
            self._reboots = RebootRequests(
                reboot,
                boot_id=boot_id,
                journal=lambda: self._journal,
                remember=self._remember,
                busy=self._busy,
                tenants=self._tenants,
                hardware=hardware,
                clock=clock,
            )

    @property
    def fenced(self) -> frozenset[str]:
        """UUIDs of cards and MIG devices that may be given to nobody now."""
        return frozenset().union(*(driver.fence for driver in self._drivers.values()))

    @property
    def status(self) -> LayoutStatus:
        """What became of the layout."""
        return self._status

    async def run(self) -> None:
        """Works until cancelled. Before anything may act on a card, it says who shall have it."""
        async with asyncio.TaskGroup() as group:
            while True:
                seen = self._changes.count
                self._take_wish()
                for card in self._stocktaker.inventory.gpus:
                    if card.uuid not in self._drivers:
                        driver = self._drivers[card.uuid] = self._driver(card)
                        group.create_task(driver.run(), name=f"layout of card {card.uuid}")
                self._sum()
                await self._changes.wait(seen, None if self._unwritable is None else RETRY_PAUSE)

    def _take_wish(self) -> None:
        """Judges the wish if it or the stock has changed."""
        now = self._wish(), self._stocktaker.inventory.gpus
        if self._judged is not None and self._unwritable is None:
            wish, cards = self._judged
            if now[0] == wish and now[1] is cards:
                return
        self._judged = now
        wanted = resolve_layout(*now)
        try:
            if isinstance(wanted, ResolvedLayout):
                self._begin(now[0])
                news = self._roles.set_desired(wanted.roles)
            else:
                news = not self._roles.decided and self._roles.set_desired(self._as_they_are(now[1]))
        except OSError as error:
            self._unwritable = str(error)
            return
        self._unwritable = None
        if wanted != self._wanted or news:
            self._wanted = wanted
            self._changes.notify()

    def _begin(self, wish: DesiredLayout) -> None:
        """Notes that work on a layout begins: for the first time, or again in another process."""
        digest, last = digest_of(wish), self._journal
        if digest != last.digest:
            self._write(LayoutRecord(layout=wish.name, digest=digest, attempts=1, managed=last.managed))
        elif self._wanted is None:
            self._write(msgspec.structs.replace(last, attempts=last.attempts + 1))

    def _as_they_are(self, cards: Sequence[GpuState]) -> Mapping[str, CardOwner]:
        return {card.uuid: self._roles.owner(card.uuid) for card in cards}

    # What the drivers need --------------------------------------------------------------------------------------

    def _driver(self, card: GpuState) -> CardReconciler:
        uuid = card.uuid
        machine = CardStateMachine(
            uuid,
            name=f"GPU {card.info.index} ({uuid})",
            managed=self._journal.managed.get(uuid, ()),
            may_evict=self._evictor is not None,
            may_reboot=self._reboots is not None,
        )
        return CardReconciler(
            uuid,
            machine=machine,
            hands=CardExecutor(
                card.info.uuid,
                hardware=self._hardware,
                save=self._save,
                was_reset=self._was_reset,
                instance_gone=self._instance_gone,
                clock=self._clock,
            ),
            goal=lambda: self._goal(uuid),
            roles=self._roles,
            stocktaker=self._stocktaker,
            tenants=self._tenants,
            evictor=self._evictor,
            overcounted=self._overcounted,
            save=self._save,
            reboot=self._ask_reboot,
            told=self._changes.notify,
            changes=self._changes,
            clock=self._clock,
        )

    def _goal(self, uuid: str) -> CardGoal | None:
        return self._wanted.goals.get(uuid) if isinstance(self._wanted, ResolvedLayout) else None

    def _save(self) -> None:
        ours = {uuid: tuple(sorted(driver.machine.managed)) for uuid, driver in self._drivers.items()}
        kept = {uuid: places for uuid, places in (dict(self._journal.managed) | ours).items() if places}
        self._write(msgspec.structs.replace(self._journal, managed=kept))

    def _remember(self, boot: str) -> None:
        self._write(msgspec.structs.replace(self._journal, rebooted_from=boot), flush=True)

    def _write(self, journal: LayoutRecord, *, flush: bool = False) -> None:
        self._file.save(journal, flush=flush)
        self._journal = journal

    async def _ask_reboot(self, why: str) -> CardStatus:
        assert self._reboots is not None
        return await self._reboots.request(why)

    def _busy(self) -> bool:
        """Whether a card is still worked on that does not itself wait for the reboot."""
        return any(
            driver.verdict is not None and driver.verdict.state is LayoutState.PENDING and not driver.wants_reboot
            for driver in self._drivers.values()
        )

    # What is said -----------------------------------------------------------------------------------------------

    def _sum(self) -> None:
        status = self._summed()
        if status != self._status:
            self._status = status
            self._tell(status)
            self._changes.notify()

    def _summed(self) -> LayoutStatus:
        wanted = self._wanted
        if self._unwritable is not None:
            text = f"who has which card cannot be noted, so no card is touched: {self._unwritable}"
            name = self._judged[0].name if self._judged is not None else ""
            return LayoutStatus(layout=name, state=LayoutState.FAILED, reason="StateUnwritable", message=text)
        if wanted is None:
            return self._status
        if isinstance(wanted, RejectedLayout):
            return LayoutStatus(
                layout=wanted.layout, state=LayoutState.FAILED, reason=wanted.reason, message=wanted.text
            )
        if not wanted.layout:
            return LayoutStatus(state=LayoutState.SUCCESS, reason="NoLayout", message="cards are left as they are")
        pending = CardStatus(LayoutState.PENDING, APPLYING)
        verdicts = {
            uuid: (self._drivers[uuid].verdict if uuid in self._drivers else None) or pending for uuid in wanted.goals
        }
        return self._counted(summarize_cards(wanted.layout, verdicts, wanted.notices))

    def _counted(self, status: LayoutStatus) -> LayoutStatus:
        """Says how often work on the layout was begun, and forgets that when the layout is in force."""
        attempts = self._journal.attempts
        if status.state is not LayoutState.SUCCESS:
            more = f"; begun {attempts} times" if attempts > 1 else ""
            return msgspec.structs.replace(status, message=status.message + more)
        if attempts:
            try:
                self._write(msgspec.structs.replace(self._journal, attempts=0))
            except OSError as error:
                _log.warning("journal of layouts still counts attempts of one that is in force: %s", error)
        return status
