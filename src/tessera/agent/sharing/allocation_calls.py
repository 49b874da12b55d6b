"""What kubelet's calls about a container need beyond a plugin's entries: CDI, strategies, and who holds devices."""

from collections.abc import Callable, Sequence

from tessera.agent.base.change_notifier import ChangeNotifier, Fact
from tessera.agent.base.desired_config import ContainerEdits
from tessera.agent.inventory.device_health import StartCheck
from tessera.agent.sharing.allocate_response import AllocateOptions
from tessera.agent.sharing.cdi import CdiFile, CdiPublisher
from tessera.agent.sharing.offer import DecidedOffer, SharingSettings
from tessera.agent.sharing.served_resources import AdvertisedNames
from tessera.agent.sharing.strategies import NodeStrategies
from tessera.api.sharing.devices import AdvertisedDevice


class AllocationCalls:
    """An :class:`tessera.agent.sharing.device_plugin.AllocationHost`.

    Args:
        cdi: the CDI file, and the containers that hold devices.
        strategies: the sharing strategies.
        settings: the installation's defaults.
        names: the resources that this node ever advertised.
        changes: notified when kubelet has read a list.
        start_check: tests the devices of pods that ask for it; ``None`` for nobody.
        closed_devices: returns the UUIDs of devices that must not be allocated now.

    Attributes:
        decided: the offer in force.
    """

    def __init__(
        self,
        *,
        cdi: CdiPublisher,
        strategies: NodeStrategies,
        settings: SharingSettings,
        names: AdvertisedNames,
        changes: ChangeNotifier,
        start_check: StartCheck | None,
        closed_devices: Callable[[], frozenset[str]],
    ) -> None:
        self.decided = DecidedOffer()
        self._closed_devices = closed_devices
        self._cdi = cdi
        self._strategies = strategies
        self._settings = settings
        self._names = names
        self._changes = changes
        self._start_check = start_check

    @property
    def options(self) -> AllocateOptions:
        """How containers learn of their devices."""
        return self._settings.options(self.decided.applied)

    @property
    def joint(self) -> bool:
        """True if a container of this node may have devices of several resources."""
        return len(self._names.known_resources) > 1

    @property
    def cdi_file(self) -> CdiFile:
        """The file that defines the sets of devices."""
        return self._cdi.file

    def closed_devices(self) -> frozenset[str]:
        """UUIDs of devices that must not be allocated now."""
        return self._closed_devices()

    def container_edits(self, resource: str, devices: Sequence[AdvertisedDevice]) -> ContainerEdits | None:
        """The edits of a container with these entries, besides its devices; ``None`` if it needs none."""
        return self._strategies.container_edits(resource, devices)

    def note_allocated(self, resource: str, ids: Sequence[str]) -> None:
        """Notes that kubelet gave entries to a container."""
        self._cdi.occupancy.note_allocated(resource, ids)

    async def prepare_container(self, resource: str, ids: Sequence[str]) -> None:
        """Completes the CDI set of a container that is about to start, and tests its devices if its pod asks for it.

        Raises:
            ConnectionError: kubelet does not say which devices it has.
            OSError: the CDI file cannot be written.
            PluginError: a device failed its test.
        """
        self._cdi.occupancy.note_starting()
        await self._cdi.complete_set(resource, ids, joint=self.joint, needed=self.options.uses_cdi)
        if self._start_check is not None:
            await self._start_check.check(resource, self.decided.unshared(ids))

    def note_listed(self) -> None:
        """Notes that kubelet has read a list, or listens no more."""
        self._changes.notify(Fact.LISTS)
