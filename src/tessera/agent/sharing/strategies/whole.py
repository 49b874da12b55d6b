"""Whole cards and whole MIG devices: one container has the device, and needs nothing besides."""

from collections.abc import Mapping

from tessera.agent.sharing.strategies.interface import NodeService
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource
from tessera.nvml.interface import GpuInfo


class WholeDevice:
    """See :class:`tessera.agent.sharing.strategies.interface.SharingStrategy`."""

    def plan_service(self, _resource: AdvertisedResource, _cards: Mapping[str, GpuInfo], /) -> None:
        """No process serves a whole device."""

    def not_ready_reason(self, _resource: str, _device: AdvertisedDevice, _service: NodeService, /) -> str:
        """A whole device can be used at once."""
        return ""

    def container_edits(self, _resource: str, _service: NodeService, /) -> None:
        """A container sees its device, and no more is needed."""
