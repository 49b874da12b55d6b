"""The device plugin of one resource of the static side.

Its list and the entries that it allocates are separate. Kubelet counts the list, so a list is replaced only when
kubelet can count its successor; the allocated entries follow the cards at once. In between, Allocate refuses entries
that are only on kubelet's older list: the pod fails and is made anew, instead of two pods having one card.

Allocate answers from its present terms and asks no other part, since kubelet admits pods one after the other. Before a
container starts, its CDI set exists (``docs/decisions/container-environment.md``), also after a restart of the agent or
the machine; only that may take a while.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from tessera.agent.base.device_plugin import ResourcePlugin
from tessera.agent.base.settings import ContainerEdits
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.inventory.device_state import StartCheck
from tessera.agent.sharing.allocate_response import AllocateOptions, build_allocation, needs_set, set_name, unique
from tessera.agent.sharing.cdi import CdiFile, CdiPublisher
from tessera.agent.sharing.occupancy import fence_reason
from tessera.agent.sharing.offer import DecidedOffer, SharingSettings
from tessera.agent.sharing.strategies import NodeStrategies
from tessera.api.sharing.devices import AdvertisedDevice, AdvertisedResource, RequestRefused, check_request
from tessera.api.sharing.devices import AdvertisedDevice as Entry
from tessera.api.sharing.profile import AllocationPolicy, NotEnoughShares, prefer_shares
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, PluginError, PreferredRequest
from tessera.nvml.interface import DeviceFile
from tessera.placement.topology import Topology


class AllocationTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The entries that a plugin allocates, and how.

    Attributes:
        offered: the resource's entries.
        refused: those entries that must not be allocated now, with the reason.
        options: how containers learn of their devices.
        files: device nodes by UUID.
        topology: how the cards are joined.
        joint: true if the node has several resources, so that a container may have devices of others too.
    """

    offered: AdvertisedResource
    refused: Mapping[str, str] = {}
    options: AllocateOptions = AllocateOptions()
    files: Mapping[str, Sequence[DeviceFile]] = {}
    topology: Topology = Topology.without_links(())
    joint: bool = False


class AllocationCalls:
    """What kubelet's calls about a container need beyond a plugin's entries: CDI, strategies, and who holds devices.

    Args:
        cdi: the CDI file, and the containers that hold devices.
        strategies: the sharing strategies.
        settings: the installation's defaults.
        is_joint: true if a container of this node may have devices of several resources.
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
        is_joint: Callable[[], bool],
        changes: ChangeNotifier,
        start_check: StartCheck | None,
        closed_devices: Callable[[], frozenset[str]],
    ) -> None:
        self.decided = DecidedOffer()
        self._closed_devices = closed_devices
        self._cdi = cdi
        self._strategies = strategies
        self._settings = settings
        self._is_joint = is_joint
        self._changes = changes
        self._start_check = start_check

    @property
    def options(self) -> AllocateOptions:
        """How containers learn of their devices."""
        return self._settings.options(self.decided.applied)

    @property
    def joint(self) -> bool:
        """True if a container of this node may have devices of several resources."""
        return self._is_joint()

    @property
    def cdi_file(self) -> CdiFile:
        """The file that defines the sets of devices."""
        return self._cdi.file

    def closed_devices(self) -> frozenset[str]:
        """UUIDs of devices that must not be allocated now."""
        return self._closed_devices()

    def container_edits(self, resource: str, devices: Sequence[Entry]) -> ContainerEdits | None:
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


class StaticDevicePlugin(ResourcePlugin):
    """See :class:`tessera.kubelet.interfaces.DevicePlugin`.

    Args:
        resource: the extended resource.
        host: answers the plugin's calls.

    Attributes:
        terms: the entries that can be allocated now, and how; none before they are set.
    """

    def __init__(self, resource: str, host: AllocationCalls) -> None:
        self._host = host
        self._list: tuple[Device, ...] = ()
        self._list_changed = ChangeNotifier()
        self.terms = AllocationTerms(offered=AdvertisedResource(name=resource, devices=()))
        super().__init__(resource, devices=lambda: self._list, changes=self._list_changed, on_listed=host.note_listed)

    def set_list(self, devices: tuple[Device, ...]) -> None:
        """Replaces the list."""
        if devices != self._list:
            self._list = devices
            self._list_changed.notify()

    async def get_preferred_allocation(self, requests: Sequence[PreferredRequest]) -> Sequence[Sequence[str]]:
        """Prefers well connected cards; spreads or packs shares."""
        terms = self.terms
        return [
            preferred_entries(
                terms.offered,
                request,
                refused=terms.refused,
                topology=terms.topology,
                policy=terms.options.allocation_policy,
            )
            for request in requests
        ]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> Sequence[ContainerAllocateResponse]:
        """Answers with the edits by which each container sees its devices.

        Raises:
            PluginError: an entry is no longer offered or must not be allocated now, or there are too many shares.
        """
        answers = [self._allocate_one(tuple(ids)) for ids in requests]
        for ids in requests:
            self._host.note_allocated(self._resource, ids)
        return answers

    async def pre_start_container(self, device_ids: Sequence[str]) -> None:
        """Waits until the container's CDI names stand for all its devices.

        Raises:
            PluginError: the names do not; kubelet tries again.
        """
        try:
            await self._host.prepare_container(self._resource, device_ids)
        except (ConnectionError, OSError) as error:
            raise PluginError(f"{self._resource}: the container's CDI set cannot be made: {error}") from error

    def _allocate_one(self, ids: tuple[str, ...]) -> ContainerAllocateResponse:
        terms = self.terms
        devices = self._check_entries(ids)
        uuids = unique(each.uuid for each in devices)
        if terms.options.uses_cdi and needs_set(uuids, joint=terms.joint):
            try:
                self._host.cdi_file.ensure_set(set_name(ids), uuids)
            except OSError as error:
                raise PluginError(f"{self._resource}: {self._host.cdi_file.path} cannot be written: {error}") from error
        edits = self._host.container_edits(self._resource, devices)
        return build_allocation(
            self._resource, devices, terms.options, files=terms.files, joint=terms.joint, edits=edits
        )

    def _check_entries(self, ids: tuple[str, ...]) -> list[Entry]:
        try:
            check_request(self.terms.offered, ids)
        except RequestRefused as error:
            raise PluginError(str(error)) from error
        known = {device.id: device for device in self.terms.offered.devices}
        fenced = self._host.closed_devices()
        for each in ids:
            if why := self.terms.refused.get(each) or fence_reason(known[each], fenced):
                raise PluginError(f"{self._resource}: {each} must not be allocated now: {why}")
        return [known[each] for each in ids]


def preferred_entries(
    offered: AdvertisedResource,
    request: PreferredRequest,
    *,
    refused: Mapping[str, str],
    topology: Topology,
    policy: AllocationPolicy,
) -> tuple[str, ...]:
    """Returns the entries that a container should get.

    Args:
        offered: the present entries of the resource. Kubelet may still know an older list.
        request: the entries that kubelet has free, and the number it needs.
        refused: entries that must not be allocated now; chosen only if there are no others.
        topology: how the cards are joined.
        policy: spreads or packs shares and MIG devices.
    """
    known = {device.id for device in offered.devices if device.id not in refused}.union(request.must_include)
    free = [each for each in request.available if each in known]
    if len(free) < request.size:
        free = list(request.available)
    try:
        if all(map(_whole, offered.devices)):
            chosen = topology.preferred_cards(free, request.must_include, request.size)
        else:
            chosen = prefer_shares(offered.devices, free, request.must_include, request.size, policy)
    except NotEnoughShares:
        chosen = ()
    return chosen or _first_entries(request.must_include, free, request.size)


def _whole(device: AdvertisedDevice) -> bool:
    return device.id == device.gpu


def _first_entries(must: Sequence[str], free: Sequence[str], size: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*must, *free)))[:size]
