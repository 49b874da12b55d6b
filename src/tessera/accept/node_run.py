"""Accepts the cards of a node from afar: makes the pod, waits for its end, reads its log, and always removes it.

The pod has Tessera's image beside the agent, with no more rights than reading needs. Image, runtime and pull secrets
are those of the node's agent, so that the pod gets the driver as the agent gets it. It asks for no card, has no token,
and drops every capability. Only a test that changes cards runs as root and privileged, as the agent does.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tessera.accept.acceptance import Trials
from tessera.accept.checks import judge_all, name_finding
from tessera.accept.document import ACCEPT_DOCUMENT, Document, read_document
from tessera.accept.facts import NodeFacts
from tessera.accept.pod_trial import APP, PodTrial, choose_resource, judge_pod, run_pod_trial, trial_pod
from tessera.api.names import SYSTEM_NAMESPACE
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.resources import DAEMONSETS, NODES, PODS, Node, Pod
from tessera.text import UserError, one_line

Json = dict[str, Any]

CONTAINER = "accept"
#: Environment variables of the agent by which the container runtime gives it the cards.
_FOR_RUNTIME = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
#: Lets a program change MIG mode and instances (NVIDIA container toolkit, MIG capabilities).
_FOR_MIG = ({"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"},)
#: Any user without rights; NVIDIA's device files are open to all.
_NOBODY = 65532
#: Fields of the agent's pod that say how its image is pulled, and which runtime starts it.
_SHARED = ("imagePullSecrets", "runtimeClassName")


def acceptance_pod(agent: Mapping[str, Any], *, node: str, options: Sequence[str], seconds: int, changes: bool) -> Json:
    """The pod; its log is the document.

    Args:
        agent: the spec of a pod of the agent.
        node: name of the node.
        options: of ``tessera accept``.
        seconds: how long the pod may take.
        changes: the options change cards.
    """
    container = agent["containers"][0]
    environment = [each for each in container.get("env", []) if each["name"] in _FOR_RUNTIME]
    simulated = _option(container, "--simulate")
    command = ["tessera", "accept", "-o", "json", "--identified", "--timeout", str(seconds), *options]
    return {
        "metadata": {
            "generateName": f"{APP}-",
            "labels": {"app.kubernetes.io/name": APP, "app.kubernetes.io/part-of": "tessera"},
        },
        "spec": {
            "nodeName": node,
            **{name: agent[name] for name in _SHARED if name in agent},
            "restartPolicy": "Never",
            "activeDeadlineSeconds": seconds + 60,
            "tolerations": [{"operator": "Exists"}],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": CONTAINER,
                    "image": container["image"],
                    **({"imagePullPolicy": container["imagePullPolicy"]} if "imagePullPolicy" in container else {}),
                    "command": [*command, *simulated],
                    "env": [*environment, *(_FOR_MIG if changes else ())],
                    "securityContext": _privileged() if changes else _unprivileged(),
                    "volumeMounts": [
                        {"name": "dev", "mountPath": "/dev", "readOnly": True},
                        {
                            "name": "driver",
                            "mountPath": "/run/nvidia/driver",
                            "mountPropagation": "HostToContainer",
                            "readOnly": True,
                        },
                        *([{"name": "state", "mountPath": STATE}] if changes else []),
                    ],
                }
            ],
            "volumes": [
                _host_path("dev", "/dev", "Directory"),
                _host_path("driver", "/run/nvidia/driver", "DirectoryOrCreate"),
                *([_host_path("state", STATE, "DirectoryOrCreate")] if changes else []),
            ],
        },
    }


#: The host's folder of the agent's state files; a test that changes cards keeps there how they were.
STATE = "/var/lib/tessera"


def _option(container: Mapping[str, Any], name: str) -> list[str]:
    """An option of the agent with its value, as one word; empty if the agent does not have it."""
    return [each for each in container.get("args", []) if each.startswith(f"{name}=")][:1]


def _unprivileged() -> Json:
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": _NOBODY,
    }


def _privileged() -> Json:
    return {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True}


def _host_path(name: str, path: str, kind: str) -> Json:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


#: The label by which feature discovery counts shares of a card.
_REPLICAS = "nvidia.com/gpu.replicas"


def node_facts(node: Node) -> NodeFacts:
    """The facts about a node that its Node object has."""
    labels = node.metadata.labels
    return NodeFacts(
        name=node.metadata.name,
        capacity={name: amount for name, amount in node.status.capacity.items() if name.startswith("nvidia.com/")},
        shares=labels.get(_REPLICAS, ""),
        driver_label=labels.get("nvidia.com/cuda.driver-version.full", ""),
        kubelet=node.status.node_info.kubelet_version,
        system=node.status.node_info.os_image,
    )


_AGENT = "tessera-agent"
#: Seconds between two looks at the pod.
_POLL = 1.0
#: Seconds until the image must be pulled and the container run.
_START_SECONDS = 300.0
_DONE = ("Succeeded", "Failed")


class NodeRunError(UserError):
    """The pod could not be made, did not run, or said nothing that is a document."""


async def accept_node(
    client: Client,
    clock: Clock,
    node: str,
    *,
    trials: Trials,
    pod_trial: bool = False,
    seconds: int = 300,
    say: Callable[[str], None] = lambda _: None,
) -> Document:
    """The document of a node: its pod's, with what the cluster says of the node.

    Args:
        client: the cluster, with the user's rights.
        clock: the time.
        node: name of the node.
        trials: what is done besides reading.
        pod_trial: a pod gets a card of the node.
        seconds: how long the reading may take.
        say: told when the pod is made and removed.

    Raises:
        NodeRunError: there is no agent to copy, or the pod did not give a document.
        ApiError: a right is missing, or there is no such node.
    """
    found = await client.get(NODES, node)
    if trials.mig and not found.spec.unschedulable:
        raise NodeRunError(f"--mig changes a card of {node}: first run kubectl cordon {node}, and let its pods end")
    agent = await _agent_spec(client, node)
    options = (["--mig", trials.mig] if trials.mig else []) + ["--compute"] * trials.compute
    pod = acceptance_pod(agent, node=node, options=options, seconds=seconds, changes=bool(trials.mig))
    made = await client.create(PODS.as_dicts(), pod, SYSTEM_NAMESPACE)
    name: str = made["metadata"]["name"]
    say(f"pod {SYSTEM_NAMESPACE}/{name} runs on {node}")
    try:
        await _wait(client, clock, name, seconds)
        text = await _log(client, name)
    finally:
        # A user's Ctrl-C cancels this task; the pod is still removed.
        await asyncio.shield(_remove(client, name, say))
    document = _add_node(_parse(text, name), found)
    if not pod_trial:
        return document
    return _add_pod_trial(document, await _try_pod(client, clock, agent, found))


def _add_node(document: Document, node: Node) -> Document:
    """The document with the node's facts, judged again; the pod's trials stay."""
    facts = document.facts
    name, system = node.metadata.name, node.status.node_info.os_image
    facts = msgspec.structs.replace(
        facts,
        node=node_facts(node),
        host=msgspec.structs.replace(facts.host, hostname=name, system=system),
        absent={key: reason for key, reason in facts.absent.items() if key != "node"},
    )
    checks = judge_all(facts)
    names = {each.name for each in checks}
    trials = [each for each in document.checks if each.name not in names]
    return msgspec.structs.replace(document, facts=facts, checks=(*checks, *trials))


async def _try_pod(client: Client, clock: Clock, agent: dict[str, Any], node: Node) -> PodTrial:
    resource = choose_resource(node.status.allocatable)
    if not resource:
        name = node.metadata.name
        return PodTrial(resource="card", error=f"node {name} offers none now; see tessera why node/{name}")
    hostname = node.metadata.labels.get("kubernetes.io/hostname", node.metadata.name)
    return await run_pod_trial(client, clock, trial_pod(agent, hostname=hostname, resource=resource))


def _add_pod_trial(document: Document, trial: PodTrial) -> Document:
    check = name_finding("pod", judge_pod(trial))
    return msgspec.structs.replace(document, pod=trial, checks=(*document.checks, check))


async def _agent_spec(client: Client, node: str) -> dict[str, Any]:
    """The spec of the node's agent; of the DaemonSet's template if the node has none."""
    listed = await client.list(PODS.as_dicts(), SYSTEM_NAMESPACE, label_selector=f"app.kubernetes.io/name={_AGENT}")
    for pod in listed.items:
        if pod["spec"].get("nodeName") == node:
            spec: dict[str, Any] = pod["spec"]
            return spec
    try:
        template: dict[str, Any] = (await client.get(DAEMONSETS.as_dicts(), _AGENT, SYSTEM_NAMESPACE))["spec"]
    except NotFound:
        raise NodeRunError(
            f"Tessera is not installed: there is no DaemonSet {SYSTEM_NAMESPACE}/{_AGENT} whose image the pod could"
            " use; run tessera accept on the machine itself"
        ) from None
    return dict(template["template"]["spec"])


async def _wait(client: Client, clock: Clock, name: str, seconds: int) -> None:
    """Returns when the pod's container has ended."""
    began = clock.monotonic()
    while True:
        pod: Pod = await client.get(PODS, name, SYSTEM_NAMESPACE)
        if pod.status.phase in _DONE:
            return
        waited = clock.monotonic() - began
        if waited > (_START_SECONDS if pod.status.phase != "Running" else _START_SECONDS + seconds + 60):
            raise NodeRunError(f"pod {name}: {_state(pod)} after {waited:.0f} s")
        await clock.sleep(_POLL)


def _state(pod: Pod) -> str:
    """Why a pod does not run, in kubelet's words."""
    waiting = [each.state.waiting for each in pod.status.container_statuses if each.state and each.state.waiting]
    words = [f"{each.reason}: {each.message}" for each in waiting] or [pod.status.message]
    return one_line(f"{pod.status.phase or 'Pending'} {' '.join(words)}".strip())


async def _log(client: Client, name: str) -> bytes:
    query = [("container", CONTAINER), ("limitBytes", str(int(ACCEPT_DOCUMENT)))]
    return (await client.request("GET", f"{PODS.path(SYSTEM_NAMESPACE, name)}/log", query=query, accept="*/*")).body


async def _remove(client: Client, name: str, say: Callable[[str], None]) -> None:
    try:
        with suppress(NotFound):
            await client.delete(PODS, name, SYSTEM_NAMESPACE, grace_seconds=0)
    except (ApiError, OSError) as error:
        say(f"pod {SYSTEM_NAMESPACE}/{name} cannot be deleted: {one_line(error)}; it ends by itself, delete it then")
        return
    say(f"pod {SYSTEM_NAMESPACE}/{name} is removed")


def _parse(text: bytes, name: str) -> Document:
    """The document in a log; the log's last line as the error if there is none."""
    start = text.find(b"{")
    try:
        return read_document(text[start:] if start >= 0 else b"", f"the log of pod {name}")
    except UserError as error:
        lines = text.decode(errors="replace").strip().splitlines()
        raise NodeRunError(one_line(lines[-1]) if lines and start < 0 else str(error)) from error
