"""The device plugin of one MIG profile.

It advertises every slice that the node *could* make: one device for every legal position on every card, though they
exclude each other. The controller's gate admits only pods whose slices fit. So Allocate never waits and never fails
for a full card; the wait is in PreStartContainer, which kubelet calls for many pods at a time.
"""

from collections.abc import AsyncIterator, Callable, Sequence

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.inventory.positions import parse_device_id
from tessera.agent.slices.cdi import qualified
from tessera.agent.slices.claims import SliceClaims, preferred_devices
from tessera.api.names import resource_of
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginError, PluginOptions, PreferredRequest


class SliceDevicePlugin:
    """See :class:`tessera.kubelet.interfaces.DevicePlugin`.

    Args:
        resource: ``nvidia.com/mig-<profile>``.
        devices: the list to advertise now.
        claims: gives slices to containers.
        changes: wakes :meth:`list_and_watch`.
    """

    def __init__(
        self, resource: str, *, devices: Callable[[], Sequence[Device]], claims: SliceClaims, changes: ChangeNotifier
    ) -> None:
        self._resource = resource
        self._devices = devices
        self._claims = claims
        self._changes = changes

    @property
    def resource_name(self) -> str:
        """The extended resource."""
        return self._resource

    @property
    def options(self) -> PluginOptions:
        """Both optional calls are served."""
        return PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        """Yields the list at once, and again whenever it differs."""
        sent: Sequence[Device] | None = None
        while True:
            count = self._changes.count
            devices = self._devices()
            if devices != sent:
                sent = devices
                yield devices
            await self._changes.wait(count)

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        """Promised positions first. Two containers of one request never get the same position."""
        promised = self._claims.unclaimed(self._resource)
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
            ContainerAllocateResponse(cdi_devices=tuple(self._checked(device) for device in devices))
            for devices in requests
        ]

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """Waits until the container's slices and CDI files exist.

        Raises:
            PluginError: they do not exist.
        """
        for device in device_ids:
            self._checked(device)
        await self._claims.claim(self._resource, device_ids)

    def _checked(self, device: str) -> str:
        try:
            position = parse_device_id(device)
        except ValueError as error:
            raise PluginError(f"{self._resource}: {error}") from error
        if resource_of(position.profile) != self._resource:
            raise PluginError(f"{self._resource}: device ID {device!r} is one of {resource_of(position.profile)}")
        return qualified(device)
