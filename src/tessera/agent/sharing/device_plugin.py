"""The device plugin of one resource of the static side, and the CDI file of the whole cards and fixed MIG devices.

A plugin's list and the entries that it allocates are separate. Kubelet counts the list, so a list is replaced only when
kubelet can count its successor; the allocated entries follow the cards at once. In between, Allocate refuses entries
that are only on kubelet's older list: the pod fails and is made anew, instead of two pods having one card.

Allocate answers from its present terms and asks no other part, since kubelet admits pods one after the other. Before a
container starts, its CDI set exists (``docs/decisions/container-environment.md``), also after a restart of the agent or
the machine; only that may take a while.

One CDI file defines all devices. An atomic rename replaces it whenever a card, a MIG device or the number of a device
node changed. So every name that Allocate answers resolves, and never to the node of another card. A device has a name
by its UUID and one by its index, since a profile may choose either.

Each device's edits give its nodes and name it in ``NVIDIA_VISIBLE_DEVICES``, which overrides the image's and the pod's
value. The runtime applies the devices of a container one after the other, so only the last of several would be named.
Therefore a *set* follows them, which has no nodes of its own and names all. A set belongs to one container:
:class:`CdiPublisher` defines it at Allocate with the devices of that answer, completes it before the container starts
with those of its other resources, and keeps it while kubelet lists the container. A mount names each device as well. A
set mounts a marker too, an empty file with a hash of its devices in the name: a start with a former set fails, as with
a former slice (:mod:`tessera.agent.base.device_plugin`).
"""

import hashlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.base.device_plugin import (
    OWN_DEFINITIONS,
    CdiDefinition,
    ResourcePlugin,
    define_device,
    environment,
    write_cdi_file,
)
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.inventory.device_state import StartCheck
from tessera.agent.sharing.allocate_response import (
    CDI_KIND,
    AllocateOptions,
    CdiDevice,
    build_allocation,
    needs_set,
    set_name,
    unique,
)
from tessera.agent.sharing.occupancy import DeviceOccupancy, fence_reason
from tessera.agent.sharing.offer import DecidedOffer, SharingSettings
from tessera.agent.sharing.strategies import NodeStrategies
from tessera.api.sharing.devices import AdvertisedDevice as Entry
from tessera.api.sharing.devices import AdvertisedResource, RequestRefused, check_request, device_of
from tessera.api.sharing.profile import AllocationPolicy, NotEnoughShares, prefer_shares
from tessera.kubelet.interfaces import ContainerAllocateResponse, Device, Mount, PluginError, PreferredRequest
from tessera.nvml.interface import DeviceFile
from tessera.placement.topology import Topology

FILE_NAME = CDI_KIND.replace("/", "-") + ".json"


class CdiFile:
    """Our file in the folder that the container runtime reads.

    Args:
        folder: the folder; made when needed.

    Attributes:
        path: path of the file.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._devices: tuple[CdiDevice, ...] = ()
        self._sets: dict[str, frozenset[str]] = {}

    def publish(self, devices: Sequence[CdiDevice], sets: Mapping[str, Collection[str]]) -> None:
        """Defines exactly these devices and sets.

        Args:
            devices: in the order of their indexes.
            sets: UUIDs of all devices of a container, by the set's name. Sets with a missing device are left out.

        Raises:
            OSError: the file cannot be written.
        """
        present = {device.uuid for device in devices}
        self._devices = tuple(devices)
        self._sets = {name: frozenset(uuids) for name, uuids in sets.items() if present.issuperset(uuids)}
        self._write()

    def ensure_set(self, name: str, uuids: Collection[str]) -> None:
        """Defines a set with these devices, for a container that is about to start, unless the set is defined already.

        The file is written again if its content changed: another agent may have written it during an upgrade.

        Raises:
            OSError: the file cannot be written; the container must not start.
        """
        self._sets.setdefault(name, frozenset(uuids))
        self._write()

    def _write(self) -> None:
        sets = [self._define_set(*each) for each in sorted(self._sets.items())]
        markers = {Path(mount.host_path) for each in sets for mount in each.container_edits.mounts}
        for former in {*self.path.parent.glob(f"{FILE_NAME}_*")} - markers:
            former.unlink(missing_ok=True)
        if not self._devices:
            self.path.unlink(missing_ok=True)  # a file without devices is not valid
            return
        write_cdi_file(self.path, CDI_KIND, [*_definitions(self._devices), *sets])
        for marker in markers:
            marker.touch()

    def _define_set(self, name: str, together: Collection[str]) -> CdiDefinition:
        uuids = [device.uuid for device in self._devices if device.uuid in together]  # in the order of their indexes
        marker = f"{self.path}_{name}_{hashlib.sha256(','.join(uuids).encode()).hexdigest()[:16]}"
        own = Mount(host_path=marker, container_path=str(OWN_DEFINITIONS / name), read_only=True)
        return define_device(name, environment(uuids), folders=[own])


def _definitions(devices: Sequence[CdiDevice]) -> list[CdiDefinition]:
    found: list[CdiDefinition] = []
    for device in devices:
        names = unique((device.uuid, device.index))
        mounted = (device.uuid,) if device.files else ()
        found += [define_device(name, environment((device.uuid,)), device.files, mounted=mounted) for name in names]
    return found


_log = logging.getLogger(__name__)


class CdiPublisher:
    """Keeps the CDI file up to date.

    Args:
        file: the CDI file.
        occupancy: the containers that hold devices.
        changes: notified when pods come.

    Attributes:
        file: the CDI file.
        occupancy: the containers that hold devices.
        failed: why the file cannot be written; ``None`` if it can be written or is not needed.
    """

    def __init__(self, file: CdiFile, occupancy: DeviceOccupancy, changes: ChangeNotifier) -> None:
        self.file = file
        self.occupancy = occupancy
        self._changes = changes.about(Fact.PODS | Fact.ALLOCATIONS)
        self._devices: Sequence[CdiDevice] = ()
        self.failed: str | None = None

    def publish(self, devices: Sequence[CdiDevice], *, joint: bool, needed: bool) -> bool:
        """Defines these devices and the sets that containers hold.

        Args:
            devices: in the order of their indexes.
            joint: true if a container of this node may have devices of several resources.
            needed: true if containers learn of their devices by CDI now.

        Returns:
            True if the file is written, or is not needed.
        """
        self._devices = devices
        try:
            self._write(joint=joint)
        except OSError as error:
            if needed:
                self.failed = f"{self.file.path} cannot be written, so that no change is offered: {error}"
                return False
        self.failed = None
        return True

    async def complete_set(self, resource: str, ids: Sequence[str], *, joint: bool, needed: bool) -> None:
        """Writes the set of a container that is about to start, with its devices of all resources.

        ``joint`` and ``needed`` are those of :meth:`publish`.

        Raises:
            ConnectionError: kubelet does not list the container's devices.
            OSError: the CDI file cannot be written.
        """
        if not needs_set(unique(map(device_of, ids)), joint=joint):
            return
        try:
            await self._complete(resource, ids, joint=joint)
        except OSError as error:
            if needed:
                raise
            _log.warning("the CDI set of a container is not made, which nothing refers to now: %s", error)

    async def _complete(self, resource: str, ids: Sequence[str], *, joint: bool) -> None:
        self.occupancy.note_allocated(resource, ids, starts=True)
        self.file.ensure_set(set_name(ids), unique(map(device_of, ids)))
        if joint:
            await self.occupancy.wait_listed(resource, ids, self._changes)
            self._write(joint=joint)

    def _write(self, *, joint: bool) -> None:
        self.file.publish(self._devices, self.occupancy.sets(joint=joint))


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
        cdi: the CDI file, and the containers that hold devices.
        closed_devices: returns the UUIDs of devices that must not be allocated now.
        decided: the offer in force.
        is_joint: true if a container of this node may have devices of several resources.
        strategies: the sharing strategies.
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
        self.cdi = cdi
        self.strategies = strategies
        self.is_joint = is_joint
        self.closed_devices = closed_devices
        self._settings = settings
        self._changes = changes
        self._start_check = start_check

    @property
    def options(self) -> AllocateOptions:
        """How containers learn of their devices."""
        return self._settings.options(self.decided.applied)

    async def prepare_container(self, resource: str, ids: Sequence[str]) -> None:
        """Completes the CDI set of a container that is about to start, and tests its devices if its pod asks for it.

        Raises:
            ConnectionError: kubelet does not say which devices it has.
            OSError: the CDI file cannot be written.
            PluginError: a device failed its test.
        """
        self.cdi.occupancy.note_starting()
        await self.cdi.complete_set(resource, ids, joint=self.is_joint(), needed=self.options.uses_cdi)
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
            self._host.cdi.occupancy.note_allocated(self._resource, ids)
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
        terms, file = self.terms, self._host.cdi.file
        devices = self._check_entries(ids)
        uuids = unique(each.uuid for each in devices)
        if terms.options.uses_cdi and needs_set(uuids, joint=terms.joint):
            try:
                file.ensure_set(set_name(ids), uuids)
            except OSError as error:
                raise PluginError(f"{self._resource}: {file.path} cannot be written: {error}") from error
        edits = self._host.strategies.container_edits(self._resource, devices)
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
        if all(each.id == each.gpu for each in offered.devices):
            chosen = topology.preferred_cards(free, request.must_include, request.size)
        else:
            chosen = prefer_shares(offered.devices, free, request.must_include, request.size, policy)
    except NotEnoughShares:
        chosen = ()
    return chosen or tuple(dict.fromkeys((*request.must_include, *free)))[: request.size]
