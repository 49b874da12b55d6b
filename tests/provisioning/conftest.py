"""Nodes and pods as an API server shows them, with the moments that a test is about."""

from typing import Any

import msgspec

from tessera.api.nodes.node_marks import DRIVER_ANNOTATION, DriverPhase, DriverStatus, DriverStrategy
from tessera.api.nodes.offers import OFFERS_ANNOTATION, NodeOffer, OfferKind, encode_offers
from tessera.clock import rfc3339
from tessera.kube.resources import Node, Pod

#: When nodes of tests are registered, seconds since 1970.
T0 = 1_800_000_000.0

GPU_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/tessera-gpu"

WHOLE = NodeOffer(
    resource="nvidia.com/gpu",
    kind=OfferKind.WHOLE,
    product="Tesla T4",
    card_memory_mib=15360,
    memory_mib=15360,
    compute_capability="7.5",
    count=1,
)


def condition(kind: str, status: str = "True", at: float = T0, reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": rfc3339(at)}


def driver(
    strategy: DriverStrategy = DriverStrategy.BUILT,
    pool: str = "rhcos4.13 5.14 amd64",
    phase: DriverPhase = DriverPhase.STARTING,
    since: float = T0,
    **more: Any,
) -> dict[str, str]:
    told = DriverStatus(strategy=strategy, pool=pool, phase=phase, since=rfc3339(since), **more)
    return {DRIVER_ANNOTATION: msgspec.json.encode(told).decode()}


def offering(*offers: NodeOffer) -> dict[str, str]:
    return {OFFERS_ANNOTATION: encode_offers(offers or (WHOLE,))}


def make_node(
    name: str = "gpu-1",
    *,
    uid: str = "node-uid",
    registered: float = T0,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    allocatable: dict[str, str] | None = None,
    taints: tuple[str, ...] = (),
    **spec: Any,
) -> Node:
    """A node with a card, if its labels do not say otherwise."""
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "uid": uid,
                "resourceVersion": "7",
                "creationTimestamp": rfc3339(registered),
                "labels": {"nvidia.com/gpu.present": "true"} if labels is None else labels,
                "annotations": annotations or {},
            },
            "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints], **spec},
            "status": {
                "conditions": list(conditions),
                "allocatable": allocatable or {},
                "nodeInfo": {"containerRuntimeVersion": "containerd://1.7"},
            },
        },
        Node,
    )


def make_pod(
    name: str,
    *,
    node: str = "gpu-1",
    labels: dict[str, str] | None = None,
    created: float = T0,
    started: float | None = None,
    ended: float | None = None,
    conditions: tuple[dict[str, Any], ...] = (),
    limits: dict[str, str] | None = None,
    image: str = "registry.example/driver:525",
    namespace: str = "default",
    privileged: bool = False,
) -> Pod:
    """A pod of one container ``main``."""
    state: dict[str, Any] = {}
    if ended is not None:
        state = {"terminated": {"startedAt": rfc3339(started or ended), "finishedAt": rfc3339(ended)}}
    elif started is not None:
        state = {"running": {"startedAt": rfc3339(started)}}
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": f"uid-{name}",
                "creationTimestamp": rfc3339(created),
                "labels": labels or {},
            },
            "spec": {
                "nodeName": node,
                "containers": [
                    {
                        "name": "main",
                        "image": image,
                        "resources": {"limits": limits or {}},
                        "securityContext": {"privileged": privileged},
                    }
                ],
            },
            "status": {
                "phase": "Succeeded" if ended is not None else "Running",
                "conditions": list(conditions),
                "containerStatuses": [{"name": "main", "state": state}] if state else [],
            },
        },
        Pod,
    )


def role_pod(app: str, started: float | None = None, ready: float | None = None, **more: Any) -> Pod:
    """A pod of Tessera's own with that app."""
    conditions = () if ready is None else (condition("Ready", at=ready),)
    kind = {"labels": {"app.kubernetes.io/name": app}, "namespace": "tessera-system"}
    return make_pod(app, started=started, conditions=conditions, **{**kind, **more})
