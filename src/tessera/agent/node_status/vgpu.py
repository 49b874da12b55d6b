"""Detects a virtual machine whose cards are vGPUs, and reads the version of the host's driver.

NVML gives the guest's own driver only. The host writes its driver's version and branch into the PCI configuration space
of the cards that it emulates, as a capability that is NVIDIA's own: the letters VF, then records of a type, a length
and data. The record of type 0 has ten characters for the version and ten for the branch, padded with zeros. GPU feature
discovery reads the same (``internal/vgpu`` of NVIDIA's device plugin); the walk along capabilities is that of the PCI
specification, 6.7.
"""

from collections.abc import Iterator
from pathlib import Path

from tessera.agent.node_status.labels import VgpuFacts

#: Folder in which Linux lists PCI devices (Documentation/ABI/testing/sysfs-bus-pci).
PCI_DEVICES = Path("/sys/bus/pci/devices")

_NVIDIA = "0x10de"
#: Bytes of a configuration space that a privileged process can read; without privileges Linux gives 64.
_WHOLE = 256
_STATUS, _HAS_CAPABILITIES, _FIRST_CAPABILITY = 0x06, 0x10, 0x34
_VENDOR_SPECIFIC = 0x09
_SIGNATURE = slice(3, 5)
_FIRST_RECORD = 5
_HOST_DRIVER = 0
_TEXT = 10


def read_vgpu(devices: Path = PCI_DEVICES) -> VgpuFacts | None:
    """The host's driver; ``None`` if no card is a vGPU, or if the host's driver cannot be read.

    Args:
        devices: the folder of PCI devices.
    """
    found = (vgpu_of(config) for config in _configurations(devices))
    return next((each for each in found if each is not None), None)


def vgpu_of(config: bytes) -> VgpuFacts | None:
    """The host's driver as a card's PCI configuration space gives it; ``None`` for a card that is no vGPU."""
    capability = next((each for each in _vendor_specific(config) if each[_SIGNATURE] == b"VF"), b"")
    at = _FIRST_RECORD
    while at + 2 <= len(capability):
        kind, length = capability[at], capability[at + 1]
        data = capability[at + 2 : at + 2 + 2 * _TEXT]
        if kind == _HOST_DRIVER:
            return VgpuFacts(_text(data[:_TEXT]), _text(data[_TEXT:])) if len(data) == 2 * _TEXT else None
        if length < 2:
            return None
        at += length
    return None


def _configurations(devices: Path) -> Iterator[bytes]:
    """The configuration spaces of NVIDIA's devices, in the order of their addresses."""
    try:
        folders = sorted(devices.iterdir())
    except OSError:
        return
    for folder in folders:
        try:
            if (folder / "vendor").read_text().strip() == _NVIDIA:
                yield (folder / "config").read_bytes()
        except OSError:
            continue


def _vendor_specific(config: bytes) -> Iterator[bytes]:
    """The vendor's own capabilities; the walk ends if the chain leads in a circle."""
    if len(config) < _WHOLE or not config[_STATUS] & _HAS_CAPABILITIES:
        return
    at, visited = config[_FIRST_CAPABILITY], set[int]()
    while at and at not in visited and at + 2 < _WHOLE:
        visited.add(at)
        if config[at] == _VENDOR_SPECIFIC:
            yield config[at : at + config[at + 2]]
        at = config[at + 1]


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode("ascii", errors="ignore")
