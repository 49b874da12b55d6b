"""Kueue's objects as the lab stores them: their kinds, their conditions, and the order of Workloads."""

from typing import Any, NamedTuple

from tessera.kube.resources.meta import Resource
from tessera.kueue.names import GROUP

Json = dict[str, Any]


def kind(plural: str, name: str, version: str, *, namespaced: bool = False) -> Resource[Json]:
    """A kind of Kueue."""
    return Resource(GROUP, version, plural, name, namespaced, dict)


class Kinds(NamedTuple):
    """Kueue's kinds at one version of its API."""

    workloads: Resource[Json]
    local_queues: Resource[Json]
    cluster_queues: Resource[Json]
    checks: Resource[Json]
    flavors: Resource[Json]


def make_kinds(version: str) -> Kinds:
    """The kinds at a version."""
    return Kinds(
        workloads=kind("workloads", "Workload", version, namespaced=True),
        local_queues=kind("localqueues", "LocalQueue", version, namespaced=True),
        cluster_queues=kind("clusterqueues", "ClusterQueue", version),
        checks=kind("admissionchecks", "AdmissionCheck", version),
        flavors=kind("resourceflavors", "ResourceFlavor", version),
    )


def condition(item: Json, type_: str) -> Json | None:
    """A condition of an object; None if it has none of this type."""
    found = item.get("status", {}).get("conditions") or ()
    return next((each for each in found if each["type"] == type_), None)


def is_true(item: Json, type_: str) -> bool:
    """True if a condition holds."""
    found = condition(item, type_)
    return found is not None and found["status"] == "True"


def key_of(item: Json) -> str:
    """``namespace/name``."""
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def is_leaving(item: Json) -> bool:
    """True if it is being deleted."""
    return bool(item["metadata"].get("deletionTimestamp"))


def order(item: Json) -> tuple[int, str, str]:
    """Higher priority first, then age; a Workload that a check sent back counts from then on."""
    evicted = condition(item, "Evicted")
    since = item["metadata"]["creationTimestamp"]
    if evicted is not None and evicted["reason"] in {"AdmissionCheck", "PodsReadyTimeout"}:
        since = evicted["lastTransitionTime"]
    return -int(item["spec"].get("priority", 0)), since, item["metadata"]["uid"]
