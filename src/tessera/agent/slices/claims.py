"""PreStartContainer: from the devices that kubelet picked to the slices that the pod was promised.

Which container starts is found out by :mod:`tessera.agent.slices.claimants`. Its environment names all its slices,
those of other profiles too; kubelet calls once for each profile, and each call defines anew what is known by then.

A pod without a promise is refused: it came around the webhook. The wait for a slice is bounded, and a refusal is not
the end: kubelet starts the container again after a while and asks again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.metrics import Metrics
from tessera.agent.inventory.positions import SlicePosition
from tessera.agent.slices.cdi import CdiFolder
from tessera.agent.slices.claimants import ClaimingContainer, ContainerFinder, PodDirectory, unclaimed_positions
from tessera.agent.slices.device_binding import TooManyDevices, bind_devices
from tessera.agent.slices.events import DevicesBound, SliceJournal
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import MIG_RESOURCE_PREFIX, PodUid
from tessera.clock import Clock
from tessera.kubelet.interfaces import Kubelet, PluginError
from tessera.nvml.asynchronous.async_nvml import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuUuid


class SliceClaims:
    """Hands slices to containers.

    Args:
        kubelet: knows who holds which devices.
        book: knows which slices exist and for whom.
        pods: the pods of this node, and the API server's word on their promises.
        cdi: where devices are defined.
        save: writes the journal.
        hardware: tells the device files of a slice.
        changes: wakes waiters.
        clock: for pauses and durations.
        metrics: counts.
        timeout: seconds to wait for a slice.
    """

    def __init__(
        self,
        *,
        kubelet: Kubelet,
        book: SliceStateMachine,
        pods: PodDirectory,
        cdi: CdiFolder,
        save: Callable[[SliceJournal], None],
        hardware: AsyncNvml,
        changes: ChangeNotifier,
        clock: Clock,
        metrics: Metrics,
        timeout: float,
    ) -> None:
        self._claimants = ContainerFinder(kubelet=kubelet, slices=book.table, pods=pods, changes=changes, clock=clock)
        self._book = book
        self._pods = pods
        self._cdi = cdi
        self._save = save
        self._hardware = hardware
        self._changes = changes
        self._clock = clock
        self._metrics = metrics
        self._timeout = timeout

    def unclaimed(self, resource: str) -> list[SlicePosition]:
        """Promised positions of a resource that no container has claimed, oldest promise first."""
        profile = resource.removeprefix(MIG_RESOURCE_PREFIX)
        return [
            position
            for pod in self._book.table.promises
            for position in unclaimed_positions(self._book.table, pod)
            if position.profile == profile
        ]

    async def claim(self, resource: str, device_ids: Sequence[str]) -> None:
        """Returns when the container that holds these devices can be started.

        Raises:
            PluginError: it cannot; the text says why and what to do.
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
        if self._book.table.slices_of(pod):
            return
        if self._book.table.is_released(pod):
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
        if not await self._changes.wait_until(lambda: bool(self._book.table.slices_of(pod)), self._left(deadline)):
            raise PluginError(f"the promise to pod {self._name(pod)} did not reach this node in {self._timeout:.0f} s")

    def _name(self, pod: PodUid) -> str:
        named = [
            f"{p.metadata.namespace}/{p.metadata.name}" for p in self._pods.live_pods() if PodUid(p.metadata.uid) == pod
        ]
        return named[0] if named else pod

    # What they mean ---------------------------------------------------------------------------------------------

    def _bind(
        self, resource: str, device_ids: tuple[str, ...], claimant: ClaimingContainer
    ) -> Mapping[str, SlicePosition]:
        """Binds all that is known of the pod, and returns what the starting container has."""
        slices = self._book.table.slices_of(claimant.pod)
        try:
            bound = bind_devices(
                dict.fromkeys((*claimant.of_pod, *device_ids)), slices, self._book.table.bindings_of(claimant.pod)
            )
        except TooManyDevices as error:
            raise PluginError(f"pod {self._name(claimant.pod)}: {error}") from error
        self._book.handle(DevicesBound(claimant.pod, bound))
        return {device: bound[device] for device in self._claimants.devices(resource, device_ids, claimant)}

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    async def _made(self, pod: PodUid, positions: Iterable[SlicePosition], deadline: float) -> None:
        needed = list(positions)
        if not await self._changes.wait_until(
            lambda: (
                all(self._book.table.ready_slice(pod, position) for position in needed)
                or self._book.table.is_released(pod)
            ),
            self._left(deadline),
        ):
            missing = ", ".join(p.device_id for p in needed if self._book.table.ready_slice(pod, p) is None)
            lost = any(self._book.table.is_unreachable(position.gpu) for position in needed)
            why = (
                "the card does not answer" if lost else self._book.table.last_problem_text(pod) or "NVML is still at it"
            )
            raise PluginError(
                f"slices not ready after {self._timeout:.0f} s: {missing}: {why}; the start is tried again"
            )
        if self._book.table.is_released(pod):
            raise PluginError(f"pod {self._name(pod)} has ended; its slices are given back")

    async def _define(self, pod: PodUid, container: Mapping[str, SlicePosition]) -> None:
        """Writes the CDI files of a container whose slices are made."""
        made = {device: self._book.table.ready_slice(pod, position) for device, position in container.items()}
        order = {position: number for number, position in enumerate(self._book.table.slices_of(pod))}
        ready = [each for each in made.values() if each is not None]
        uuids = [each.computes[0][1] for each in sorted(ready, key=lambda each: order.get(each.position, 0))]
        try:
            self._save(self._book.table.journal())
            for device, each in made.items():
                if each is not None:
                    ci_id = each.computes[0][0]
                    files = await self._hardware.device_files(GpuUuid(each.position.gpu), each.gi_id, ci_id)
                    self._cdi.write(device, uuids, files)
        except (NvmlError, OSError) as error:
            raise PluginError(f"the slices of pod {self._name(pod)} cannot be handed over: {error}") from error
