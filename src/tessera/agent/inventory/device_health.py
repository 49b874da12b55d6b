"""The health of GPUs and MIG instances as values, and which device-plugin entries it withholds. Pure.

A bad GPU withholds all its shares and MIG devices, a bad instance all the shares of that instance and nothing else.
An entry whose GPU or instance no longer exists counts as unhealthy. Faults and probes decide the health itself
(:mod:`tessera.agent.health`).
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Protocol

import msgspec

from tessera.api.names import PodUid
from tessera.api.sharing.devices import AdvertisedDevice, GpuDescription


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
    health_of: Callable[[DeviceScope], DeviceHealth],
) -> dict[str, DeviceHealth]:
    """Returns the health of each entry, by its id.

    Args:
        devices: the entries of one or more resources.
        gpus: the node's cards as last read.
        health_of: gives the health of a card or an instance.
    """
    scopes: dict[str, DeviceScope] = {}
    for gpu in gpus:
        scopes[gpu.uuid] = DeviceScope(gpu.uuid)
        for mig in gpu.mig_devices:
            scopes[mig.uuid] = DeviceScope(gpu.uuid, mig.gi_id, mig.ci_id)
    health = {uuid: health_of(scope) for uuid, scope in scopes.items()}
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
