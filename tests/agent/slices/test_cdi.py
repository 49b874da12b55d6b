"""CDI files that the container runtime reads."""

import json
from pathlib import Path

import pytest

from tessera.agent.base.device_plugin import CdiFolder, cdi_name, environment
from tessera.nvml.interface import DeviceFile
from tessera_lab.kubelet.containers.environment import CdiError, CdiRegistry

DEVICE = "GPU-a:3g.20gb:4"


def test_a_device_brings_environment_and_device_files(tmp_path: Path) -> None:
    files = [DeviceFile(path="/dev/nvidia0", major=195, minor=0)]
    CdiFolder(tmp_path).write(DEVICE, ["MIG-1", "MIG-2"], files)
    edits = CdiRegistry([tmp_path]).edits([cdi_name(DEVICE)])
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-1,MIG-2"}
    assert edits.device_nodes == ("/dev/nvidia0",)
    # Where NVIDIA's runtime ignores the variable in unprivileged containers, it finds the devices by their mounts.
    *named, own = edits.mounts
    assert named == [f"/var/run/nvidia-container-devices/{each}" for each in ("MIG-1", "MIG-2")]
    assert own == f"/run/tessera/cdi/{DEVICE}"


def test_a_file_has_the_form_of_the_specification(tmp_path: Path) -> None:
    CdiFolder(tmp_path).write(DEVICE, ["MIG-1"])
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_bytes()) == {
        "cdiVersion": "0.6.0",
        "kind": "tessera.dev/mig",
        "devices": [
            {
                "name": DEVICE,
                "containerEdits": {
                    "env": ["NVIDIA_VISIBLE_DEVICES=MIG-1"],
                    "mounts": [
                        {
                            "hostPath": str(path),
                            "containerPath": f"/run/tessera/cdi/{DEVICE}",
                            "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                        }
                    ],
                },
            }
        ],
    }


def test_the_next_claim_of_a_device_replaces_the_one_before(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(DEVICE, ["MIG-1"])
    folder.write(DEVICE, ["MIG-2"])
    assert CdiRegistry([tmp_path]).edits([cdi_name(DEVICE)]).env == environment(["MIG-2"])
    assert len(list(tmp_path.iterdir())) == 1


def test_a_runtime_that_reads_late_starts_no_container_with_a_former_definition(tmp_path: Path) -> None:
    folder, runtime = CdiFolder(tmp_path), CdiRegistry([tmp_path])
    name, files = cdi_name(DEVICE), [DeviceFile(path="/dev/nvidia0", major=195, minor=0)]
    definitions = [(["MIG-1"], files), (["MIG-2"], files), (["MIG-2"], files[:0]), (["void"], files[:0])]
    folder.write(DEVICE, *definitions[0])
    runtime.edits([name])
    for uuids, nodes in definitions[1:]:
        runtime.is_late = True
        folder.write(DEVICE, uuids, nodes)
        with pytest.raises(CdiError, match="no such file or directory"):
            runtime.edits([name])
        runtime.is_late = False
        assert runtime.edits([name]).env == environment(uuids)
    runtime.is_late = True
    folder.write(DEVICE, *definitions[-1])  # the same again
    assert runtime.edits([name]).env == environment(["void"])
    folder.remove([DEVICE])
    with pytest.raises(CdiError, match="no such file or directory"):
        runtime.edits([name])


def test_a_file_of_an_older_agent_is_replaced(tmp_path: Path) -> None:
    """Its name has no hash. Two files for one device would make the runtime refuse it."""
    folder = CdiFolder(tmp_path)
    older = tmp_path / f"tessera.dev-mig_{DEVICE}.json"
    older.write_text("{}")
    folder.keep_only([DEVICE])
    assert older.exists()
    folder.write(DEVICE, ["MIG-1"])
    assert not older.exists()
    older.write_text("{}")
    folder.remove([DEVICE])
    assert list(tmp_path.iterdir()) == []


def test_only_files_of_ours_are_removed(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    other = tmp_path / "nvidia.json"
    other.write_text("{}")
    folder.write(DEVICE, ["MIG-1"])
    folder.write("GPU-a:1g.5gb:0", ["MIG-2"])
    folder.keep_only([DEVICE])
    ours, theirs = sorted(tmp_path.iterdir(), key=lambda path: path == other)
    assert (ours.name.startswith(f"tessera.dev-mig_{DEVICE}_"), theirs) == (True, other)
    folder.remove([DEVICE, DEVICE])
    assert list(tmp_path.iterdir()) == [other]


def test_what_the_last_containers_got_is_read_back(tmp_path: Path) -> None:
    folder = CdiFolder(tmp_path)
    folder.write(DEVICE, ["MIG-1", "MIG-2"])
    folder.write("GPU-a:1g.5gb:0", ["MIG-3"], [DeviceFile(path="/dev/nvidia0", major=195, minor=0)])
    (tmp_path / "tessera.dev-mig_GPU-a:1g.5gb:1.json").write_text("{")
    (tmp_path / "tessera.dev-mig_GPU-a:1g.5gb:2.json").mkdir()
    assert folder.read() == {DEVICE: "MIG-1,MIG-2", "GPU-a:1g.5gb:0": "MIG-3"}


def test_a_folder_that_is_not_there_has_nothing_to_clean(tmp_path: Path) -> None:
    CdiFolder(tmp_path / "none").keep_only([])
