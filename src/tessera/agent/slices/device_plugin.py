"""The device plugin of one MIG profile.

It advertises every slice that the node *could* make: as many devices of each profile as empty cards hold, though they
exclude each other. The controller's gate admits only pods whose slices fit. So Allocate never waits and never fails
for a full card; the wait is in PreStartContainer, which kubelet calls for many pods at a time.
"""

from collections.abc import Callable, Sequence

from tessera.agent.base.cdi_files import cdi_name
from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.device_plugin import ResourcePlugin
from tessera.agent.inventory.sliceable_gpus import parse_device_id
from tessera.agent.slices.container_slices import ContainerSlices, preferred_devices
from tessera.api.names import resource_of
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginError, PreferredRequest


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
