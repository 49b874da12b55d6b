"""The nodes of the benchmark of decisions, and its pods as the API server sends them."""

from typing import Any

import msgspec

from tessera.agent.inventory.sliceable_gpus import placements
from tessera.api.instaslice import Instaslice
from tessera.api.names import (
    GATE,
    HOSTNAME_LABEL,
    MIG_CONFIG_LABEL,
    WHOLE_CARDS,
    NodeName,
    resource_of,
)
from tessera.controller.objects.node_info import NodeDevices, NodeInfo
from tessera.kube.resources import Pod, Taint
from tessera.mig.models import model_by_short_name

MODEL = "A100-40GB"


def make_node(index: int) -> NodeInfo:
    """Every second node is a tenant's own, with a taint of its own."""
    name = f"n{index}"
    taints = (Taint(key="dedicated", value=f"team-{index}", effect="NoSchedule"),) if index % 2 else ()
    return NodeInfo(
        name=NodeName(name),
        hostname=name,
        labels={
            MIG_CONFIG_LABEL: "dynamic",
            HOSTNAME_LABEL: name,
            "zone": f"z{index % 3}",
            **{f"label-{i}": f"value-{i}" for i in range(20)},
        },
        taints=taints,
        allocatable={
            "cpu": 64000,
            "memory": 2**40,
            "pods": 110,
            "ephemeral-storage": 2**40,
            **{resource_of(row.name): 100 for row in model_by_short_name(MODEL).geometry.profiles},
        },
    )


def make_card_node(index: int) -> NodeInfo:
    """Eight whole cards of one of two models."""
    name, model = f"n{index}", "H100" if index % 3 else "A100"
    return NodeInfo(
        name=NodeName(name),
        hostname=name,
        labels={HOSTNAME_LABEL: name, "nvidia.com/gpu.product": model},
        allocatable={"cpu": 96_000, "memory": 2**40, "pods": 110, WHOLE_CARDS: 8},
        devices=(NodeDevices(WHOLE_CARDS, model, 8, 8, 80),),
    )


def make_object(name: str, cards: int = 4) -> Instaslice:
    """The object of a node whose cards are half full of slices that nobody explains."""
    model = model_by_short_name(MODEL)
    table = msgspec.to_builtins(placements(model.geometry))
    gpus = [{"gpuUuid": f"GPU-{name}-{i}", "gpuName": model.product_name, "gpuMemory": "40960Mi"} for i in range(cards)]
    foreign = [
        {"gpuUUID": f"GPU-{name}-{i}", "profile": "1g.5gb", "start": start, "size": 1}
        for i in range(cards)
        for start in (0, 2)[: 1 + (int(name[1:]) + i) % 2]
    ]
    body = {
        "metadata": {"name": name, "namespace": "instaslice-system", "uid": f"o-{name}", "resourceVersion": "1"},
        "status": {"nodeResources": {"nodeGpus": gpus, "migPlacement": table, "foreign": foreign, "bootId": "b"}},
    }
    return msgspec.convert(body, Instaslice)


def pod_of(
    name: str,
    *,
    slices: dict[str, int],
    created: str = "2026-01-01T00:00:00Z",
    requests: dict[str, str] | None = None,
    count: int = 1,
    **spec: Any,
) -> Pod:
    """A pod behind our gate, as the API server would send it."""
    limits = {f"nvidia.com/mig-{profile}": str(count) for profile, count in slices.items()}
    body = {
        "metadata": {"name": name, "namespace": "tenant", "uid": f"u-{name}", "creationTimestamp": created},
        "spec": {
            "schedulingGates": [{"name": GATE}],
            "containers": [
                {"name": f"c{i}", "resources": {"limits": {**limits, **(requests or {})} if not i else requests or {}}}
                for i in range(count)
            ],
            **spec,
        },
    }
    return msgspec.convert(body, Pod)


def with_cards(
    name: str, cpu: str, cards: int = 1, *, node: str = "", gib: int = 0, others: dict[str, str] | None = None
) -> Pod:
    """A pod with whole cards: behind our gate, or on a node."""
    limits = {WHOLE_CARDS: str(cards), "cpu": cpu, "memory": f"{gib}Gi", **(others or {})}
    pod = pod_of(name, slices={}, containers=[{"name": "c", "resources": {"limits": limits}}])
    spec = msgspec.structs.replace(pod.spec, node_name=node, scheduling_gates=[]) if node else pod.spec
    return msgspec.structs.replace(pod, spec=spec)
