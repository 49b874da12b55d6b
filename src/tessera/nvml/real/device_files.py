"""The device files that a container needs to use a card or a MIG device.

The driver guards every GPU instance and compute instance by a *capability*: a process that may open its device file
``/dev/nvidia-caps/nvidia-cap<minor>`` may use the instance. The minors are fixed for each position and listed in
``/proc/driver/nvidia-caps/mig-minors``; the major numbers change from boot to boot and are in ``/proc/devices`` (NVIDIA
MIG user guide, device nodes and capabilities).

The files themselves need not exist on the host: with type, major and minor known, a container runtime makes them.
"""

import re
from pathlib import Path

from tessera.nvml.errors import NotFound, NotSupported
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
            raise NotFound(f'{proc / "driver/nvidia-caps/mig-minors"}: no capability "{capability}"')
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
    return {name: int(major) for major, name in _MAJOR.findall(_characters(_read(proc / "devices")))}


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise NotSupported(
            f"{path}: {error.strerror}; mount the host's /proc, with the NVIDIA driver loaded"
        ) from error


def _characters(devices: str) -> str:
    """The part of ``/proc/devices`` on character devices."""
    return devices.partition("Block devices:")[0]
