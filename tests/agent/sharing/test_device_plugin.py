"""The CDI file of cards and fixed MIG devices, as container runtimes read it."""

import json
import re
from pathlib import Path

import pytest

from tessera.agent.sharing.allocate_response import CdiDevice, cdi_name
from tessera.agent.sharing.device_plugin import CdiFile
from tessera.nvml.interface import DeviceFile
from tessera_lab.kubelet.containers.environment import CdiError, CdiRegistry

A, B, M = "GPU-aaaa", "GPU-bbbb", "MIG-mmmm"
CONTROL = DeviceFile(path="/dev/nvidiactl", major=195, minor=255)


def card(minor: int) -> DeviceFile:
    return DeviceFile(path=f"/dev/nvidia{minor}", major=195, minor=minor)


CARDS = [
    CdiDevice(uuid=A, index="0", files=(CONTROL, card(0))),
    CdiDevice(uuid=M, index="0:0", files=(CONTROL, card(0))),
    CdiDevice(uuid=B, index="1", files=(CONTROL, card(1))),
]


def names(*devices: str) -> list[str]:
    return [cdi_name(each) for each in devices]


@pytest.fixture
def specs(tmp_path: Path) -> CdiFile:
    return CdiFile(tmp_path / "cdi")


@pytest.fixture
def runtime(tmp_path: Path) -> CdiRegistry:
    return CdiRegistry([tmp_path / "cdi"])


def test_the_file_is_one_that_runtimes_take(specs: CdiFile) -> None:
    specs.publish(CARDS, {"set-1": [A, B]})
    spec = json.loads(specs.path.read_bytes())
    assert specs.path.name == "k8s.device-plugin.nvidia.com-gpu.json"
    assert spec.keys() == {"cdiVersion", "kind", "devices"}
    assert spec["cdiVersion"] == "0.6.0"
    assert spec["kind"] == "k8s.device-plugin.nvidia.com/gpu"
    assert [device["name"] for device in spec["devices"][:-1]] == [A, "0", M, "0:0", B, "1"]
    for device in spec["devices"]:
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", device["name"])
        assert device["containerEdits"]
    node = {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0, "permissions": "rw"}
    assert spec["devices"][0]["containerEdits"] == {
        "env": [f"NVIDIA_VISIBLE_DEVICES={A}"],
        "deviceNodes": [{**node, "path": "/dev/nvidiactl", "minor": 255}, node],
        "mounts": [
            {
                "hostPath": "/dev/null",
                "containerPath": f"/var/run/nvidia-container-devices/{A}",
                "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
            }
        ],
    }


def test_one_device_is_named_alone(specs: CdiFile, runtime: CdiRegistry) -> None:
    specs.publish(CARDS, {})
    edits = runtime.edits(names(A))
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": A}
    assert edits.device_nodes == ("/dev/nvidiactl", "/dev/nvidia0")


def test_of_two_devices_both_are_named_and_have_their_nodes(specs: CdiFile, runtime: CdiRegistry) -> None:
    specs.publish(CARDS, {})
    specs.ensure_set("set-1", [B, A])
    edits = runtime.edits(names(B, A, "set-1"))
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": f"{A},{B}"}
    assert edits.device_nodes == ("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia0")
    *named, own = edits.mounts
    assert named == [f"/var/run/nvidia-container-devices/{each}" for each in (B, A)]
    assert own == "/run/tessera/cdi/set-1"


def test_a_set_stays_while_it_is_held(specs: CdiFile, runtime: CdiRegistry) -> None:
    specs.publish(CARDS, {})
    specs.ensure_set("set-1", [A, B])
    specs.publish(CARDS, {"set-1": [A, B]})
    assert runtime.edits(names(A, B, "set-1")).env
    specs.publish(CARDS, {})
    with pytest.raises(CdiError, match="unresolvable"):
        runtime.edits(names(A, B, "set-1"))


def test_a_set_names_more_when_more_is_known(specs: CdiFile, runtime: CdiRegistry) -> None:
    specs.publish(CARDS, {"set-1": [A]})
    specs.ensure_set("set-1", [A])
    assert runtime.edits(names(A, "set-1")).env == {"NVIDIA_VISIBLE_DEVICES": A}
    specs.publish(CARDS, {"set-1": [M, A]})
    specs.ensure_set("set-1", [A])
    assert runtime.edits(names(A, "set-1")).env == {"NVIDIA_VISIBLE_DEVICES": f"{A},{M}"}


def test_a_runtime_that_reads_late_starts_no_container_with_a_former_set(specs: CdiFile, runtime: CdiRegistry) -> None:
    specs.publish(CARDS, {"other": [A, M]})
    specs.ensure_set("set-1", [A])
    runtime.edits(names("set-1"))
    for uuids in ([A, B], [A, M, B], [B]):
        runtime.is_late = True
        specs.publish(CARDS, {"other": [A, M], "set-1": uuids})
        specs.ensure_set("set-1", uuids)
        with pytest.raises(CdiError, match="no such file or directory"):
            runtime.edits(names(A, "set-1"))
        assert runtime.edits(names(A, M, "other")).env == {"NVIDIA_VISIBLE_DEVICES": f"{A},{M}"}
        runtime.is_late = False
        assert runtime.edits(names("set-1")).env == {"NVIDIA_VISIBLE_DEVICES": ",".join(uuids)}
    runtime.is_late = True
    specs.ensure_set("set-1", [B])  # the same again
    assert runtime.edits(names("set-1")).env == {"NVIDIA_VISIBLE_DEVICES": B}
    specs.publish(CARDS, {})
    with pytest.raises(CdiError, match="no such file or directory"):
        runtime.edits(names("set-1"))
    assert list(specs.path.parent.iterdir()) == [specs.path]


def test_a_set_with_a_device_that_is_gone_is_left_out(specs: CdiFile, runtime: CdiRegistry) -> None:
    specs.publish(CARDS[:1], {"set-1": [A, B]})
    assert runtime.edits(names(A)).env == {"NVIDIA_VISIBLE_DEVICES": A}
    assert len(json.loads(specs.path.read_bytes())["devices"]) == 2


def test_another_minor_number_is_in_the_file_at_once(specs: CdiFile, runtime: CdiRegistry) -> None:
    specs.publish(CARDS, {})
    specs.publish([CdiDevice(uuid=A, index="0", files=(CONTROL, card(5)))], {})
    assert runtime.edits(names(A)).device_nodes == ("/dev/nvidiactl", "/dev/nvidia5")


def test_what_another_agent_wrote_is_put_right_before_a_container_starts(
    specs: CdiFile, runtime: CdiRegistry, tmp_path: Path
) -> None:
    specs.publish(CARDS, {"set-1": [A, B]})
    CdiFile(tmp_path / "cdi").publish(CARDS, {})
    specs.ensure_set("set-1", [A, B])
    assert runtime.edits(names(A, B, "set-1")).env == {"NVIDIA_VISIBLE_DEVICES": f"{A},{B}"}


def test_the_file_is_left_alone_while_nothing_changes_and_gone_without_devices(specs: CdiFile) -> None:
    specs.publish(CARDS, {"set-1": [A, B]})
    before = specs.path.stat().st_ino
    specs.publish(CARDS, {"set-1": [A, B]})
    assert specs.path.stat().st_ino == before
    specs.publish([], {})
    assert not specs.path.exists()
    assert list(specs.path.parent.iterdir()) == []
