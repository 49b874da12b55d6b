"""Device nodes that a driver container made for itself only."""

import os
import stat
from pathlib import Path

import pytest

from tessera.nvml.errors import NoPermission
from tessera.nvml.real.device_nodes import HostDeviceNode, list_driver_nodes, make_nodes

DEVICES = """\
Character devices:
195 nvidia
195 nvidiactl
234 nvidia-caps
507 nvidia-uvm

Block devices:
  8 sd
"""
PARAMETERS = "EnableMSI: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nModifyDeviceFiles: 1\n"
CAPABILITY = "DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    for number, bus in enumerate(("0000:3b:00.0", "0000:86:00.0")):
        card = proc / "driver/nvidia/gpus" / bus
        card.mkdir(parents=True)
        (card / "information").write_text(f"Model: \t\t NVIDIA A30\nIRQ:   \t\t 42\nDevice Minor: \t {number}\n")
    capabilities = proc / "driver/nvidia/capabilities/mig"
    capabilities.mkdir(parents=True)
    (capabilities / "config").write_text(CAPABILITY.format(minor=1, mode=256))
    (capabilities / "monitor").write_text(CAPABILITY.format(minor=2, mode=292))
    (proc / "driver/nvidia/params").write_text(PARAMETERS)
    (proc / "devices").write_text(DEVICES)
    return proc


def node(path: str, major: int, minor: int) -> HostDeviceNode:
    return HostDeviceNode(path=path, major=major, minor=minor, mode=0o660, gid=44)


def test_control_cards_memory_and_capabilities_have_the_driver_s_numbers_owner_and_mode(proc: Path) -> None:
    assert list_driver_nodes(proc) == [
        node("nvidiactl", 195, 255),
        node("nvidia0", 195, 0),
        node("nvidia1", 195, 1),
        node("nvidia-uvm", 507, 0),
        node("nvidia-uvm-tools", 507, 1),
        HostDeviceNode(path="nvidia-caps/nvidia-cap1", major=234, minor=1, mode=0o400),
        HostDeviceNode(path="nvidia-caps/nvidia-cap2", major=234, minor=2, mode=0o444),
    ]


def test_nothing_is_made_without_a_driver_or_against_the_administrator_s_will(proc: Path, tmp_path: Path) -> None:
    assert list_driver_nodes(tmp_path / "none") == []
    (proc / "driver/nvidia/params").write_text(PARAMETERS.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))
    assert list_driver_nodes(proc) == []


def test_only_what_is_missing_is_made(proc: Path, tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    dev.mkdir()
    (dev / "nvidiactl").touch()
    made: dict[Path, tuple[int, int]] = {}
    owners: dict[str, tuple[int, int]] = {}

    def mknod(path: Path, mode: int, device: int) -> None:
        made[path] = (mode, device)
        path.touch()

    def chown(path: Path, uid: int, gid: int) -> None:
        owners[path.name] = (uid, gid)

    told = make_nodes(dev, list_driver_nodes(proc)[:4], mknod, chown)
    assert told == ["nvidia0", "nvidia1", "nvidia-uvm"]
    assert made[dev / "nvidia1"] == (stat.S_IFCHR | 0o660, os.makedev(195, 1))
    assert (dev / "nvidia1").stat().st_mode & 0o777 == 0o660
    assert owners["nvidia1"] == (0, 44)
    assert make_nodes(dev, list_driver_nodes(proc)[:4], mknod, chown) == []


def test_who_may_not_make_nodes_is_told_which(proc: Path, tmp_path: Path) -> None:
    def refused(path: Path, _mode: int, _device: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    with pytest.raises(NoPermission, match="nvidiactl: Operation not permitted"):
        make_nodes(tmp_path, list_driver_nodes(proc), refused)
