"""Places of cards and network cards in the kernel's /sys."""

from pathlib import Path

import pytest
from tests.support.nvml_library import NvmlLibrary

from tessera.nvml.interface import PciPlace
from tessera.nvml.real.real_nvml import RealNvml

GPU = "pci0000:15/0000:15:01.0/0000:10:00.0"


def make_device(sys: Path, place: str, **files: str) -> Path:
    folder = sys / "devices" / place
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return folder


def link(at: Path, folder: Path) -> None:
    at.parent.mkdir(parents=True, exist_ok=True)
    at.symlink_to(folder)


def test_the_place_of_a_card(real: RealNvml, tmp_path: Path) -> None:
    folder = make_device(tmp_path / "sys", GPU, numa_node="1", local_cpulist="56-111,168-223")
    link(tmp_path / "sys/bus/pci/devices/0000:10:00.0", folder)
    one, other = (info.uuid for info in real.devices())
    assert real.place(one) == PciPlace(tuple(GPU.split("/")), 1, "56-111,168-223")
    assert real.place(other) == PciPlace()


def test_a_card_whose_memory_is_a_numa_node(real: RealNvml, library: NvmlLibrary) -> None:
    def answer(_library: object, _device: object, node: object) -> None:
        node._obj.value = 8  # type: ignore[attr-defined]

    library.instead["nvmlDeviceGetNumaNodeId"] = answer
    assert real.place(real.devices()[0].uuid).memory_node == 8


@pytest.mark.parametrize("node", ["-1", "nonsense", ""])
def test_a_kernel_without_numa_says_nothing(real: RealNvml, tmp_path: Path, node: str) -> None:
    link(tmp_path / "sys/bus/pci/devices/0000:10:00.0", make_device(tmp_path / "sys", GPU, numa_node=node))
    assert real.place(real.devices()[0].uuid).numa_node is None


def test_network_cards_by_their_numbers(real: RealNvml, tmp_path: Path) -> None:
    assert real.network_cards() == {}
    sys = tmp_path / "sys"
    for number in (10, 2):
        folder = make_device(sys, f"pci0000:16/0000:16:01.0/0000:{number:02}:00.0", numa_node="0")
        link(sys / f"class/infiniband/mlx5_{number}/device", folder)
    link(sys / "class/infiniband/rxe0/device", make_device(sys, "virtual/net/dummy0"))
    assert list(real.network_cards()) == ["mlx5_2", "mlx5_10"]
    assert real.network_cards()["mlx5_2"].folders == ("pci0000:16", "0000:16:01.0", "0000:02:00.0")
