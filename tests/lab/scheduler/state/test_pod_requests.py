"""The resources of a node that a pod needs."""

from typing import Any

import pytest

from tessera_lab.scheduler.state.pod_requests import host_ports, pod_requests


def container(cpu: str | None = None, restart: str | None = None, **limits: str) -> dict[str, Any]:
    resources: dict[str, Any] = {"limits": limits}
    if cpu:
        resources["requests"] = {"cpu": cpu}
    return {"name": "c", "resources": resources} | ({"restartPolicy": restart} if restart else {})


@pytest.mark.parametrize(
    ("spec", "cpu"),
    [
        pytest.param({"containers": [container("100m"), container("1")]}, 1100, id="app containers add up"),
        pytest.param(
            {"containers": [container("100m")], "initContainers": [container("2"), container("1")]},
            2000,
            id="init containers run one after the other",
        ),
        pytest.param(
            {"containers": [container("1")], "initContainers": [container("500m", "Always"), container("2")]},
            2500,
            id="a sidecar runs beside a later init container",
        ),
        pytest.param(
            {"containers": [container("1")], "initContainers": [container("2"), container("500m", "Always")]},
            2000,
            id="an init container before the sidecar runs without it",
        ),
        pytest.param(
            {"containers": [container("3")], "initContainers": [container("500m", "Always")]},
            3500,
            id="sidecars and app containers add up",
        ),
        pytest.param({"containers": [container("1")], "overhead": {"cpu": "250m"}}, 1250, id="overhead is added"),
        pytest.param(
            {"containers": [container("1")], "resources": {"requests": {"cpu": "4"}}}, 4000, id="the pod's own request"
        ),
    ],
)
def test_cpu_in_thousandths(spec: dict[str, Any], cpu: int) -> None:
    assert pod_requests(spec)["cpu"] == cpu


def test_a_limit_without_a_request_is_requested() -> None:
    spec = {"containers": [container(**{"nvidia.com/mig-3g.20gb": "2", "memory": "1Gi"})]}
    assert pod_requests(spec) == {"nvidia.com/mig-3g.20gb": 2, "memory": 2**30, "pods": 1}


def test_host_ports_and_those_of_the_host_network() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}, {"containerPort": 53, "protocol": "UDP"}]
    spec: dict[str, Any] = {"containers": [{"ports": ports}]}
    assert host_ports(spec) == {("TCP", "0.0.0.0", 8080)}
    assert host_ports(spec | {"hostNetwork": True}) == {("TCP", "0.0.0.0", 8080), ("UDP", "0.0.0.0", 53)}
