"""Watches who takes how much memory of shared cards, and does what was decided about it.

Sample by sample: which pods were given shares (kubelet), who uses how much (NVML and the kernel), what follows
(:mod:`tessera.agent.memory.policy`). Then it is told or done, each deed only after everything was looked at again
(:mod:`tessera.agent.memory.enforcement`).

Rules:

- Cards and MIG devices that nobody shares are not read at all. A shared one is read often while anybody holds or uses a
  share, and seldom otherwise.
- If kubelet does not say who holds what, nothing is decided: a pod is judged only by what it was given. That is not
  reckoned from a size that no card can have, since it is kept as long as the pod lives. Pods that were here before
  anybody took it down (the file is lost, the watch was off) may use the whole card.
- In ``observe`` the pod gets one event when it exceeds its limit, from ``warn`` on one when it comes near, too.
- A process that no pod is proven for counts in one metric and nowhere else.
"""

import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.evictions import Evictor
from tessera.agent.base.metrics import MemoryUsage, Metrics
from tessera.agent.base.options import EnforcementMode
from tessera.agent.base.processes import ProcessTable
from tessera.agent.base.state_file import StateFile
from tessera.agent.inventory.device_users import DeviceUser
from tessera.agent.memory.enforcement import MemoryEnforcement, RecordPodEvent
from tessera.agent.memory.grants import MemoryGrants, Shares, cgroup_uid, shared_devices
from tessera.agent.memory.policy import (
    CardUse,
    MemoryAction,
    MemoryGrant,
    MemoryPolicy,
    MemoryRules,
    MemorySample,
    ProcessUse,
    is_plausible_total,
    sum_by_pod,
)
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Offer
from tessera.clock import Clock
from tessera.kube.resources import Pod
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuUuid, MigUuid, Process

_log = logging.getLogger(__name__)

#: Seconds between two samples while somebody holds or uses a share.
PERIOD = 5.0
#: Seconds between two samples of shared cards that nobody holds or uses.
IDLE_PERIOD = 60.0

#: Who holds what, by device.
AskHolders = Callable[[], Awaitable[Mapping[str, Sequence[DeviceUser]]]]


class MemoryMonitor:
    """The watch over the memory of one node's shared cards.

    Args:
        hardware: the cards.
        processes: the machine's processes, in the PID namespace that NVML reports (the host's).
        rules: how far it goes, and how patient it is.
        offer: how the static cards are shared now.
        holders: who holds what now; raises ``ConnectionError`` if kubelet does not say.
        pods: the pods bound to this node that are not over.
        evictor: evicts pods, in mode ``evict``.
        api_reachable: whether the API server answers.
        shares_file: where it is kept what pods were given when they came.
        tell: records an event of a pod.
        metrics: where uses, limits and decisions are shown.
        changes: wakes the watch when nothing was shared so far.
        clock: the time.
        period: seconds between two samples while somebody holds or uses a share.
        idle_period: seconds between two samples otherwise.
    """

    def __init__(
        self,
        *,
        hardware: AsyncNvml,
        processes: ProcessTable,
        rules: MemoryRules,
        offer: Callable[[], Offer],
        holders: AskHolders,
        pods: Callable[[], Iterable[Pod]],
        evictor: Evictor,
        api_reachable: Callable[[], bool],
        shares_file: Path,
        tell: RecordPodEvent,
        metrics: Metrics,
        changes: ChangeNotifier,
        clock: Clock,
        period: float = PERIOD,
        idle_period: float = IDLE_PERIOD,
    ) -> None:
        self._own = _own_pod(processes)
        self._read = CardReader(hardware, processes)
        self._judge = MemoryPolicy(rules)
        self._offer = offer
        self._holders = holders
        self._pods = pods
        self._api_reachable = api_reachable
        self._tell = tell
        self._deeds = MemoryEnforcement(
            mode=rules.mode, processes=processes, read_card=self._read, evictor=evictor, tell=tell, metrics=metrics
        )
        self._changes = changes
        self._clock = clock
        self._period = period
        self._idle_period = idle_period
        self._shares_file = shares_file
        self._file: StateFile[Shares] = StateFile(shares_file, Shares)
        kept = self._file.load()
        self._tenants = MemoryGrants(kept)
        #: Nothing tells yet what the pods that are here already were given.
        self._without_past = kept is None
        self._told: set[PodUid] = set()
        self._uses: tuple[MemoryUsage, ...] = ()
        self._unproven: Mapping[str, int] = {}
        metrics.show_memory(lambda: self._uses, lambda: self._unproven)

    async def run(self) -> None:
        """Watches until cancelled; not at all in mode ``off``."""
        if self._judge.rules.mode is EnforcementMode.OFF:
            self._forget_shares()
            return
        while True:
            seen = self._changes.count
            busy = await self.take_sample()
            await self._clock.sleep(self._period)
            if not busy:
                await self._changes.wait(seen, self._idle_period if self._watched() else None)

    async def take_sample(self) -> bool:
        """Takes one sample and does what follows; returns whether anybody holds or uses a share."""
        cards, tenants = await self._sample()
        pods = {cgroup_uid(pod): pod for pod in self._pods()}
        self._show(cards, tenants, pods)
        self._tell_refused()
        sample = MemorySample(
            now=self._clock.monotonic(), cards=cards, tenants=tenants, api_reachable=self._api_reachable()
        )
        read = {card.device: card for card in cards}
        for decision in self._judge.decide(sample):
            if decision.action is not MemoryAction.STRANGER or decision.pod != self._own:
                await self._deeds.enforce(decision, read[decision.device], pods)
        return bool(tenants) or any(card.uses for card in cards)

    async def _sample(self) -> tuple[tuple[CardUse, ...], tuple[MemoryGrant, ...]]:
        """The shared cards that can be read and who was given a part of them; nothing if kubelet does not say."""
        watched = self._watched()
        if not watched and not self._without_past:
            return (), ()
        try:
            holders = await self._holders()
        except ConnectionError as error:
            _log.warning("memory of shared cards is not judged, kubelet does not say who holds them: %s", error)
            return (), ()
        if self._without_past:
            self._without_past = False
            self._tenants.without_record = frozenset(
                (device, each.pod) for device in holders for each in holders[device]
            )
        cards = tuple([card for device in watched if (card := await self._read(device)) is not None])
        totals = {card.device: card.total for card in cards if is_plausible_total(card.total)}
        tenants = self._tenants.update(holders, self._offer(), totals, self._pods())
        self._keep_shares()
        return cards, tenants

    def _watched(self) -> Sequence[str]:
        """Devices that are shared, and those of which pods still hold shares of before."""
        before = {device for device, pods in self._tenants.shares.items() if pods}
        return sorted(before | shared_devices(self._offer()).keys())

    def _keep_shares(self) -> None:
        try:
            self._file.save(self._tenants.shares)
        except OSError as error:
            # They hold without it, until this process ends.
            _log.warning("what pods were given of shared cards is not kept over a restart of the agent: %s", error)

    def _forget_shares(self) -> None:
        """Nobody takes down what pods are given now, so what was kept would not tell it when the watch is on again."""
        try:
            self._shares_file.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("what pods were given of shared cards cannot be forgotten: %s", error)

    def _show(self, cards: Sequence[CardUse], tenants: Sequence[MemoryGrant], pods: Mapping[PodUid, Pod]) -> None:
        limits = {(device, tenant.pod): limit for tenant in tenants for device, limit in tenant.limits.items()}
        used = {(card.device, pod): amount for card in cards for pod, amount in sum_by_pod(card.uses).items()}
        self._uses = tuple(
            MemoryUsage(
                namespace=pods[uid].metadata.namespace,
                pod=pods[uid].metadata.name,
                gpu=device,
                used=used.get((device, uid), 0),
                limit=limits.get((device, uid), 0),
            )
            for device, uid in sorted(limits.keys() | used.keys())
            if uid in pods
        )
        self._unproven = {card.device: max(0, card.used - sum(sum_by_pod(card.uses).values())) for card in cards}

    def _tell_refused(self) -> None:
        """Tells of annotations that do not count, once for each pod."""
        refused = self._tenants.rejected_limits
        for pod in self._pods():
            uid = PodUid(pod.metadata.uid)
            if uid in refused and uid not in self._told:
                self._tell(pod, "GpuMemoryLimitRefused", refused[uid], "Warning")
        self._told = set(refused)


def _own_pod(processes: ProcessTable) -> PodUid | None:
    """The pod that the agent runs in, of which an MPS server may be a part; it is no stranger on any card."""
    process = processes.identify(os.getpid())
    residence = None if process is None else processes.pod_of(process)
    return None if residence is None else residence.pod


class CardReader:
    """Reads cards.

    Args:
        hardware: the node's cards.
        processes: the machine's processes, in the PID namespace that NVML reports (the host's).
    """

    def __init__(self, hardware: AsyncNvml, processes: ProcessTable) -> None:
        self._hardware = hardware
        self._processes = processes

    async def __call__(self, device: str) -> CardUse | None:
        """A card or MIG device as it is now; ``None`` if it cannot be read.

        Args:
            device: UUID, ``GPU-`` or ``MIG-``.
        """
        name = MigUuid(device) if device.startswith("MIG-") else GpuUuid(device)
        try:
            processes = await self._hardware.processes(name)
            memory = await self._hardware.memory(name)
        except NvmlError:
            return None
        uses = tuple(use for each in processes if (use := self._use(each)) is not None)
        return CardUse(device=device, total=memory.total, used=memory.used, uses=uses)

    def _use(self, told: Process) -> ProcessUse | None:
        process = self._processes.identify(told.pid)
        if process is None:
            return None
        residence = self._processes.pod_of(process)
        return ProcessUse(process=process, bytes=told.memory_bytes, pod=None if residence is None else residence.pod)
