"""A container's variables and command line."""

import asyncio
import base64
from collections.abc import Mapping
from typing import Any

import pytest

from tessera_lab.kubelet.containers.environment import (
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
