"""The health of GPUs and MIG instances as values, which entries it withholds, and the containers that hold devices.

A bad GPU withholds all its shares and MIG devices, a bad instance all the shares of that instance and nothing else. An
entry whose GPU or instance no longer exists counts as unhealthy. Faults and probes decide the health itself
(:mod:`tessera.agent.health`).

Kubelet's pod-resources API lists the containers that hold cards, shares or MIG devices of the static side. It knows
pods by namespace and name only, and goes on listing pods that have ended. So its list is matched with the pods that are
bound to this node and have not ended; a listed name without such a pod holds nothing. Devices of slices on demand and
of other plugins are ignored: a static entry's id is ``<uuid>`` or ``<uuid>::<n>`` of a card or a MIG device, a slice's
is ``<gpu uuid>:<profile>:<start>``.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Protocol

import msgspec

from tessera.api.names import PodUid
from tessera.api.sharing.devices import AdvertisedDevice, GpuDescription, device_of
from tessera.kube.resources import Pod
from tessera.kubelet.interfaces import ContainerDevices, Kubelet, PodResources


class Reaction(IntEnum):
    """The reaction that an error requires. From ``WITHHOLD`` on no new container gets the device."""

    #: No reaction: the program caused the error.
    IGNORE = 0
    #: The error is shown; the device can still be allocated.
    DEGRADE = 1
    #: The device is not allocated until it has shown enough clean probes.
    WITHHOLD = 2
    #: The device is not allocated before the card was reset.
    RESET = 3
    #: The device is not allocated before the node was booted.
    REBOOT = 4


class DeviceScope(msgspec.Struct, frozen=True, order=True):
    """A card, or a GPU instance or compute instance on it. The ids are -1 for "all"."""

    gpu: str
    gi_id: int = -1
    ci_id: int = -1

    def covers(self, other: "DeviceScope") -> bool:
        """True if this scope contains ``other``."""
        return self.gpu == other.gpu and self.gi_id in {-1, other.gi_id} and self.ci_id in {-1, other.ci_id}


class DeviceHealth(msgspec.Struct, frozen=True):
    """Health of a device by its worst fault.

    Attributes:
        reaction: the reaction that the fault requires.
        text: the fault in words.
        since: its time; ``None``: nothing is wrong.
        by_hand: true if only a person's cordon withholds the device.
    """

    reaction: Reaction = Reaction.IGNORE
    text: str = ""
    since: float | None = None
    by_hand: bool = False

    @property
    def healthy(self) -> bool:
        """True if the device may be allocated."""
        return self.reaction < Reaction.WITHHOLD


_GONE = DeviceHealth(Reaction.WITHHOLD, "the device is no longer there")


def entry_health(
    devices: Iterable[AdvertisedDevice],
    gpus: Iterable[GpuDescription],
    faulty_gpus: AbstractSet[str],
    health_of: Callable[[DeviceScope], DeviceHealth],
) -> dict[str, DeviceHealth]:
    """Returns the health of each entry, by its id.

    Args:
        devices: the entries of one or more resources.
        gpus: the node's cards as last read.
        faulty_gpus: UUIDs of the cards with faults.
        health_of: gives the health of a card, or of an instance on it, that has faults.
    """
    scopes: dict[str, DeviceScope] = {}
    for gpu in gpus:
        scopes[gpu.uuid] = DeviceScope(gpu.uuid)
        for mig in gpu.mig_devices:
            scopes[mig.uuid] = DeviceScope(gpu.uuid, mig.gi_id, mig.ci_id)
    fine = DeviceHealth()
    health = {uuid: health_of(scope) if scope.gpu in faulty_gpus else fine for uuid, scope in scopes.items()}
    return {device.id: health.get(device.uuid, _GONE) for device in devices}


class CheckedDevice(msgspec.Struct, frozen=True, order=True):
    """A device that one container alone gets: its UUID, its card's, and the id of its GPU instance (-1: the card)."""

    uuid: str
    gpu: str
    gi_id: int = -1


class StartCheck(Protocol):
    """Decides whether a container may start on its devices; both sides ask before they answer kubelet."""

    async def check(self, resource: str, devices: Iterable[CheckedDevice], /, *, pod: PodUid | None = None) -> None:
        """Returns if it may; it may take seconds.

        Args:
            resource: the resource of the devices.
            devices: the devices; shares are none of them.
            pod: the pod that holds them; ``None`` if it is to be found.

        Raises:
            PluginError: it may not; the text has the reason and the next step.
        """
        ...


_KINDS = ("GPU-", "MIG-")


class DeviceUser(msgspec.Struct, frozen=True, kw_only=True):
    """One container that holds entries of one device.

    Attributes:
        pod: UID of its pod.
        namespace: namespace of the pod.
        name: name of the pod.
        container: name of the container.
        resource: the extended resource under which kubelet gave the entries.
        ids: the entries of the device, sorted; several for a container with several shares of it.
    """

    pod: PodUid
    namespace: str
    name: str
    container: str
    resource: str
    ids: tuple[str, ...]

    @property
    def pod_name(self) -> str:
        """``namespace/name``, for messages."""
        return f"{self.namespace}/{self.name}"


class PodSource(Protocol):
    """The pods of one node."""

    def live_pods(self) -> Sequence[Pod]:
        """The pods that are bound to this node and have not ended."""
        ...


class DeviceUsers:
    """Asks kubelet for the users of devices.

    Args:
        kubelet: the node's kubelet.
        pods: the pods of the node.
    """

    def __init__(self, kubelet: Kubelet, pods: PodSource) -> None:
        self._kubelet = kubelet
        self._pods = pods

    def live_pods(self) -> frozenset[PodUid]:
        """The pods that can hold devices; while they are the same, only admissions can change an answer."""
        return frozenset(PodUid(pod.metadata.uid) for pod in self._pods.live_pods())

    def lasting_pods(self) -> frozenset[PodUid]:
        """The pods that end only when somebody deletes them, and that nobody has deleted."""
        return frozenset(PodUid(pod.metadata.uid) for pod in self._pods.live_pods() if pod.lasts)

    def may_initialize(self, resource: str) -> bool:
        """True if an init container may have entries of a resource; kubelet does not list init containers."""
        return any(_initializes_with(resource, pod) for pod in self._pods.live_pods())

    async def read(self) -> Mapping[str, tuple[DeviceUser, ...]]:
        """Returns the users of each card and MIG device, by its UUID; devices without a user are missing.

        Raises:
            ConnectionError: kubelet did not answer.
        """
        listed = await self._kubelet.pod_resources()
        return match_device_users(listed, self._pods.live_pods())


def match_device_users(listed: Iterable[PodResources], pods: Iterable[Pod]) -> Mapping[str, tuple[DeviceUser, ...]]:
    """Returns the users of each card and MIG device, by its UUID.

    Args:
        listed: the pods with their devices, as kubelet lists them.
        pods: the pods that are bound to this node and have not ended; others hold nothing.
    """
    uids = {(pod.metadata.namespace, pod.metadata.name): PodUid(pod.metadata.uid) for pod in pods}
    users: dict[str, list[DeviceUser]] = {}
    for pod in listed:
        uid = uids.get((pod.namespace, pod.name))
        if uid is not None:
            for device, user in _users(pod, uid):
                users.setdefault(device, []).append(user)
    return {device: tuple(each) for device, each in users.items()}


def _initializes_with(resource: str, pod: Pod) -> bool:
    initialized = any(each.type == "Initialized" and each.status == "True" for each in pod.status.conditions)
    return not initialized and any(resource in each.resources.limits for each in pod.spec.init_containers)


def _users(pod: PodResources, uid: PodUid) -> Iterator[tuple[str, DeviceUser]]:
    for container in pod.containers:
        for (resource, device), ids in _by_device(container.devices).items():
            yield (
                device,
                DeviceUser(
                    pod=uid,
                    namespace=pod.namespace,
                    name=pod.name,
                    container=container.name,
                    resource=resource,
                    ids=tuple(sorted(ids)),
                ),
            )


def _by_device(devices: Sequence[ContainerDevices]) -> dict[tuple[str, str], set[str]]:
    """A container's entries by resource and device; kubelet may list a resource several times, by NUMA node."""
    found: dict[tuple[str, str], set[str]] = {}
    for each in devices:
        for entry in each.device_ids:
            if is_static_entry(entry):
                found.setdefault((each.resource_name, device_of(entry)), set()).add(entry)
    return found


def is_static_entry(entry: str) -> bool:
    """True if an entry's id is that of a card, a MIG device, or a share of those."""
    return entry.startswith(_KINDS) and ":" not in device_of(entry)
