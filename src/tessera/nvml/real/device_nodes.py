"""Device nodes of the driver: those that a container needs, and those that are missing on the host.

The driver guards every GPU instance and compute instance by a *capability*: a process that may open its device node
``/dev/nvidia-caps/nvidia-cap<minor>`` may use the instance. The minors are fixed for each position and listed in
``/proc/driver/nvidia-caps/mig-minors``; the major numbers change from boot to boot and are in ``/proc/devices`` (NVIDIA
MIG user guide, device nodes and capabilities). For a container the nodes need not exist on the host: its runtime makes
them from type, major and minor.

A driver container creates the nodes in its own ``/dev``. Other users of the driver need them in the host's. NVML would
call ``nvidia-modprobe`` for them, which belongs to the driver and not to this process. The driver lists the nodes, with
owner and mode, below ``/proc/driver/nvidia`` (README of NVIDIA's Linux driver, device nodes). If an administrator has
forbidden to create them (``NVreg_ModifyDeviceFiles=0``), none is created.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from tessera.nvml.errors import NoPermission, NotSupported, NvmlNotFound
from tessera.nvml.interface import DeviceFile

#: Registered for NVIDIA's cards (Linux devices.txt): ``nvidiactl`` is the last minor, ``nvidia-modeset`` the one
#: before.
CARD_MAJOR, CONTROL_MINOR, MODESET_MINOR = 195, 255, 254
_MAJOR = re.compile(r"^\s*(\d+) (\S+)$", re.MULTILINE)
_MINOR = re.compile(r"^(\S+) (\d+)$", re.MULTILINE)


def mig_device_files(proc: Path, gpu_minor: int, gi_id: int, ci_id: int) -> list[DeviceFile]:
    """The driver's common files, the card's, and the two capabilities of one compute instance.

    Args:
        proc: the host's ``/proc``.
        gpu_minor: ``N`` of ``/dev/nvidiaN``; capabilities are counted by it too, not by NVML's index.
        gi_id: GPU instance.
        ci_id: compute instance.

    Raises:
        NotFound: the driver lists no capability for the instance.
        NotSupported: the driver has no capabilities, or hides them from this process.
    """
    numbers = read_majors(proc)
    minors = {name: int(minor) for name, minor in _MINOR.findall(_read(proc / "driver/nvidia-caps/mig-minors"))}
    if "nvidia-caps" not in numbers:
        raise NotSupported(f'{proc / "devices"} has no "nvidia-caps": the driver guards no MIG instances')
    files = _common_files(numbers, gpu_minor)
    for capability in (f"gpu{gpu_minor}/gi{gi_id}/access", f"gpu{gpu_minor}/gi{gi_id}/ci{ci_id}/access"):
        if capability not in minors:
            raise NvmlNotFound(f'{proc / "driver/nvidia-caps/mig-minors"}: no capability "{capability}"')
        minor = minors[capability]
        files.append(DeviceFile(path=f"/dev/nvidia-caps/nvidia-cap{minor}", major=numbers["nvidia-caps"], minor=minor))
    return files


def card_device_files(proc: Path, gpu_minor: int) -> list[DeviceFile]:
    """The driver's common files, the card's, and the one for displays where its module is loaded.

    Args:
        proc: the host's ``/proc``.
        gpu_minor: ``N`` of ``/dev/nvidiaN``.

    Raises:
        NotSupported: the host's ``/proc`` cannot be read.
    """
    numbers = read_majors(proc)
    files = _common_files(numbers, gpu_minor)
    if "nvidia-modeset" in numbers:
        files.append(DeviceFile(path="/dev/nvidia-modeset", major=numbers["nvidia-modeset"], minor=MODESET_MINOR))
    return files


def _common_files(numbers: dict[str, int], gpu_minor: int) -> list[DeviceFile]:
    files = [
        DeviceFile(path="/dev/nvidiactl", major=CARD_MAJOR, minor=CONTROL_MINOR),
        DeviceFile(path=f"/dev/nvidia{gpu_minor}", major=CARD_MAJOR, minor=gpu_minor),
    ]
    if "nvidia-uvm" in numbers:
        uvm = numbers["nvidia-uvm"]
        files += [
            DeviceFile(path="/dev/nvidia-uvm", major=uvm, minor=0),
            DeviceFile(path="/dev/nvidia-uvm-tools", major=uvm, minor=1),
        ]
    return files


def read_majors(proc: Path) -> dict[str, int]:
    """The major numbers of character devices by the name of their driver.

    Raises:
        NotSupported: the host's ``/proc`` cannot be read.
    """
    return {name: int(major) for major, name in _MAJOR.findall(_character_devices(_read(proc / "devices")))}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NotSupported(
            f"{path}: {error.strerror}; mount the host's /proc, with the NVIDIA driver loaded"
        ) from error


def _character_devices(devices: str) -> str:
    """The part of ``/proc/devices`` on character devices."""
    return devices.partition("Block devices:")[0]


_LINE = re.compile(r"^(\w[\w ]*?)\s*:\s*(\S+)\s*$", re.MULTILINE)
#: Capabilities of the machine, not of an instance: to change MIG, to monitor it.
_CAPABILITIES = ("config", "monitor")
#: Mode of a capability's node if the driver does not give one: only root may read it.
_CAPABILITY_MODE = 0o400
_MODE = 0o666


class HostDeviceNode(msgspec.Struct, frozen=True, kw_only=True):
    """A character device that the host needs; ``path`` is below ``/dev``."""

    path: str
    major: int
    minor: int
    mode: int = _MODE
    uid: int = 0
    gid: int = 0


def list_driver_nodes(proc: Path) -> list[HostDeviceNode]:
    """The nodes of a driver that is loaded: control, cards, unified memory, MIG's capabilities; none without a driver.

    Args:
        proc: the host's ``/proc``.
    """
    parameters = _read_values(proc / "driver/nvidia/params")
    if not parameters or parameters.get("ModifyDeviceFiles") == "0":
        return []
    owned = {
        "mode": int(parameters.get("DeviceFileMode", str(_MODE))),
        "uid": int(parameters.get("DeviceFileUID", "0")),
        "gid": int(parameters.get("DeviceFileGID", "0")),
    }
    return [
        HostDeviceNode(path=path, major=major, minor=minor, **owned) for path, major, minor in _list_common_nodes(proc)
    ] + [*_list_capability_nodes(proc)]


def make_nodes(
    dev: Path,
    nodes: Sequence[HostDeviceNode],
    mknod: Callable[[Path, int, int], None] = os.mknod,
    chown: Callable[[Path, int, int], None] = os.chown,
) -> list[str]:
    """Makes the missing nodes; returns their paths below ``/dev``.

    Args:
        dev: the host's ``/dev``.
        nodes: the nodes to create.
        mknod: makes a node of a mode and a device number.
        chown: gives it to a user and a group.

    Raises:
        NoPermission: this process may not.
    """
    made = []
    for node in nodes:
        path = dev / node.path
        if path.exists():
            continue
        try:
            path.parent.mkdir(mode=0o755, exist_ok=True)
            mknod(path, stat.S_IFCHR | node.mode, os.makedev(node.major, node.minor))
            path.chmod(node.mode)  # the process's umask has no say in it
            chown(path, node.uid, node.gid)
        except FileExistsError:  # another process was faster
            continue
        except OSError as error:
            raise NoPermission(f"device node {path}: {error.strerror}") from error
        made.append(node.path)
    return made


def _list_common_nodes(proc: Path) -> Iterator[tuple[str, int, int]]:
    numbers = read_majors(proc)
    yield "nvidiactl", CARD_MAJOR, CONTROL_MINOR
    for card in sorted((proc / "driver/nvidia/gpus").glob("*/information")):
        minor = _read_values(card).get("Device Minor", "")
        if minor.isdigit():
            yield f"nvidia{minor}", CARD_MAJOR, int(minor)
    if "nvidia-modeset" in numbers:
        yield "nvidia-modeset", numbers["nvidia-modeset"], MODESET_MINOR
    if "nvidia-uvm" in numbers:
        yield "nvidia-uvm", numbers["nvidia-uvm"], 0
        yield "nvidia-uvm-tools", numbers["nvidia-uvm"], 1


def _list_capability_nodes(proc: Path) -> Iterator[HostDeviceNode]:
    major = read_majors(proc).get("nvidia-caps")
    for name in _CAPABILITIES if major is not None else ():
        values = _read_values(proc / "driver/nvidia/capabilities/mig" / name)
        if values.get("DeviceFileModify", "1") != "0" and values.get("DeviceFileMinor", "").isdigit():
            minor, mode = int(values["DeviceFileMinor"]), int(values.get("DeviceFileMode", str(_CAPABILITY_MODE)))
            yield HostDeviceNode(path=f"nvidia-caps/nvidia-cap{minor}", major=major or 0, minor=minor, mode=mode)


def _read_values(path: Path) -> dict[str, str]:
    """Lines of the form ``Name: value``; empty for a missing file."""
    try:
        return dict(_LINE.findall(path.read_text(errors="replace")))
    except OSError:
        return {}
