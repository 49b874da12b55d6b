"""Reads the places of devices in the machine from the kernel's ``/sys``.

A folder of a PCI device is a link to its place below its root complex: ``/sys/devices/pci0000:15/0000:15:01.0/...``.
RDMA network cards are those of ``/sys/class/infiniband``, which ``nvidia-smi topo -m`` lists too.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from tessera.nvml.attributes import PciPlace

_ROOT = re.compile(r"pci[0-9a-f]{4,}:[0-9a-f]{2}")


def read_place(folder: Path, memory_node: int | None = None) -> PciPlace:
    """Reads the place of a device; a value that the kernel does not report is empty.

    Args:
        folder: the kernel's folder of the device, or a link to it.
        memory_node: see :class:`~tessera.nvml.attributes.PciPlace`.
    """
    node = read_number(folder / "numa_node")
    return PciPlace(
        folders=tuple(_below_root(folder)),
        numa_node=node if node is not None and node >= 0 else None,
        cpus=_read(folder / "local_cpulist"),
        memory_node=memory_node,
    )


def network_places(sys: Path) -> Mapping[str, PciPlace]:
    """The places of the RDMA network cards, in the order of their numbers; without those that are no PCI device."""
    folders = sorted((sys / "class/infiniband").glob("*"), key=_number_last)
    found = {each.name: read_place(each / "device") for each in folders}
    return {name: place for name, place in found.items() if place.folders}


def read_number(path: Path) -> int | None:
    """A number of the kernel in any base; ``None`` if it cannot be read."""
    try:
        return int(_read(path), 0)
    except ValueError:
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _below_root(folder: Path) -> Iterator[str]:
    below = False
    for part in folder.resolve().parts:
        below = below or _ROOT.fullmatch(part) is not None
        if below:
            yield part


def _number_last(folder: Path) -> tuple[str, int, str]:
    """Orders ``mlx5_2`` before ``mlx5_10``."""
    stem = folder.name.rstrip("0123456789")
    return stem, int(folder.name[len(stem) :] or 0), folder.name
