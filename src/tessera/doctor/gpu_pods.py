"""The part of a tenant's pod that a support case needs: who, what it asks for, and how far it is. Pure."""

from collections.abc import Mapping
from typing import Any

from tessera.api.names import OWN_DOMAIN

#: Parts of the spec that decide the node.
_PLACING = (
    "nodeName",
    "nodeSelector",
    "tolerations",
    "schedulingGates",
    "schedulerName",
    "priority",
    "priorityClassName",
)
_CONTAINER_STATES = ("ready", "restartCount", "started")
_PREFIXES = ("nvidia.com/", "instaslice.redhat.com/", OWN_DOMAIN)


def uses_gpus(pod: Mapping[str, Any]) -> bool:
    """True if a container asks for a GPU, or the pod has annotations of Tessera."""
    annotations = pod["metadata"].get("annotations") or {}
    return any(name.startswith(OWN_DOMAIN) for name in annotations) or any(_amounts(each) for each in _containers(pod))


def gpu_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Names, requests and states of a pod."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    kept = ("name", "namespace", "uid", "labels", "annotations", "creationTimestamp", "deletionTimestamp")
    metadata = {key: pod["metadata"][key] for key in kept if key in pod["metadata"]}
    owners = [{key: each.get(key) for key in ("kind", "name")} for each in pod["metadata"].get("ownerReferences") or ()]
    return {
        "metadata": {**metadata, "owners": owners},
        "spec": {
            **{key: spec[key] for key in _PLACING if key in spec},
            "containers": [{"name": each.get("name"), "resources": _amounts(each)} for each in _containers(pod)],
        },
        "status": {
            "phase": status.get("phase"),
            "reason": status.get("reason"),
            "message": status.get("message"),
            "conditions": status.get("conditions") or [],
            "containers": [_state(each) for each in status.get("containerStatuses") or ()],
        },
    }


def _containers(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    spec = pod.get("spec") or {}
    return [each for kind in ("initContainers", "containers") for each in spec.get(kind) or ()]


def _amounts(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = container.get("resources") or {}
    every = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {name: amount for name, amount in every.items() if name.startswith(_PREFIXES)}


def _state(status: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a container: its reason, and the message of a waiting one, which is kubelet's."""
    states = {
        name: {key: value[key] for key in ("reason", "message", "exitCode") if key in value and name != "terminated"}
        | ({key: value[key] for key in ("reason", "exitCode") if key in value} if name == "terminated" else {})
        for name, value in (status.get("state") or {}).items()
    }
    return {"name": status.get("name"), **{key: status.get(key) for key in _CONTAINER_STATES}, "state": states}
