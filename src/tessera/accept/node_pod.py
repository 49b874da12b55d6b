"""The pod that accepts a node's cards: Tessera's image beside the agent, with no more rights than reading needs.

Image, runtime and pull secrets are those of the node's agent, so that the pod gets the driver as the agent gets it. It
asks for no card, has no token, and drops every capability. Only a test that changes cards runs as root and privileged,
as the agent does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tessera.accept.facts import NodeFacts
from tessera.kube.resources import Node

Json = dict[str, Any]

APP = "tessera-accept"
CONTAINER = "accept"
#: Environment variables of the agent by which the container runtime gives it the cards.
_FOR_RUNTIME = ("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
#: What a program needs that changes MIG mode and instances (NVIDIA container toolkit, MIG capabilities).
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
    """What the cluster says of a node."""
    labels = node.metadata.labels
    return NodeFacts(
        name=node.metadata.name,
        capacity={name: amount for name, amount in node.status.capacity.items() if name.startswith("nvidia.com/")},
        shares=labels.get(_REPLICAS, ""),
        driver_label=labels.get("nvidia.com/cuda.driver-version.full", ""),
        kubelet=node.status.node_info.kubelet_version,
        system=node.status.node_info.os_image,
    )
