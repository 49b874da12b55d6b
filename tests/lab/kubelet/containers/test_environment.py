"""A container's variables and command line, and CDI devices as its runtime resolves them."""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tessera_lab.kubelet.containers.environment import (
    CdiError,
    CdiRegistry,
    ContainerConfigError,
    PodFieldValues,
    command_line,
    environment,
    expand,
)

POD = {
    "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {"app": "x"}},
    "spec": {"nodeName": "n1", "serviceAccountName": "sa"},
}
FACTS = PodFieldValues(POD, pod_ip="10.0.0.2", host_ip="192.0.2.1", allocatable={"cpu": "8", "memory": "1Gi"})
OBJECTS = {
    ("configmaps", "ns", "settings"): {"A": "1", "B": "2"},
    ("secrets", "ns", "keys"): {"TOKEN": base64.b64encode(b"secret").decode()},
}


async def read(plural: str, namespace: str, name: str) -> Mapping[str, str] | None:
    return OBJECTS.get((plural, namespace, name))


def resolve(container: dict[str, Any]) -> dict[str, str]:
    return asyncio.run(environment(container, FACTS, read))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u"),
        ("metadata.labels['app']", "x"),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("status.podIP", "10.0.0.2"),
        ("status.hostIP", "192.0.2.1"),
    ],
)
def test_downward_api(path: str, value: str) -> None:
    container = {"env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}
    assert resolve(container) == {"X": value}


def test_a_variable_may_use_those_before_it() -> None:
    container = {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)-$(C)-$$(A)"}]}
    assert resolve(container)["B"] == "1-$(C)-$(A)"


def test_config_maps_and_secrets() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "settings"}, "prefix": "S_"}],
        "env": [
            {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "TOKEN"}}},
            {"name": "NONE", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "x", "optional": True}}},
        ],
    }
    assert resolve(container) == {"S_A": "1", "S_B": "2", "TOKEN": "secret"}


def test_limits_of_the_container_or_of_the_node() -> None:
    container = {
        "resources": {"limits": {"cpu": "1500m"}},
        "env": [
            {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
            {"name": "MIB", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        ],
    }
    assert resolve(container) == {"CPU": "2", "MIB": "1024"}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "x"}}, 'configmap "none" not found'),
        ({"configMapKeyRef": {"name": "settings", "key": "x"}}, "couldn't find key x in ConfigMap ns/settings"),
        ({"fieldRef": {"fieldPath": "spec.replicas"}}, "unsupported fieldPath: spec.replicas"),
    ],
)
def test_what_is_missing_is_named(source: dict[str, Any], text: str) -> None:
    with pytest.raises(ContainerConfigError, match=text):
        resolve({"env": [{"name": "X", "valueFrom": source}]})


def test_command_and_arguments_are_expanded() -> None:
    container = {"command": ["tessera", "agent"], "args": ["--node=$(NODE)", "$(UNKNOWN)"]}
    assert command_line(container, {"NODE": "n1"}) == ("tessera", "agent", "--node=n1", "$(UNKNOWN)")
    assert expand("$$(NODE)", {"NODE": "n1"}) == "$(NODE)"


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
