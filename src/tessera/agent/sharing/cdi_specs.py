"""The CDI file of whole cards and fixed MIG devices.

One file has them all. It is put in place by an atomic rename whenever a card, a MIG device or a device node's number
changed, so that a name that Allocate answers always resolves and never to the node of another card. A device goes by
its UUID and by its index, since a profile may choose either.

Each device's edits give its nodes and name it in ``NVIDIA_VISIBLE_DEVICES``, which wins over what image and pod set.
The runtime applies the devices of a container one after the other, so of several the last would be the only one that is
named; a *set* therefore follows them, which has no nodes of its own and names all (``docs/decisions/cdi-sets.md``).
A set is one container's, and what it names may grow when kubelet has told what else the container has.

Simulated cards have no nodes, so their containers get the environment alone. Which containers there are is not known
here. Specification: container-device-interface 0.6.0 (SPEC.md).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from tessera.agent.sharing.answers import CDI_KIND, VISIBLE_DEVICES, unique
from tessera.nvml.interface import DeviceFile

#: Lowest version with all that is used (names that begin with a digit came with 0.5.0); containerd 1.7 reads it.
VERSION = "0.6.0"
FILE_NAME = CDI_KIND.replace("/", "-") + ".json"


class _Node(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    type: str = "c"
    major: int
    minor: int
    permissions: str = "rw"


class _Edits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[_Node, ...] = ()


class _Device(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    container_edits: _Edits


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[_Device, ...]


class CdiDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A card or MIG device that containers may be given.

    Attributes:
        uuid: its UUID.
        index: ``0``, or ``0:1`` for a MIG device.
        files: its device nodes and the driver's.
    """

    uuid: str
    index: str
    files: tuple[DeviceFile, ...] = ()


class CdiSpecs:
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
        """The file."""
        return self._path

    def publish(self, devices: Sequence[CdiDevice], sets: Mapping[str, Collection[str]]) -> None:
        """Defines these devices and sets and no others.

        Args:
            devices: in the order of their indexes.
            sets: UUIDs of all devices of a container, by the set's name. One with a device that is not there is left
                out.

        Raises:
            OSError: the file cannot be written.
        """
        there = {device.uuid for device in devices}
        self._devices = tuple(devices)
        self._sets = {name: frozenset(uuids) for name, uuids in sets.items() if there.issuperset(uuids)}
        self._write()

    def ensure_set(self, name: str, uuids: Collection[str]) -> None:
        """Defines a set for a container that is about to start, as these devices unless it is defined already.

        The file is written again if it is not as it was left: another agent may have written it during an upgrade.

        Raises:
            OSError: the file cannot be written; the container must not start.
        """
        self._sets.setdefault(name, frozenset(uuids))
        self._write()

    def _write(self) -> None:
        if not self._devices:
            self._path.unlink(missing_ok=True)  # a file without devices is not valid
            return
        data = msgspec.json.encode(spec_of(self._devices, self._sets))
        if self._path.exists() and self._path.read_bytes() == data:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder: runtimes keep what they read, and notice a rename within the folder, not a move into it.
        fresh = self._path.with_name(f".{self._path.name}.new")
        fresh.write_bytes(data)
        fresh.replace(self._path)


def spec_of(devices: Sequence[CdiDevice], sets: Mapping[str, Collection[str]]) -> msgspec.Struct:
    """The file's content; the devices of a set in the order of their indexes."""
    found: list[_Device] = []
    for device in devices:
        edits = _Edits(env=_visible((device.uuid,)), device_nodes=_nodes(device.files))
        found += [_Device(name=name, container_edits=edits) for name in unique((device.uuid, device.index))]
    for name, together in sorted(sets.items()):
        ordered = [device.uuid for device in devices if device.uuid in together]
        found.append(_Device(name=name, container_edits=_Edits(env=_visible(ordered))))
    return _Spec(cdi_version=VERSION, kind=CDI_KIND, devices=tuple(found))


def _visible(uuids: Sequence[str]) -> tuple[str, ...]:
    return (f"{VISIBLE_DEVICES}={','.join(uuids)}",)


def _nodes(files: Iterable[DeviceFile]) -> tuple[_Node, ...]:
    by_path: Mapping[str, DeviceFile] = {each.path: each for each in files}
    return tuple(_Node(path=each.path, major=each.major, minor=each.minor) for each in by_path.values())
