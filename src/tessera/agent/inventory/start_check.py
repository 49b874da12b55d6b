"""The question whether a container may start on its devices, which both sides ask before they answer kubelet."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from tessera.api.names import PodUid


class CheckedDevice(msgspec.Struct, frozen=True, order=True):
    """A device that one container alone gets: its UUID, its card's, and the id of its GPU instance (-1: the card)."""

    uuid: str
    gpu: str
    gi_id: int = -1


class StartCheck(Protocol):
    """Decides whether a container may start."""

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
