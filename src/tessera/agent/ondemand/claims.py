"""PreStartContainer: from the devices that kubelet picked to the slices that the pod was promised.

kubelet says only IDs. Which pod holds them is asked of its pod-resources API:

1.  A container that holds exactly these IDs is the one that starts. Its environment names all its slices, those of
    other profiles too.
2.  A container that holds some of them: an ordinary init container starts, which that API does not list; its app
    containers take the devices over. Its IDs of several profiles come in several calls, one after the other, and are
    put together as they come.
3.  Nobody holds any of them: an init container none of whose devices are taken over. After a short wait the devices go
    to the pod on this node that has such an init container, was promised them and has not claimed them, the one whose
    own positions these are first, else the oldest promise: slices of one profile are alike. As long as a pod without
    a promise has such an init container too, nobody gets them: it may be that one that starts.

A pod without a promise is refused: it came around the webhook. The wait for a slice is bounded, and a refusal is not
the end: kubelet starts the container again after a while and asks again.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from tessera.agent.metrics import Metrics
from tessera.agent.ondemand.binding import TooManyDevices, bind
from tessera.agent.ondemand.cdi import CdiFolder
from tessera.agent.ondemand.facts import Journal
from tessera.agent.ondemand.positions import Position, parse_device_id
from tessera.agent.ondemand.slices import Book
from tessera.agent.wakeup import Changes
from tessera.api.names import MIG_RESOURCE_PREFIX, PodUid
from tessera.clock import Clock
from tessera.kube.quantity import whole
from tessera.kube.resources import Pod
from tessera.kubelet.seam import ContainerResources, Kubelet, PluginError, PodResources
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuUuid
from tessera.nvml.worker import AsyncNvml

_log = logging.getLogger(__name__)

#: Seconds in which pod-resources may begin to list a pod, and in which the watch may begin to show a listed one.
_LISTED_WITHIN, _SHOWN_WITHIN = 0.5, 10.0
#: Seconds before pod-resources is asked again, unless something changes sooner.
_LISTING_PAUSE = 0.1


class PodDirectory(Protocol):
    """What the API server knows about this node's pods."""

    def live(self) -> Sequence[Pod]:
        """The pods bound to this node that are not over."""
        ...

    async def bound(self) -> Sequence[Pod]:
        """The same, asked of the server itself: whatever kubelet knows is among them.

        Raises:
            ConnectionError: it did not answer.
        """
        ...

    async def has_promise(self, pod: PodUid) -> bool:
        """Asks the server itself whether slices are promised to a pod; the watch may be behind.

        Raises:
            ConnectionError: it did not answer.
        """
        ...


class _Holder(msgspec.Struct, frozen=True):
    """Whose devices they are; ``container`` only if the API lists the container itself."""

    pod: PodUid
    container: ContainerResources | None = None
    listed: tuple[str, ...] = ()


#: A container that pod-resources lists, with all devices of one resource that it holds.
_Listed = tuple[PodResources, ContainerResources, frozenset[str]]


class Claims:
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
        book: Book,
        pods: PodDirectory,
        cdi: CdiFolder,
        save: Callable[[Journal], None],
        hardware: AsyncNvml,
        changes: Changes,
        clock: Clock,
        metrics: Metrics,
        timeout: float,
    ) -> None:
        self._kubelet = kubelet
        self._book = book
        self._pods = pods
        self._cdi = cdi
        self._save = save
        self._hardware = hardware
        self._changes = changes
        self._clock = clock
        self._metrics = metrics
        self._timeout = timeout
        self._unlisted: dict[PodUid, dict[str, tuple[str, ...]]] = {}

    def unclaimed(self, resource: str) -> list[Position]:
        """Promised positions of a resource that no container has claimed, oldest promise first."""
        profile = resource.removeprefix(MIG_RESOURCE_PREFIX)
        return [
            position
            for pod in self._book.promises
            for position in _free(self._book, pod)
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
            holder = await self._holder(resource, device_ids)
            await self._promised(holder.pod, deadline)
            container = self._bind(resource, tuple(device_ids), holder)
            await self._made(holder.pod, container.values(), deadline)
            await self._define(holder.pod, container)
            outcome = "ready"
        finally:
            self._metrics.claimed(outcome, self._clock.monotonic() - began)

    # Whose devices these are ------------------------------------------------------------------------------------

    async def _holder(self, resource: str, device_ids: Sequence[str]) -> _Holder:
        ids = frozenset(device_ids)
        began = self._clock.monotonic()
        while True:
            seen = self._changes.count
            listed = await self._listed(resource, ids)
            found = self._listed_holder(listed, ids)
            if found is not None:
                return found
            if self._clock.monotonic() - began > (_SHOWN_WITHIN if listed else _LISTED_WITHIN):
                break
            await self._changes.wait(seen, _LISTING_PAUSE)
        if listed:
            names = ", ".join(sorted({f"{pod.namespace}/{pod.name}" for pod, _, _ in listed}))
            raise PluginError(f"the API server does not show pod {names} on this node; the start is tried again")
        return await self._unlisted_holder(resource, device_ids)

    async def _listed(self, resource: str, device_ids: frozenset[str]) -> list[_Listed]:
        try:
            return list(_holding(await self._kubelet.pod_resources(), resource, device_ids))
        except ConnectionError as error:
            raise PluginError(f"kubelet's pod-resources API did not answer, so the pod is unknown: {error}") from error

    def _listed_holder(self, listed: Sequence[_Listed], device_ids: frozenset[str]) -> _Holder | None:
        """Rules 1 and 2; ``None`` also while the API server's watch does not know the pod yet."""
        live = {(pod.metadata.namespace, pod.metadata.name): PodUid(pod.metadata.uid) for pod in self._pods.live()}
        partly: _Holder | None = None
        for pod, container, held in listed:
            uid = live.get((pod.namespace, pod.name))
            if uid is None:
                continue
            devices = tuple(_mig_devices(pod.containers))
            if held == device_ids:
                return _Holder(uid, container, devices)
            partly = partly or _Holder(uid, None, devices)
        return partly

    async def _unlisted_holder(self, resource: str, device_ids: Sequence[str]) -> _Holder:
        """Rule 3."""
        asking = await self._asking_to_start(resource, len(device_ids))
        for uid in asking:
            if device_ids and self._book.bindings(uid).keys() >= set(device_ids):
                return _Holder(uid)
        if not await self._changes.until(lambda: all(map(self._book.slices_of, asking)), _SHOWN_WITHIN):
            names = ", ".join(name for uid, name in asking.items() if not self._book.slices_of(uid))
            raise PluginError(
                f"kubelet's pod-resources API names no pod of this node for {', '.join(device_ids)}; they may be those "
                f"of {names}, which has no promise of a slice: delete it; the start is tried again"
            )
        profile = resource.removeprefix(MIG_RESOURCE_PREFIX)
        free = {
            uid: [p for p in _free(self._book, uid) if p.profile == profile]
            for uid in self._book.promises
            if uid in asking
        }
        could = [uid for uid, positions in free.items() if len(positions) >= len(device_ids)]
        if not could:
            raise PluginError(
                f"kubelet's pod-resources API names no pod of this node for {', '.join(device_ids)} and no pod with an "
                f"unclaimed promise of {resource} could hold them; the start is tried again"
            )
        own = {parse_device_id(device) for device in device_ids}
        return _Holder(next((uid for uid in could if own <= set(free[uid])), could[0]))

    async def _asking_to_start(self, resource: str, count: int) -> Mapping[PodUid, str]:
        """Names of the pods of which an ordinary init container asks for so many of a resource."""
        try:
            pods = await self._pods.bound()
        except ConnectionError as error:
            raise PluginError(f"the API server did not say which pods are on this node: {error}") from error
        return {
            PodUid(pod.metadata.uid): f"{pod.metadata.namespace}/{pod.metadata.name}"
            for pod in pods
            if _init_containers(pod, resource, count)
        }

    async def _promised(self, pod: PodUid, deadline: float) -> None:
        if self._book.slices_of(pod):
            return
        if self._book.released(pod):
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
        if not await self._changes.until(lambda: bool(self._book.slices_of(pod)), self._left(deadline)):
            raise PluginError(f"the promise to pod {self._name(pod)} did not reach this node in {self._timeout:.0f} s")

    def _name(self, pod: PodUid) -> str:
        named = [
            f"{p.metadata.namespace}/{p.metadata.name}" for p in self._pods.live() if PodUid(p.metadata.uid) == pod
        ]
        return named[0] if named else pod

    # What they mean ---------------------------------------------------------------------------------------------

    def _bind(self, resource: str, device_ids: tuple[str, ...], holder: _Holder) -> Mapping[str, Position]:
        """Binds all that is known of the pod, and returns what the starting container has."""
        slices = self._book.slices_of(holder.pod)
        try:
            bound = bind(dict.fromkeys((*holder.listed, *device_ids)), slices, self._book.bindings(holder.pod))
        except TooManyDevices as error:
            raise PluginError(f"pod {self._name(holder.pod)}: {error}") from error
        self._book.bind(holder.pod, bound)
        if holder.container is not None:
            return {device: bound[device] for device in _mig_devices([holder.container])}
        return {device: bound[device] for device in self._collected(resource, device_ids, holder.pod)}

    def _collected(self, resource: str, device_ids: tuple[str, ...], pod: PodUid) -> list[str]:
        """The devices of an init container that came in this call and in those just before it."""
        self._unlisted = {uid: calls for uid, calls in self._unlisted.items() if self._book.slices_of(uid)}
        calls = self._unlisted.setdefault(pod, {})
        calls[resource] = device_ids
        spec = next((each for each in self._pods.live() if PodUid(each.metadata.uid) == pod), None)
        asks = _init_containers(spec, resource, len(device_ids)) if spec is not None else []
        together = {other: count for other, count in asks[0].items() if other != resource} if asks else {}
        devices = list(device_ids)
        for other, count in together.items():
            if len(calls.get(other, ())) == count:
                devices += calls[other]
        return devices

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())

    async def _made(self, pod: PodUid, positions: Iterable[Position], deadline: float) -> None:
        needed = list(positions)
        if not await self._changes.until(
            lambda: all(self._book.device(pod, position) for position in needed) or self._book.released(pod),
            self._left(deadline),
        ):
            missing = ", ".join(p.device_id for p in needed if self._book.device(pod, p) is None)
            lost = any(self._book.lost(position.gpu) for position in needed)
            why = "the card does not answer" if lost else self._book.last_notice(pod) or "NVML is still at it"
            raise PluginError(
                f"slices not ready after {self._timeout:.0f} s: {missing}: {why}; the start is tried again"
            )
        if self._book.released(pod):
            raise PluginError(f"pod {self._name(pod)} has ended; its slices are given back")

    async def _define(self, pod: PodUid, container: Mapping[str, Position]) -> None:
        """Writes the CDI files of a container whose slices are made."""
        made = {device: self._book.device(pod, position) for device, position in container.items()}
        order = {position: number for number, position in enumerate(self._book.slices_of(pod))}
        ready = [each for each in made.values() if each is not None]
        uuids = [each.computes[0][1] for each in sorted(ready, key=lambda each: order.get(each.position, 0))]
        try:
            self._save(self._book.journal())
            for device, each in made.items():
                if each is not None:
                    ci_id = each.computes[0][0]
                    files = await self._hardware.device_files(GpuUuid(each.position.gpu), each.gi_id, ci_id)
                    self._cdi.write(device, uuids, files)
        except (NvmlError, OSError) as error:
            raise PluginError(f"the slices of pod {self._name(pod)} cannot be handed over: {error}") from error


def _free(book: Book, pod: PodUid) -> list[Position]:
    claimed = book.bindings(pod).values()
    return [position for position in book.slices_of(pod) if position not in claimed]


def _mig_devices(containers: Iterable[ContainerResources]) -> Iterator[str]:
    """The device IDs of our kind that containers hold."""
    for container in containers:
        for devices in container.devices:
            if devices.resource_name.startswith(MIG_RESOURCE_PREFIX):
                yield from (device for device in devices.device_ids if _is_ours(device))


def _is_ours(device_id: str) -> bool:
    try:
        parse_device_id(device_id)
    except ValueError:  # of a plugin that served this resource before, e.g. ``MIG-<uuid>``
        return False
    return True


def _holding(listing: Sequence[PodResources], resource: str, device_ids: frozenset[str]) -> Iterator[_Listed]:
    """Every container that holds one of the devices, with all its devices of the resource."""
    for pod in listing:
        for container in pod.containers:
            of_resource = (each.device_ids for each in container.devices if each.resource_name == resource)
            held = frozenset(device for ids in of_resource for device in ids)
            if held & device_ids:
                yield pod, container, held


def _init_containers(pod: Pod, resource: str, count: int) -> list[dict[str, int]]:
    """What the ordinary init containers ask for that ask for so many of a resource."""
    asks = [
        {name: whole(text) for name, text in each.resources.limits.items() if name.startswith(MIG_RESOURCE_PREFIX)}
        for each in pod.spec.init_containers
        if each.restart_policy != "Always"
    ]
    return [ask for ask in asks if ask.get(resource) == count]
