"""The state that the device manager keeps over a restart."""

from pathlib import Path

import pytest

from tessera.kubelet.interfaces import ContainerAllocateResponse, Device
from tessera_lab.kubelet.devices.checkpoint import FILE_NAME, CheckpointError, FileCheckpoint
from tessera_lab.kubelet.devices.device_ledger import DeviceHolding, DeviceLedger, PodUid

MIG = "nvidia.com/mig-1g.5gb"


def ledger() -> DeviceLedger:
    made = DeviceLedger()
    made.set_devices(MIG, [Device(id="a"), Device(id="b")])
    allocation = ContainerAllocateResponse(cdi_devices=("tessera.dev/mig=a",))
    holding = DeviceHolding(container="c", resource=MIG, device_ids=("a",), allocation=allocation)
    made.hold(PodUid("uid"), "default", "p", holding)
    return made


def test_holders_and_resource_names_come_back(tmp_path: Path) -> None:
    FileCheckpoint(tmp_path).save(ledger())
    loaded = FileCheckpoint(tmp_path).load()
    assert loaded is not None
    assert loaded.pods() == ledger().pods()
    assert loaded.counts() == ({MIG: 0}, {MIG: 0})


def test_a_node_without_a_checkpoint_starts_empty(tmp_path: Path) -> None:
    assert FileCheckpoint(tmp_path).load() is None


@pytest.mark.parametrize("damage", [("uid", "xid"), ('"Checksum"', '"Other"'), ("{", "")])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, damage: tuple[str, str]) -> None:
    FileCheckpoint(tmp_path).save(ledger())
    file = tmp_path / FILE_NAME
    file.write_text(file.read_text().replace(*damage))
    with pytest.raises(CheckpointError, match=FILE_NAME):
        FileCheckpoint(tmp_path).load()


@pytest.mark.parametrize(
    "content", [b"\xff", b'"\xff"', b"[1]", b'{"Data":' * 100_000], ids=["byte", "text", "array", "nested"]
)
def test_a_checkpoint_of_any_bytes_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(CheckpointError, match=FILE_NAME):
        FileCheckpoint(tmp_path).load()
