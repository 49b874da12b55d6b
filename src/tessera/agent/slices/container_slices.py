"""The device plugin of slices on demand: what it lists, and the promised slices for the devices that kubelet picked.

The plugin of a profile advertises every slice that the node *could* make: as many devices of each profile as empty
cards hold, though they exclude each other. The controller's gate admits only pods whose slices fit. So Allocate never
waits and never fails for a full card; the wait is in PreStartContainer, which kubelet calls for many pods at a time.

PreStartContainer: :mod:`tessera.agent.slices.container_finder` finds the container that starts. Its environment names
all its slices, those of other profiles too. Kubelet calls once for each profile, and each call writes anew all slices
that are known by then.

The controller promises positions, the scheduler counts devices, and kubelet picks device IDs. Slices of one profile on
one node are alike until kubelet has picked. A *binding* assigns a device ID to a slice of the pod and lasts as long as
the pod. Rules:

1.  An ID stays bound to the slice it was first bound to, so a restarted container, or an app container that takes over
    its init container's devices, finds the same slice.
2.  An ID that names the position of one of the pod's own slices is bound to that one.
3.  Other IDs get the pod's other slices of the profile in the order of the promise.
4.  No slice is bound to two IDs, and no ID to another pod's slice.

A pod without a promise is refused: it bypassed the webhook. The wait for a slice is bounded. After a refusal kubelet
starts the container again after a while and asks again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tessera.agent.base.device_plugin import NO_DEVICE, CdiFolder, ResourcePlugin, cdi_name
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.inventory.device_state import CheckedDevice, StartCheck
from tessera.agent.inventory.sliceable_gpus import SlicePosition, parse_device_id
from tessera.agent.slices.container_finder import ContainerFinder, StartingContainer, unbound_positions
from tessera.agent.slices.events import DevicesBound
from tessera.agent.slices.further_ways import find_lent, is_lender
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import MIG_RESOURCE_PREFIX, PodUid, resource_of
from tessera.api.pod_annotations import asks_for_preflight
from tessera.kube.resources import Pod
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginError, PreferredRequest
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuUuid


class TooManyDevices(ValueError):  # noqa: N818 - the name says what is wrong
    """A pod holds more devices of a profile than slices were promised to it."""


def bind_devices(
    device_ids: Iterable[str], slices: Sequence[SlicePosition], known: Mapping[str, SlicePosition]
) -> dict[str, SlicePosition]:
    """Returns the pod's bindings when its containers hold ``device_ids``.

    Args:
        device_ids: IDs of any profiles; those bound already keep their slice.
        slices: the slices promised to the pod.
        known: its bindings so far; those to slices that it no longer has are dropped.

    Raises:
        TooManyDevices: no slice is left for an ID.
        ValueError: a text is not a device ID.
    """
    bound = {device: slice_ for device, slice_ in known.items() if slice_ in slices}
    unbound = {device: parse_device_id(device) for device in device_ids if device not in bound}
    free = [slice_ for slice_ in slices if slice_ not in bound.values()]
    for device, position in unbound.items():
        if position in free:
            bound[device] = position
            free.remove(position)
    for device, position in unbound.items():
        if device not in bound:
            match = next((slice_ for slice_ in free if slice_.profile == position.profile), None)
            if match is None:
                held = sum(slice_.profile == position.profile for slice_ in slices)
                raise TooManyDevices(
                    f"device {device}: the pod was promised {held} slices of {position.profile} and all are in "
                    "use by its other containers"
                )
            bound[device] = match
            free.remove(match)
    return bound


def preferred_devices(request: PreferredRequest, promised: Iterable[SlicePosition]) -> list[str]:
    """The devices that kubelet should pick for one container.

    The devices that kubelet must include come first, then promised positions, oldest promise first, then other devices
    of the cards of promised positions that are no available devices, then any others. Not every position is a device:
    a slice with the media engines may start anywhere on its card, and the card has one device for it.

    Args:
        request: kubelet's question.
        promised: positions that no container has yet, oldest promise first.
    """
    chosen = dict.fromkeys(request.must_include)
    available = dict.fromkeys(request.available)
    positions = list(promised)
    elsewhere = [position.gpu for position in positions if position.device_id not in available]
    by_card = [device for gpu in elsewhere for device in request.available if parse_device_id(device).gpu == gpu]
    for device in [*(position.device_id for position in positions), *by_card, *request.available]:
        if len(chosen) >= request.size:
            break
        if device in available:
            chosen[device] = None
    return list(chosen)[: request.size]


class ContainerSlices:
    """Gives slices to containers.

    Args:
        runtime: kubelet, which lists the devices of each container; the pods of this node, and the API server's answer
            about their promises.
        machine: the slices and the pods that own them.
        cdi: the folder of the CDI files.
        journal: written to disk before a container gets its slices.
        start_check: tests the slices of pods that ask for it.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        machine: SliceStateMachine,
        cdi: CdiFolder,
        journal: SliceJournalFile,
        start_check: StartCheck,
    ) -> None:
        self._start_check = start_check
        self._changes = runtime.changes.about(Fact.SLICES)
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._timeout = runtime.options.claim_timeout
        self._finder = ContainerFinder(runtime, machine.table)
        self._machine = machine
        self._slices = machine.table
        self._pods = runtime.mirror
        self._cdi = cdi
        self._journal = journal
        self._hardware = runtime.hardware
        self._events = runtime.object_events

    def list_unbound(self, resource: str) -> list[SlicePosition]:
        """Promised positions of a resource that no container has, oldest promise first."""
        profile = resource.removeprefix(MIG_RESOURCE_PREFIX)
        return [
            position
            for pod in self._slices.promises
            for position in unbound_positions(self._slices, pod)
            if position.profile == profile
        ]

    async def give(self, resource: str, device_ids: Sequence[str]) -> None:
        """Waits until the container that holds these devices can be started, and its slices are tested if its pod asks.

        Raises:
            PluginError: it cannot be started; the text gives the reason and the next step for the user.
        """
        began = self._clock.monotonic()
        deadline = began + self._timeout
        outcome = "refused"
        try:
            starting = await self._finder.find(resource, device_ids)
            await self._wait_for_promise(starting.pod, deadline)
            pod = self._pod(starting.pod)
            if pod is not None and self._lends(pod):
                await self._withhold(starting.pod, device_ids, deadline)
            else:
                container = self._bind(resource, tuple(device_ids), starting)
                await self._wait_for_slices(starting.pod, container.values(), deadline)
                await self._write_cdi_files(starting.pod, container)
                pod = self._pod(starting.pod)  # it may ask since then, or the watch may show it only now
                if pod is not None and asks_for_preflight(pod.metadata.annotations):
                    await self._start_check.check(resource, self._tested(starting.pod, container), pod=starting.pod)
            outcome = "ready"
        finally:
            self._metrics.claims.labels(outcome).observe(self._clock.monotonic() - began)

    def _tested(self, pod: PodUid, container: Mapping[str, SlicePosition]) -> Iterator[CheckedDevice]:
        for position in container.values():
            made = self._slices.ready_slice(pod, position)
            if made is not None:
                yield CheckedDevice(made.computes[0][1], position.gpu, made.gi_id)

    async def _wait_for_promise(self, pod: PodUid, deadline: float) -> None:
        if self._slices.slices_of(pod):
            return
        if self._slices.is_released(pod):
            raise PluginError(f"pod {self._name(pod)} has ended; its slices are released")
        try:
            promised = await self._pods.has_promise(pod)
        except ConnectionError as error:
            raise PluginError(f"the API server did not say whether slices are promised to the pod: {error}") from error
        if not promised:
            raise PluginError(
                f"pod {self._name(pod)} has no promise of a slice: a pod that asks for {MIG_RESOURCE_PREFIX}* must "
                "come through Tessera's admission webhook and must not set spec.nodeName; delete it and create it again"
            )

        def is_promised() -> bool:
            return bool(self._slices.slices_of(pod))

        if not await self._changes.wait_until(is_promised, self._seconds_until(deadline)):
            raise PluginError(f"the promise to pod {self._name(pod)} did not reach this node in {self._timeout:.0f} s")

    def _name(self, pod: PodUid) -> str:
        named = [
            f"{p.metadata.namespace}/{p.metadata.name}" for p in self._pods.live_pods() if PodUid(p.metadata.uid) == pod
        ]
        return named[0] if named else pod

    # Loans (tessera.agent.slices.further_ways) --------------------------------------------------------------------

    def _pod(self, uid: PodUid) -> Pod | None:
        return next((pod for pod in self._pods.live_pods() if PodUid(pod.metadata.uid) == uid), None)

    def _lends(self, pod: Pod) -> bool:
        """True for a lender; one whose container has its slice already keeps it, and lends nothing."""
        return is_lender(pod) and not self._slices.bindings_of(PodUid(pod.metadata.uid))

    async def _withhold(self, uid: PodUid, device_ids: Sequence[str], deadline: float) -> None:
        """Lets a container start without the slices of its pod, once they exist."""
        await self._wait_for_slices(uid, self._slices.slices_of(uid), deadline)
        try:
            for device in device_ids:
                self._cdi.write(device, (NO_DEVICE,))
        except OSError as error:
            raise PluginError(f"the start of pod {self._name(uid)} cannot be prepared: {error}") from error

    def _borrow(self, uid: PodUid, devices: Iterable[str]) -> dict[str, SlicePosition]:
        """The slice that another pod lends to the one device that a pod holds; empty if none does."""
        pod, held = self._pod(uid), list(devices)
        found = find_lent(self._slices, self._pods.live_pods(), pod) if pod is not None and len(held) == 1 else None
        if pod is None or found is None:
            return {}
        lender, position = found
        if self._slices.bindings_of(uid).get(held[0]) != position:
            text = f"its container starts with {position.profile}, which pod {lender.metadata.name} lends it"
            self._events.record_on_pod(pod, "SliceLent", text, "Normal")
        return {held[0]: position}

    def _check_not_lent(self, uid: PodUid, positions: Iterable[SlicePosition]) -> None:
        for position in positions:
            if self._slices.owners.get(position) == uid and self._slices.borrower_of(position) is not None:
                raise PluginError(
                    f"pod {self._name(uid)}: its slice {position.device_id} is lent to another pod; delete this "
                    "pod, and that one returns to its own slice"
                )

    # From device IDs to slices ------------------------------------------------------------------------------------

    def _bind(
        self, resource: str, device_ids: tuple[str, ...], starting: StartingContainer
    ) -> Mapping[str, SlicePosition]:
        """Binds all known devices of the pod, and returns the slices of the starting container."""
        slices, held = self._slices.slices_of(starting.pod), dict.fromkeys((*starting.of_pod, *device_ids))
        try:
            known = self._slices.bindings_of(starting.pod)
            bound = self._borrow(starting.pod, held) or bind_devices(held, slices, known)
        except TooManyDevices as error:
            raise PluginError(f"pod {self._name(starting.pod)}: {error}") from error
        self._check_not_lent(starting.pod, bound.values())
        self._machine.handle(DevicesBound(starting.pod, bound))
        if set(known.values()) - set(bound.values()):
            self._changes.notify(Fact.SLICES)  # a lent slice may be destroyed now
        return {device: bound[device] for device in self._finder.devices(resource, device_ids, starting)}

    def _seconds_until(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    async def _wait_for_slices(self, pod: PodUid, positions: Iterable[SlicePosition], deadline: float) -> None:
        needed = list(positions)

        def is_decided() -> bool:
            return self._slices.is_released(pod) or not self._positions_not_ready(pod, needed)

        if not await self._changes.wait_until(is_decided, self._seconds_until(deadline)):
            missing = self._positions_not_ready(pod, needed)
            reason = self._slices.last_problem_text(pod) or "NVML has not answered yet"
            if any(self._slices.is_unreachable(position.gpu) for position in needed):
                reason = "the card does not answer"
            names = ", ".join(position.device_id for position in missing)
            raise PluginError(
                f"slices not ready after {self._timeout:.0f} s: {names}: {reason}; the start is tried again"
            )
        if self._slices.is_released(pod):
            raise PluginError(f"pod {self._name(pod)} has ended; its slices are released")

    def _positions_not_ready(self, pod: PodUid, positions: Iterable[SlicePosition]) -> list[SlicePosition]:
        """The positions at which a pod's slice is not ready."""
        return [position for position in positions if self._slices.ready_slice(pod, position) is None]

    async def _write_cdi_files(self, pod: PodUid, container: Mapping[str, SlicePosition]) -> None:
        """Writes the CDI files of a container whose slices exist."""
        made = {device: self._slices.ready_slice(pod, position) for device, position in container.items()}
        order = {position: number for number, position in enumerate(self._slices.slices_of(pod))}
        ready = [each for each in made.values() if each is not None]
        uuids = [each.computes[0][1] for each in sorted(ready, key=lambda each: order.get(each.position, 0))]
        try:
            self._journal.save(self._slices.journal())
            for device, each in made.items():
                if each is not None:
                    ci_id = each.computes[0][0]
                    files = await self._hardware.device_files(GpuUuid(each.position.gpu), each.gi_id, ci_id)
                    self._cdi.write(device, uuids, files)
        except (NvmlError, OSError) as error:
            raise PluginError(f"the slices of pod {self._name(pod)} cannot be prepared: {error}") from error


class SliceDevicePlugin(ResourcePlugin):
    """See :class:`tessera.kubelet.interfaces.DevicePlugin`.

    Args:
        resource: ``nvidia.com/mig-<profile>``.
        devices: the list to advertise now.
        slices: gives slices to containers.
        changes: announces that the list may have changed.
    """

    def __init__(
        self,
        resource: str,
        *,
        devices: Callable[[], Sequence[Device]],
        slices: ContainerSlices,
        changes: ChangeNotifier,
    ) -> None:
        super().__init__(resource, devices=devices, changes=changes)
        self._slices = slices

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        """Promised positions first. Two containers of one request never get the same position."""
        promised = self._slices.list_unbound(self._resource)
        answers: list[list[str]] = []
        for request in requests:
            taken = {device for answer in answers for device in answer}
            answers.append(preferred_devices(request, [each for each in promised if each.device_id not in taken]))
        return answers

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        """Answers CDI names; the files behind them are written before the container starts.

        Raises:
            PluginError: an ID is one that this plugin never advertised.
        """
        return [
            ContainerAllocateResponse(cdi_devices=tuple(self._cdi_name_of(device) for device in devices))
            for devices in requests
        ]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """Waits until the container's slices and CDI files exist.

        Raises:
            PluginError: they do not exist.
        """
        for device in device_ids:
            self._cdi_name_of(device)
        await self._slices.give(self._resource, device_ids)

    def _cdi_name_of(self, device: str) -> str:
        try:
            position = parse_device_id(device)
        except ValueError as error:
            raise PluginError(f"{self._resource}: {error}") from error
        if resource_of(position.profile) != self._resource:
            raise PluginError(f"{self._resource}: device ID {device!r} is one of {resource_of(position.profile)}")
        return cdi_name(device)
