"""``kubectl exec`` in a pod of the lab: what comes of a command, who may run one, and what is refused."""

from typing import Any

import pytest
from tests.lab.connections.conftest import RunningCluster
from tests.support.conformance_api import Kubectl

from tessera_lab.apiserver.interfaces import UserInfo

ANA = UserInfo(name="ana", groups=("users",))


async def holder(running: RunningCluster) -> str:
    """A pod that sees the second of the node's cards; returns its UUID."""
    (node,) = running.cluster.nodes.values()
    assert node.machine is not None
    card = node.machine.uuids()[1]
    await running.run("p", container={"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": card}]})
    return card


async def test_nvidia_smi_lists_the_pods_own_card(running: RunningCluster, kubectl: Kubectl) -> None:
    card = await holder(running)
    assert await kubectl("exec", "p", "--", "nvidia-smi", "-L") == f"GPU 0: Tesla T4 (UUID: {card})\n"
    assert "Tesla T4" in await kubectl("exec", "p", "--", "nvidia-smi")
    assert f"NVIDIA_VISIBLE_DEVICES={card}\n" in await kubectl("exec", "p", "-c", "c", "--", "env")
    assert await kubectl("exec", "p", "--", "sh", "-c", "echo $NVIDIA_VISIBLE_DEVICES") == f"{card}\n"


async def test_a_command_that_is_not_known_ends_with_127(running: RunningCluster, kubectl: Kubectl) -> None:
    await running.run("p")
    text = await kubectl("exec", "p", "--", "python", "-V", fails=True)
    assert "no program python with these arguments; exec in the lab knows: echo WORDS" in text
    assert text.endswith("command terminated with exit code 127\n")
    assert "Forbidden" not in text


async def test_only_who_may_create_exec_runs_commands(running: RunningCluster, kubectl: Kubectl) -> None:
    await running.run("p")
    rules: Any = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get"]},
    ]
    granted = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "r"},
        "rules": rules,
    }
    await kubectl("create", "-f", "-", manifest=granted)
    await kubectl("create", "rolebinding", "r", "--role=r", "--user=ana")
    ana = running.kubectl(ANA)
    refused = 'User "ana" cannot create resource "pods/exec" in API group "" in the namespace "default"'
    assert refused in await ana("exec", "p", "--", "hostname", fails=True)
    rules[1]["verbs"] = ["get", "create"]
    await kubectl("replace", "-f", "-", manifest=granted)
    assert await ana("exec", "p", "--", "hostname") == "p\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["exec", "none", "--", "env"], 'pods "none" not found'),
        (["exec", "p", "-c", "none", "--", "env"], "container none is not valid for pod p"),
        (["attach", "p"], "the attach subresource of pods is not implemented by this API server"),
    ],
)
async def test_what_cannot_be_is_said(running: RunningCluster, kubectl: Kubectl, command: list[str], said: str) -> None:
    await running.run("p")
    assert said in await kubectl(*command, fails=True)


async def test_an_old_client_is_told_to_use_websockets(
    running: RunningCluster, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    await running.run("p")
    monkeypatch.setenv("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false")
    text = await running.kubectl()("exec", "p", "--", "env", fails=True)
    assert "exec by spdy/3.1 is not implemented by this API server; kubectl from 1.30 on uses WebSockets" in text
