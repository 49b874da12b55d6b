"""The pod of an acceptance has the agent's image and runtime, and no right that reading does not need."""

from typing import Any

import pytest

from tessera.accept.node_run import acceptance_pod
from tessera.accept.pod_trial import choose_resource
from tessera.doctor.manifests import install_manifests


@pytest.fixture
def agent() -> dict[str, Any]:
    """The agent's pod as deploy/ has it."""
    (found,) = (
        each for each in install_manifests() if each["kind"] == "DaemonSet" and "agent" in str(each["metadata"])
    )
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return {**spec, "runtimeClassName": "nvidia", "imagePullSecrets": [{"name": "registry"}]}


def made(agent: dict[str, Any], *options: str, changes: bool = False) -> dict[str, Any]:
    pod = acceptance_pod(agent, node="n", options=options, seconds=60, changes=changes)
    spec: dict[str, Any] = pod["spec"]
    return spec


def test_it_gets_the_driver_as_the_agent_gets_it(agent: dict[str, Any]) -> None:
    spec = made(agent)
    (container,) = spec["containers"]
    assert (spec["nodeName"], spec["runtimeClassName"]) == ("n", "nvidia")
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert container["image"] == agent["containers"][0]["image"]
    assert {each["name"] for each in container["env"]} == {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    assert container["command"][:4] == ["tessera", "accept", "-o", "json"]


def test_reading_has_no_rights(agent: dict[str, Any]) -> None:
    spec = made(agent)
    (container,) = spec["containers"]
    security = container["securityContext"]
    assert "privileged" not in security
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["runAsNonRoot"]
    assert spec["automountServiceAccountToken"] is False
    assert "serviceAccountName" not in spec
    assert "resources" not in container
    assert all(mount["readOnly"] for mount in container["volumeMounts"])
    assert not spec.keys() & {"hostPID", "hostNetwork", "hostIPC"}


def test_a_trial_of_mig_is_privileged_and_keeps_its_file_on_the_node(agent: dict[str, Any]) -> None:
    spec = made(agent, "--mig", "0", changes=True)
    (container,) = spec["containers"]
    assert container["securityContext"]["privileged"]
    assert container["command"][-2:] == ["--mig", "0"]
    (state,) = (mount for mount in container["volumeMounts"] if mount["name"] == "state")
    assert state["mountPath"] == "/var/lib/tessera"
    assert {"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"} in container["env"]


def test_an_agent_of_simulated_cards_is_accepted_with_them(agent: dict[str, Any]) -> None:
    agent["containers"][0]["args"] = ["--http-port=8082", "--simulate=4xA30"]
    (container,) = made(agent)["containers"]
    assert container["command"][-1] == "--simulate=4xA30"


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [
        ({"nvidia.com/gpu": "2", "nvidia.com/gpu.shared": "8"}, "nvidia.com/gpu"),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-2g.10gb": "1", "nvidia.com/mig-1g.5gb": "7"}, "nvidia.com/mig-1g.5gb"),
        ({"cpu": "4", "nvidia.com/gpu": "0"}, ""),
    ],
)
def test_the_pod_asks_for_what_the_node_offers(offered: dict[str, str], chosen: str) -> None:
    assert choose_resource(offered) == chosen
