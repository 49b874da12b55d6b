"""CDI devices as the container runtime resolves them."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera_lab.kubelet.containers.environment import CdiError, CdiRegistry


def write(folder: Path, file: str, name: str, *env: str, **edits: Any) -> None:
    device = {"name": name, "containerEdits": {"env": list(env), **edits}}
    spec = {"cdiVersion": "0.8.0", "kind": "tessera.dev/mig", "devices": [device]}
    (folder / file).write_bytes(msgspec.json.encode(spec))


def test_the_edits_of_all_devices_come_together(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "a", "NVIDIA_VISIBLE_DEVICES=MIG-1", deviceNodes=[{"path": "/dev/nvidia0"}])
    write(tmp_path, "b.json", "b", "EXTRA=x=y", deviceNodes=[{"path": "/dev/nvidia0"}, {"path": "/dev/nvidia1"}])
    edits = CdiRegistry([tmp_path]).edits(["tessera.dev/mig=a", "tessera.dev/mig=b"])
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-1", "EXTRA": "x=y"}
    assert edits.device_nodes == ("/dev/nvidia0", "/dev/nvidia1")


def test_a_device_that_no_file_describes_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.json", "a")
    with pytest.raises(CdiError, match=r"unresolvable CDI devices tessera\.dev/mig=b$"):
        CdiRegistry([tmp_path, tmp_path / "missing"]).edits(["tessera.dev/mig=a", "tessera.dev/mig=b"])


def test_files_are_read_when_a_container_is_made(tmp_path: Path) -> None:
    registry = CdiRegistry([tmp_path])
    with pytest.raises(CdiError):
        registry.edits(["tessera.dev/mig=a"])
    write(tmp_path, "a.json", "a", "WHAT=first")
    assert registry.edits(["tessera.dev/mig=a"]).env == {"WHAT": "first"}
    write(tmp_path, "a.json", "a", "WHAT=the second")
    assert registry.edits(["tessera.dev/mig=a"]).env == {"WHAT": "the second"}
    (tmp_path / "a.json").unlink()
    with pytest.raises(CdiError):
        registry.edits(["tessera.dev/mig=a"])


def test_a_file_that_is_no_cdi_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "other.json").write_text("[]")
    write(tmp_path, "a.json", "a", "WHAT=good")
    assert CdiRegistry([tmp_path]).edits(["tessera.dev/mig=a"]).env == {"WHAT": "good"}
