"""The settings of container runtimes: right in form, by the runtimes' own parsers where there is one, and safe."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tessera.cli.config.command import _RUNTIMES
from tessera.cli.config.runtimes import NVIDIA, RUNTIMES, SettingsFile, class_manifest
from tessera.cli.main import main

#: By runtime, the plugin of containerd that has the settings.
CRI = {
    "containerd-1.7": "io.containerd.grpc.v1.cri",
    "containerd": "io.containerd.cri.v1.runtime",
    "microk8s": "io.containerd.grpc.v1.cri",
}


def parsed(file: SettingsFile) -> dict[str, Any]:
    """What a file says."""
    if file.path.endswith(".json"):
        found = json.loads(file.text)
    elif file.path.endswith(".yaml"):
        found = yaml.safe_load(file.text)
    else:
        found = tomllib.loads(file.text)
    assert isinstance(found, dict)
    return found


def test_the_command_knows_them_all() -> None:
    assert set(_RUNTIMES) == set(RUNTIMES)


@pytest.mark.parametrize("name", RUNTIMES)
def test_an_image_that_names_cards_gets_none_and_a_slice_is_found(name: str) -> None:
    found = RUNTIMES[name].files
    assert found[-1] is NVIDIA
    assert parsed(NVIDIA) == {
        "accept-nvidia-visible-devices-envvar-when-unprivileged": False,
        "accept-nvidia-visible-devices-as-volume-mounts": True,
        "nvidia-container-runtime": {
            "mode": "auto",
            "runtimes": ["runc", "crun", "/usr/libexec/crio/crun", "/usr/libexec/crio/runc"],
        },
    }


@pytest.mark.parametrize("name", CRI)
def test_containerd_has_the_handler_and_reads_the_agents_cdi_files(name: str) -> None:
    plugin = parsed(RUNTIMES[name].files[-2])["plugins"][CRI[name]]
    assert plugin["enable_cdi"]
    assert "/var/run/cdi" in plugin["cdi_spec_dirs"]
    assert plugin["containerd"]["default_runtime_name"] == class_manifest()["handler"] == "nvidia"
    assert plugin["containerd"]["runtimes"]["nvidia"]["options"]["BinaryName"].endswith("nvidia-container-runtime")


def test_containerd_1_gets_no_file_of_its_own() -> None:
    """It would replace the section of the main file, and take away the sandbox image."""
    (file, _) = RUNTIMES["containerd-1.7"].files
    assert (file.path, file.merge) == ("/etc/containerd/config.toml", True)


def test_the_others() -> None:
    crio = parsed(RUNTIMES["crio"].files[0])["crio"]["runtime"]
    assert (crio["default_runtime"], crio["runtimes"]["nvidia"]["runtime_type"]) == ("nvidia", "oci")
    assert crio["runtimes"]["nvidia"]["monitor_path"] == "/usr/libexec/crio/conmon"  # in no PATH
    docker = parsed(RUNTIMES["docker"].files[0])
    assert docker["features"] == {"cdi": True}
    assert docker["default-runtime"] in docker["runtimes"]
    for name in ("k3s", "rke2"):
        assert parsed(RUNTIMES[name].files[0]) == {"default-runtime": "nvidia"}


@pytest.mark.skipif(shutil.which("containerd") is None, reason="containerd is not on this machine")
def test_containerd_itself_reads_its_file(tmp_path: Path) -> None:
    told = subprocess.run(["containerd", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    name = "containerd-1.7" if told.lstrip("v").startswith("1.") else "containerd"
    path = tmp_path / "config.toml"
    path.write_text(RUNTIMES[name].files[-2].text)
    dump = subprocess.run(["containerd", "-c", str(path), "config", "dump"], capture_output=True, text=True, check=True)
    containerd = tomllib.loads(dump.stdout)["plugins"][CRI[name]]["containerd"]
    assert containerd["default_runtime_name"] == "nvidia"
    assert containerd["runtimes"]["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert "runc" in containerd["runtimes"]


@pytest.mark.skipif(shutil.which("crio") is None, reason="CRI-O is not on this machine")
def test_crio_itself_reads_its_file(tmp_path: Path) -> None:
    path = tmp_path / "99-nvidia.conf"
    path.write_text(RUNTIMES["crio"].files[0].text)
    dump = subprocess.run(["crio", "--config", str(path), "config"], capture_output=True, text=True, check=True)
    assert "[crio.runtime.runtimes.nvidia]" in dump.stdout


def validates() -> bool:
    """True if there is a Docker that can check its file, as versions from 23 can."""
    found = shutil.which("dockerd")
    return (
        found is not None
        and "--validate" in subprocess.run([found, "--help"], capture_output=True, text=True, check=False).stdout
    )


@pytest.mark.skipif(not validates(), reason="no Docker that checks its file is on this machine")
def test_docker_itself_reads_its_file(tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text(RUNTIMES["docker"].files[0].text)
    subprocess.run(["dockerd", "--validate", "--config-file", str(path)], check=True, capture_output=True)


def test_it_is_printed_as_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "runtime", "crio"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Write /etc/crio/crio.conf.d/99-nvidia.conf\n[crio.runtime]\n")
    assert "# Merge into /etc/nvidia-container-runtime/config.toml\naccept-nvidia" in shown
    assert "# Then: systemctl restart crio\n" in shown
    assert shown.endswith("metadata:\n  name: nvidia\nhandler: nvidia\n")
    assert main(["config", "runtime", "k3s", "-o", "jsonpath={.files[0].text}"]) == 0
    assert capsys.readouterr().out.strip() == "default-runtime: nvidia"
