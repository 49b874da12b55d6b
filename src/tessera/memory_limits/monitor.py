"""Samples the memory of shared cards, and passes the policy's decisions to the enforcement.

The monitor reads the shares that pods were given from kubelet, and the memory that they use from NVML and the kernel
(:mod:`tessera.memory_limits.monitor`). :mod:`tessera.memory_limits.policy` decides.
:mod:`tessera.memory_limits.enforcement` reads everything again, and then carries the decisions out.

Rules:

- The monitor does not read a card or MIG device that is not shared. It reads a shared one often while a pod holds or
  uses a share, and seldom otherwise.
- Without an answer of kubelet there is no decision: the limit of a pod comes only from the share that it was given. A
  share is not computed from an impossible size, since it is kept as long as the pod lives. Pods that came while no
  share was recorded (the file was lost, enforcement was off) may use the whole card.
- In mode ``observe`` a pod gets one event when it exceeds its limit; from ``warn`` on it also gets one when it comes
  near.
- A process without a pod that the kernel proves counts in one metric and nowhere else.
"""

import logging
import os
from collections.abc import Mapping, Sequence

from tessera.agent.base.change_notifier import Fact
from tessera.agent.base.metrics import MemoryUsage
from tessera.agent.base.options import EnforcementMode
from tessera.agent.base.processes import ProcessTable
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.state_file import StateFile
from tessera.agent.main.satellites import MemoryInputs, MemoryWatch
from tessera.api.names import PodUid
from tessera.api.sharing.devices import Advertisement
from tessera.kube.resources import Pod
from tessera.memory_limits.claimed_shares import add_offer, add_users
from tessera.memory_limits.enforcement import MemoryEnforcement
from tessera.memory_limits.grants import MemoryGrants, Shares, cgroup_uid, shared_devices
from tessera.memory_limits.policy import (
    CardUse,
    MemoryAction,
    MemoryGrant,
    MemoryPolicy,
    MemorySample,
    ProcessUse,
    is_plausible_total,
    sum_by_pod,
)
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuProcess, GpuUuid, MigUuid

_log = logging.getLogger(__name__)


class ProcessMemoryReader:
    """Reads the memory of each process on a card: NVML's processes, each with the pod that the kernel proves for it.

    The reader never guesses: a card that cannot be read has no reading, and a process that ended between NVML's answer
    and the kernel's is left out.

    Args:
        hardware: the node's cards.
        processes: the machine's processes, in the PID namespace that NVML reports (the host's).
    """

    def __init__(self, hardware: AsyncNvml, processes: ProcessTable) -> None:
        self._hardware = hardware
        self._processes = processes

    def own_pod(self) -> PodUid | None:
        """The pod that the agent runs in; an MPS server may be a part of it."""
        process = self._processes.identify(os.getpid())
        found = None if process is None else self._processes.pod_of(process)
        return None if found is None else found.pod

    async def read(self, device: str) -> CardUse | None:
        """Reads the present state of a card or MIG device; ``None`` if it cannot be read.

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
        return CardUse(device=device, total=memory.total, used=memory.used + (memory.reserved or 0), uses=uses)

    def _use(self, listed: GpuProcess) -> ProcessUse | None:
        process = self._processes.identify(listed.pid)
        if process is None or listed.memory_bytes is None:  # nobody acts on memory that nobody knows
            return None
        found = self._processes.pod_of(process)
        return ProcessUse(process=process, bytes=listed.memory_bytes, pod=None if found is None else found.pod)


#: Seconds between two samples while a pod holds or uses a share.
PERIOD = 5.0
#: Seconds between two samples of shared cards that no pod holds or uses.
IDLE_PERIOD = 60.0


class MemoryMonitor(MemoryWatch):
    """Watches the memory of one node's shared cards.

    Args:
        runtime: metrics, the clock, and the file of the share that each pod was given when it came.
        reader: reads cards.
        policy: decides.
        enforcement: carries decisions out.
        inputs: inputs from the rest of the agent.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        reader: ProcessMemoryReader,
        policy: MemoryPolicy,
        enforcement: MemoryEnforcement,
        inputs: MemoryInputs,
    ) -> None:
        self._reader = reader
        self._policy = policy
        self._enforcement = enforcement
        self._inputs = inputs
        self._shares_file = runtime.state_file("shares.json")
        self._changes = runtime.changes
        self._clock = runtime.clock
        #: The agent's own pod; it may use any card without a grant.
        self._own_pod = reader.own_pod()
        self._file: StateFile[Shares] = StateFile(self._shares_file, Shares)
        stored = self._file.load()
        self._grants = MemoryGrants(stored)
        #: True if no record has the shares of the pods that are here already; false after the first sample.
        self._without_record = stored is None
        #: Pods with an event that their annotation is rejected.
        self._reported: set[PodUid] = set()
        #: By pod and card, the memory of the last sample, for the metrics.
        self._usage: tuple[MemoryUsage, ...] = ()
        #: By card, the used bytes of the last sample that no pod is proven to hold, for the metrics.
        self._unattributed: Mapping[str, int] = {}
        runtime.recorders.attach("memory", policy)
        runtime.metrics.show_memory(self.memory_usage, lambda: self._unattributed)

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """Memory of shared cards by pod, of the last sample."""
        return self._usage

    async def run(self) -> None:
        """Samples until cancelled; not at all in mode ``off``."""
        if self._policy.rules.mode is EnforcementMode.OFF:
            self._delete_shares()
            return
        while True:
            watches = bool(self._watched_devices())
            changes = self._changes.about(Fact.OFFER | Fact.SLICES | Fact.PODS if watches else Fact.OFFER)
            count = changes.count
            busy = await self.take_sample()
            await self._clock.sleep(PERIOD)
            if not busy:
                await changes.wait(count, IDLE_PERIOD if watches else None)

    async def take_sample(self) -> bool:
        """Takes one sample and carries out the decisions; returns true if any pod holds or uses a share."""
        cards, grants = await self._read()
        pods = {cgroup_uid(pod): pod for pod in self._inputs.live_pods()}
        self._update_metrics(cards, grants, pods)
        self._report_rejected_limits()
        sample = MemorySample(
            now=self._clock.monotonic(), cards=cards, grants=grants, api_reachable=self._inputs.api_reachable()
        )
        by_device = {card.device: card for card in cards}
        for decision in self._policy.handle(sample):
            if decision.action is not MemoryAction.STRANGER or decision.pod != self._own_pod:
                await self._enforcement.enforce(decision, by_device[decision.device], pods)
        return bool(grants) or any(card.uses for card in cards)

    async def _read(self) -> tuple[tuple[CardUse, ...], tuple[MemoryGrant, ...]]:
        """The shared cards that can be read, and the pods' grants; both empty if kubelet does not answer."""
        watched = self._watched_devices()
        if not watched and not self._without_record:
            return (), ()
        try:
            users = add_users(await self._inputs.read_users(), self._inputs.held(), self._inputs.live_pods())
        except ConnectionError as error:
            _log.warning(
                "memory of shared cards is not checked: kubelet did not list the pods that hold them: %s", error
            )
            return (), ()
        if self._without_record:
            self._without_record = False
            self._grants.without_record = frozenset((device, each.pod) for device in users for each in users[device])
        cards = tuple([card for device in watched if (card := await self._reader.read(device)) is not None])
        totals = {card.device: card.total for card in cards if is_plausible_total(card.total)}
        grants = self._grants.update(users, self._offer(), totals, self._inputs.live_pods())
        self._save_shares()
        return cards, self._grants.divide(grants, users, cards)

    def _watched_devices(self) -> Sequence[str]:
        """Devices that are shared now, and those of which pods still hold earlier shares."""
        held = {device for device, pods in self._grants.shares.items() if pods}
        return sorted(held | shared_devices(self._offer()).keys())

    def _offer(self) -> Advertisement:
        return add_offer(self._inputs.offer(), self._inputs.cards())

    def _save_shares(self) -> None:
        self._file.save_if_possible(self._grants.shares, "the shares of pods are not kept")

    def _delete_shares(self) -> None:
        """Deletes the file: in mode ``off`` no shares are recorded, so it would be wrong once the mode changes."""
        try:
            self._shares_file.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("the file with the shares of pods cannot be deleted: %s", error)

    def _update_metrics(
        self, cards: Sequence[CardUse], grants: Sequence[MemoryGrant], pods: Mapping[PodUid, Pod]
    ) -> None:
        limits = {(device, grant.pod): limit for grant in grants for device, limit in grant.limits.items()}
        used = {(card.device, pod): amount for card in cards for pod, amount in sum_by_pod(card.uses).items()}
        self._usage = tuple(
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
        self._unattributed = {card.device: max(0, card.used - sum(sum_by_pod(card.uses).values())) for card in cards}

    def _report_rejected_limits(self) -> None:
        """Records on each pod once that its annotation is rejected."""
        rejected = self._grants.rejected_limits
        for pod in self._inputs.live_pods():
            uid = PodUid(pod.metadata.uid)
            if uid in rejected and uid not in self._reported:
                self._enforcement.report_rejected_limit(pod, rejected[uid])
        self._reported = set(rejected)
