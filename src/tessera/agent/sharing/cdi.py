"""Writes the CDI file of whole cards and fixed MIG devices.

One file defines them all. An atomic rename replaces it whenever a card, a MIG device or the number of a device node
changed. So every name that Allocate answers resolves, and never to the node of another card. A device has a name by its
UUID and one by its index, since a profile may choose either.

Each device's edits give its nodes and name it in ``NVIDIA_VISIBLE_DEVICES``, which overrides the image's and the pod's
value. The runtime applies the devices of a container one after the other, so only the last of several would be named.
Therefore a *set* follows them, which has no nodes of its own and names all. A set belongs to one container:
:class:`CdiPublisher` defines it at Allocate with the devices of that answer, completes it before the container starts
with those of its other resources, and keeps it while kubelet lists the container. A mount names each device as well
(``docs/decisions/container-environment.md``). A set mounts a marker too, an empty file with a hash of its devices in
the name: a start with a former set fails, as with a former slice (:mod:`tessera.agent.base.device_plugin`).
"""

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.base.device_plugin import OWN_DEFINITIONS, CdiDefinition, define_device, environment, write_cdi_file
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.sharing.allocate_response import CDI_KIND, needs_set, set_name, unique
from tessera.agent.sharing.occupancy import DeviceOccupancy
from tessera.api.sharing.devices import device_of
from tessera.kubelet.interfaces import Mount
from tessera.nvml.interface import DeviceFile

FILE_NAME = CDI_KIND.replace("/", "-") + ".json"


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A card or MIG device that a container may get.

    Attributes:
        uuid: its UUID.
        index: ``0``, or ``0:1`` for a MIG device.
        files: its device nodes and the driver's.
    """

    uuid: str
    index: str
    files: tuple[DeviceFile, ...] = ()


class CdiFile:
    """Our file in the folder that the container runtime reads.

    Args:
        folder: the folder; made when needed.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._devices: tuple[CdiDevice, ...] = ()
        self._sets: dict[str, frozenset[str]] = {}

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._path

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
        for former in {*self._path.parent.glob(f"{FILE_NAME}_*")} - markers:
            former.unlink(missing_ok=True)
        if not self._devices:
            self._path.unlink(missing_ok=True)  # a file without devices is not valid
            return
        write_cdi_file(self._path, CDI_KIND, [*_definitions(self._devices), *sets])
        for marker in markers:
            marker.touch()

    def _define_set(self, name: str, together: Collection[str]) -> CdiDefinition:
        uuids = [device.uuid for device in self._devices if device.uuid in together]  # in the order of their indexes
        marker = f"{self._path}_{name}_{hashlib.sha256(','.join(uuids).encode()).hexdigest()[:16]}"
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
