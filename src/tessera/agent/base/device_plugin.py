"""The part of a device plugin that is the same for slices and for static devices: its list, and its CDI files.

Files are put in place while container runtimes read the folder. The callers decide the content. Specification:
container-device-interface 0.6.0 (SPEC.md).

Static devices share one file (:mod:`tessera.agent.sharing.allocate_response`). Slices have one file per device ID
(:class:`CdiFolder`): kubelet gives an ID to one running container at a time, and the runtime cannot resolve a name that
two CDI files define. So the claim of the next container removes the file of the one before. Runtimes read the folder
again in a thread of their own when inotify tells them, so one may still have the former definition at the start. Hence
every definition mounts its own file, whose name has a hash of the content: with a former definition the mount fails,
and kubelet starts the container again. Every file carries the MIG UUIDs of *all* slices of the container that it was
written for: the runtime merges the files of a container's devices, and the variables agree. The files also give the
UUIDs as mounts, and leave ``CUDA_VISIBLE_DEVICES`` alone (``docs/decisions/container-environment.md``).

The agent touches only its own files, which it knows by their prefix. Simulated cards have no device files, so their
containers get the environment alone.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.api.names import CDI_KIND, VISIBLE_DEVICES
from tessera.kubelet.interfaces import Device, Mount, PluginOptions
from tessera.nvml.interface import DeviceFile

#: Lowest version that has all that we use (names that begin with a digit came with 0.5.0); containerd 1.7 and CRI-O
#: 1.28 read it.
VERSION = "0.6.0"
#: Folder in which NVIDIA's runtime finds devices that are listed as mounts (nvidia-container-toolkit,
#: ``internal/config/image``).
MOUNTED_DEVICES = PurePosixPath("/var/run/nvidia-container-devices")
#: Folder in a container with the CDI files of its slices.
OWN_DEFINITIONS = PurePosixPath("/run/tessera/cdi")
#: Value of the variable for a container that gets no device.
NO_DEVICE = "void"


class _Node(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    type: str = "c"
    major: int
    minor: int
    permissions: str = "rw"


class _Mount(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    host_path: str = "/dev/null"
    container_path: str
    options: tuple[str, ...] = ("ro", "nosuid", "nodev", "rbind", "rprivate")


class _Edits(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    env: tuple[str, ...] = ()
    device_nodes: tuple[_Node, ...] = ()
    mounts: tuple[_Mount, ...] = ()


class CdiDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One device as a CDI file has it; made by :func:`define_device`."""

    name: str
    container_edits: _Edits


class _Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[CdiDefinition, ...]


def define_device(
    name: str,
    env: Mapping[str, str],
    files: Iterable[DeviceFile] = (),
    *,
    mounted: Iterable[str] = (),
    folders: Iterable[Mount] = (),
) -> CdiDefinition:
    """Returns a device of a CDI file.

    Args:
        name: the part of its full name after the kind and ``=``.
        env: variables that its container gets.
        files: device nodes that its container may open; each path counts once.
        mounted: UUIDs that NVIDIA's runtime finds listed as mounts. It adds the driver's libraries for them, even where
            it ignores the variable (``docs/decisions/container-environment.md``).
        folders: of the host, that its container gets.
    """
    by_path = {each.path: each for each in files}
    nodes = tuple(_Node(path=each.path, major=each.major, minor=each.minor) for each in by_path.values())
    mounts = (*(_Mount(container_path=str(MOUNTED_DEVICES / each)) for each in mounted), *map(_bind, folders))
    variables = tuple(f"{each}={value}" for each, value in env.items())
    return CdiDefinition(name=name, container_edits=_Edits(env=variables, device_nodes=nodes, mounts=mounts))


def _bind(folder: Mount) -> _Mount:
    options = ("ro" if folder.read_only else "rw", "nosuid", "nodev", "rbind", "rprivate")
    return _Mount(host_path=folder.host_path, container_path=folder.container_path, options=options)


def write_cdi_file(path: Path, kind: str, devices: Sequence[CdiDefinition]) -> None:
    """Writes a file by an atomic rename; leaves an existing file with this content alone.

    Args:
        path: the file; its folder is made when needed.
        kind: vendor and class, such as ``tessera.dev/mig``.
        devices: at least one, since a file without devices is not valid.

    Raises:
        OSError: the folder cannot be written.
    """
    data = msgspec.json.encode(_Spec(cdi_version=VERSION, kind=kind, devices=tuple(devices)))
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # In the same folder: runtimes cache a file that they read, and notice a rename in the folder, not a move into it.
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(data)
    fresh.replace(path)


_log = logging.getLogger(__name__)

_PREFIX = CDI_KIND.replace("/", "-") + "_"


def cdi_name(device_id: str) -> str:
    """The CDI name in the answer to Allocate: ``tessera.dev/mig=<device ID>``."""
    return f"{CDI_KIND}={device_id}"


def environment(uuids: Sequence[str]) -> dict[str, str]:
    """The variable through which NVIDIA's runtime finds a container's devices."""
    return {VISIBLE_DEVICES: ",".join(uuids)}


def _device_of(path: Path) -> str:
    """The device that a file of ours defines; no device ID has an underscore."""
    return path.name.removeprefix(_PREFIX).removesuffix(".json").partition("_")[0]


class CdiFolder:
    """Our files in the folder that the container runtime reads.

    Args:
        path: the folder; made when needed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, device_id: str, mig_uuids: Sequence[str], device_files: Sequence[DeviceFile] = ()) -> None:
        """Defines a device for the container that starts next.

        Args:
            device_id: the device.
            mig_uuids: all slices of the container, this one's among them.
            device_files: files that the container must be able to open to use this device's slice.

        Raises:
            OSError: the folder cannot be written.
        """
        env = environment(mig_uuids)
        mounted = mig_uuids if device_files else ()
        content = msgspec.json.encode((device_id, env, list(device_files), mounted))
        path = self._path / f"{_PREFIX}{device_id}_{hashlib.sha256(content).hexdigest()[:16]}.json"
        own = Mount(host_path=str(path), container_path=str(OWN_DEFINITIONS / device_id), read_only=True)
        self._remove(each for each in self._files() if _device_of(each) == device_id and each != path)
        write_cdi_file(path, CDI_KIND, [define_device(device_id, env, device_files, mounted=mounted, folders=[own])])

    def remove(self, device_ids: Iterable[str]) -> None:
        """Removes the definitions of devices; ignores devices without a definition."""
        gone = set(device_ids)
        self._remove(each for each in self._files() if _device_of(each) in gone)

    def _files(self) -> list[Path]:
        return list(self._path.glob(f"{_PREFIX}*.json"))

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)

    def read(self) -> dict[str, str]:
        """By device of each of our files, the value of the variable that its last container got.

        Leaves out files that cannot be read, or are not as we write them.
        """
        found: dict[str, str] = {}
        for path in self._files():
            try:
                devices = msgspec.json.decode(path.read_bytes(), type=_Spec).devices
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("CDI file %s cannot be read: %s", path, error)
                continue
            for device in devices:
                variables = dict(each.partition("=")[::2] for each in device.container_edits.env)
                found[device.name] = variables.get(VISIBLE_DEVICES, "")
        return found

    def keep_only(self, device_ids: Iterable[str]) -> None:
        """Removes our files that a former agent left for pods that are gone."""
        kept = set(device_ids)
        stale = [each for each in self._files() if _device_of(each) not in kept]
        self._remove([*stale, *self._path.glob(f".{_PREFIX}*.new")])


class ResourcePlugin:
    """The list of one resource; see :class:`tessera.kubelet.interfaces.DevicePlugin` for what a plugin adds.

    Args:
        resource: the extended resource.
        devices: returns the list to advertise now.
        changes: announces that the list may have changed.
        on_listed: called when kubelet has read a list, and when it listens no more.
    """

    def __init__(
        self,
        resource: str,
        *,
        devices: Callable[[], Sequence[Device]],
        changes: ChangeNotifier,
        on_listed: Callable[[], None] = lambda: None,
    ) -> None:
        self._resource = resource
        self._devices = devices
        self._changes = changes
        self._on_listed = on_listed
        #: Connections on which kubelet listens. More than one while kubelet replaces one by the next.
        self._streams = 0
        #: The list that kubelet read last; ``None`` while it does not listen.
        self._last_read: Sequence[Device] | None = None

    @property
    def resource_name(self) -> str:
        """The extended resource."""
        return self._resource

    @property
    def options(self) -> PluginOptions:
        """Both optional calls are served."""
        return PluginOptions(pre_start_required=True, get_preferred_allocation_available=True)

    @property
    def is_streaming(self) -> bool:
        """True if kubelet listens to the list."""
        return self._streams > 0

    @property
    def is_listed(self) -> bool:
        """True if kubelet listens and has read the newest list."""
        return self.is_streaming and self._last_read == self._devices()

    async def list_and_watch(self) -> AsyncIterator[Sequence[Device]]:
        """Yields the list at once, and again whenever it differs."""
        sent: Sequence[Device] | None = None
        self._streams += 1
        try:
            while True:
                count = self._changes.count
                devices = self._devices()
                if devices != sent:
                    sent = devices
                    yield devices
                    # The reader asks for the next list once it has read this one.
                    self._last_read = devices
                    self._on_listed()
                await self._changes.wait(count)
        finally:
            self._streams -= 1
            if not self._streams:
                self._last_read = None
                self._on_listed()
