"""The devices that the static side may advertise, with their health and fences from other parts of the agent."""

from collections.abc import Sequence
from typing import Protocol

from tessera.agent.inventory.card_ownership import StaticGpus
from tessera.agent.inventory.device_health import DeviceHealth, DeviceScope
from tessera.agent.inventory.gpu_inventory import GpuState


class DeviceHealthSource(Protocol):
    """Judges devices; see :class:`tessera.agent.health.monitor.HealthMonitor`."""

    def health_of(self, scope: DeviceScope, /) -> DeviceHealth:
        """The health of a GPU or of an instance on it."""
        ...


class Fences(Protocol):
    """Withholds devices while it works on them."""

    @property
    def fenced_devices(self) -> frozenset[str]:
        """UUIDs of GPUs and MIG devices that must not be allocated now."""
        ...


class OnDemandResources(Protocol):
    """Serves slices on demand; see :class:`tessera.agent.slices.slice_manager.SliceManager`."""

    def resources(self) -> frozenset[str]:
        """The extended resources that are served now."""
        ...


class StaticDeviceSource(Protocol):
    """The static devices as the advertiser needs them."""

    def gpus(self) -> Sequence[GpuState]:
        """The static GPUs as last read, by index."""
        ...

    def health_of(self, scope: DeviceScope, /) -> DeviceHealth:
        """The health of a GPU or of an instance on it."""
        ...

    def fenced_devices(self) -> frozenset[str]:
        """UUIDs of GPUs and MIG devices that must not be allocated now."""
        ...

    def changing_devices(self) -> frozenset[str]:
        """The fenced devices whose MIG layout is about to change; the MPS daemons release them."""
        ...

    def on_demand_resources(self) -> frozenset[str]:
        """The extended resources that are served on demand on this node."""
        ...


class StaticDevices:
    """See :class:`StaticDeviceSource`.

    Args:
        gpus: the static GPUs.
        health: judges devices.
        mig_config: fences devices whose MIG layout changes.
        mps: fences GPUs whose compute mode changes.
        slices: serves slices on demand.
    """

    def __init__(
        self,
        gpus: StaticGpus,
        *,
        health: DeviceHealthSource,
        mig_config: Fences,
        mps: Fences,
        slices: OnDemandResources,
    ) -> None:
        self._gpus = gpus
        self._health = health
        self._mig_config = mig_config
        self._mps = mps
        self._slices = slices

    def gpus(self) -> Sequence[GpuState]:
        """The static GPUs as last read, by index."""
        return self._gpus.gpus()

    def health_of(self, scope: DeviceScope, /) -> DeviceHealth:
        """The health of a GPU or of an instance on it."""
        return self._health.health_of(scope)

    def fenced_devices(self) -> frozenset[str]:
        """UUIDs of GPUs and MIG devices that must not be allocated now."""
        return self._mig_config.fenced_devices | self._mps.fenced_devices

    def changing_devices(self) -> frozenset[str]:
        """The fenced devices whose MIG layout is about to change."""
        return self._mig_config.fenced_devices

    def on_demand_resources(self) -> frozenset[str]:
        """The extended resources that are served on demand on this node."""
        return self._slices.resources()
