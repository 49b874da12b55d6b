"""PreStartContainer: finds the promised slices for the devices that kubelet picked.

:mod:`tessera.agent.slices.claimants` finds the container that starts. Its environment names all its slices, those of
other profiles too. Kubelet calls once for each profile, and each call writes anew all slices that are known by then.

A pod without a promise is refused: it bypassed the webhook. The wait for a slice is bounded. After a refusal kubelet
starts the container again after a while and asks again.
"""

from collections.abc import Iterable, Mapping, Sequence

from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.inventory.positions import SlicePosition
from tessera.agent.slices.cdi import CdiFolder
from tessera.agent.slices.claimants import ClaimingContainer, ContainerFinder, PodDirectory, unclaimed_positions
from tessera.agent.slices.device_binding import TooManyDevices, bind_devices
from tessera.agent.slices.events import DevicesBound
from tessera.agent.slices.journal import SliceJournalFile
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import MIG_RESOURCE_PREFIX, PodUid
from tessera.kubelet.interfaces import Kubelet, PluginError
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuUuid


class SliceClaims:
    """Gives slices to containers.

    Args:
        runtime: options, clock and metrics of this agent.
        kubelet: lists the devices of each container.
        machine: the slices and the pods that own them.
        pods: the pods of this node, and the API server's answer about their promises.
        cdi: the folder of the CDI files.
        journal: written to disk before a container gets its slices.
        hardware: lists the device files of a slice.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        kubelet: Kubelet,
        machine: SliceStateMachine,
        pods: PodDirectory,
        cdi: CdiFolder,
        journal: SliceJournalFile,
        hardware: AsyncNvml,
    ) -> None:
        self._changes = runtime.changes
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._timeout = runtime.options.claim_timeout
        self._claimants = ContainerFinder(
            kubelet=kubelet, slices=machine.table, pods=pods, changes=self._changes, clock=self._clock
        )
        self._machine = machine
        self._pods = pods
        self._cdi = cdi
        self._journal = journal
        self._hardware = hardware

    def unclaimed(self, resource: str) -> list[SlicePosition]:
        """Promised positions of a resource that no container has claimed, oldest promise first."""
        profile = resource.removeprefix(MIG_RESOURCE_PREFIX)
        return [
            position
            for pod in self._machine.table.promises
            for position in unclaimed_positions(self._machine.table, pod)
            if position.profile == profile
        ]

    async def claim(self, resource: str, device_ids: Sequence[str]) -> None:
        """Waits until the container that holds these devices can be started.

        Raises:
            PluginError: it cannot be started; the text gives the reason and the next step for the user.
        """
        began = self._clock.monotonic()
        deadline = began + self._timeout
        outcome = "refused"
        try:
            claimant = await self._claimants.find(resource, device_ids)
            await self._promised(claimant.pod, deadline)
            container = self._bind(resource, tuple(device_ids), claimant)
            await self._made(claimant.pod, container.values(), deadline)
            await self._define(claimant.pod, container)
            outcome = "ready"
        finally:
            self._metrics.observe_claim(outcome, self._clock.monotonic() - began)

    async def _promised(self, pod: PodUid, deadline: float) -> None:
        if self._machine.table.slices_of(pod):
            return
        if self._machine.table.is_released(pod):
            raise PluginError(f"pod {self._name(pod)} has ended; its slices are given back")
        try:
            promised = await self._pods.has_promise(pod)
        except ConnectionError as error:
            raise PluginError(f"the API server did not say whether slices are promised to the pod: {error}") from error
        if not promised:
            raise PluginError(
                f"pod {self._name(pod)} has no promise of a slice: a pod that asks for {MIG_RESOURCE_PREFIX}* must "
                "come through Tessera's admission webhook and must not set spec.nodeName; delete it and create it again"
            )
        if not await self._changes.wait_until(lambda: bool(self._machine.table.slices_of(pod)), self._left(deadline)):
            raise PluginError(f"the promise to pod {self._name(pod)} did not reach this node in {self._timeout:.0f} s")

    def _name(self, pod: PodUid) -> str:
        named = [
            f"{p.metadata.namespace}/{p.metadata.name}" for p in self._pods.live_pods() if PodUid(p.metadata.uid) == pod
        ]
        return named[0] if named else pod

    # From device IDs to slices ------------------------------------------------------------------------------------

    def _bind(
        self, resource: str, device_ids: tuple[str, ...], claimant: ClaimingContainer
    ) -> Mapping[str, SlicePosition]:
        """Binds all known devices of the pod, and returns the slices of the starting container."""
        slices = self._machine.table.slices_of(claimant.pod)
        try:
            bound = bind_devices(
                dict.fromkeys((*claimant.of_pod, *device_ids)), slices, self._machine.table.bindings_of(claimant.pod)
            )
        except TooManyDevices as error:
            raise PluginError(f"pod {self._name(claimant.pod)}: {error}") from error
        self._machine.handle(DevicesBound(claimant.pod, bound))
        return {device: bound[device] for device in self._claimants.devices(resource, device_ids, claimant)}

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    async def _made(self, pod: PodUid, positions: Iterable[SlicePosition], deadline: float) -> None:
        needed = list(positions)
        if not await self._changes.wait_until(
            lambda: (
                all(self._machine.table.ready_slice(pod, position) for position in needed)
                or self._machine.table.is_released(pod)
            ),
            self._left(deadline),
        ):
            missing = ", ".join(p.device_id for p in needed if self._machine.table.ready_slice(pod, p) is None)
            lost = any(self._machine.table.is_unreachable(position.gpu) for position in needed)
            why = (
                "the card does not answer"
                if lost
                else self._machine.table.last_problem_text(pod) or "NVML is still at it"
            )
            raise PluginError(
                f"slices not ready after {self._timeout:.0f} s: {missing}: {why}; the start is tried again"
            )
        if self._machine.table.is_released(pod):
            raise PluginError(f"pod {self._name(pod)} has ended; its slices are given back")

    async def _define(self, pod: PodUid, container: Mapping[str, SlicePosition]) -> None:
        """Writes the CDI files of a container whose slices exist."""
        made = {device: self._machine.table.ready_slice(pod, position) for device, position in container.items()}
        order = {position: number for number, position in enumerate(self._machine.table.slices_of(pod))}
        ready = [each for each in made.values() if each is not None]
        uuids = [each.computes[0][1] for each in sorted(ready, key=lambda each: order.get(each.position, 0))]
        try:
            self._journal.save(self._machine.table.journal())
            for device, each in made.items():
                if each is not None:
                    ci_id = each.computes[0][0]
                    files = await self._hardware.device_files(GpuUuid(each.position.gpu), each.gi_id, ci_id)
                    self._cdi.write(device, uuids, files)
        except (NvmlError, OSError) as error:
            raise PluginError(f"the slices of pod {self._name(pod)} cannot be handed over: {error}") from error
