"""Volumes of a pod, as kube-scheduler's plugins VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone do.

A claim that waits for its first consumer gets the smallest existing volume that the node can reach; else a new one, if
the class has a provisioner and its topologies admit the node. Storage capacity objects are not implemented.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tessera.kube.quantity import parse_quantity
from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.scheduler.filters.node_placement import NodeRejection
from tessera_lab.scheduler.state.node_cache import (
    NO_PROVISIONER,
    SELECTED_NODE,
    CachedNode,
    CachedPod,
    NodeCache,
    StorageCache,
    annotations,
    claims_of,
)
from tessera_lab.scheduler.state.pod_requests import term_matches

Json = Mapping[str, Any]

UNBOUND_IMMEDIATE = "pod has unbound immediate PersistentVolumeClaims"
NODE_CONFLICT = NodeRejection("node(s) didn't match PersistentVolume's node affinity", final=True)
NO_VOLUMES = NodeRejection("node(s) didn't find available persistent volumes to bind", final=True)
TOO_MANY = NodeRejection("node(s) exceed max volume count")
ONE_POD_ONLY = NodeRejection(
    "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
)
NO_ZONE = NodeRejection("node(s) had no available volume zone", final=True)

#: Labels in which volume and node must agree, if the node has any of them.
ZONES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)


class VolumePlan(msgspec.Struct, frozen=True):
    """Bindings of a pod's claims to existing and new volumes, once the pod has its node.

    Attributes:
        bind: the volume of each claim that gets an existing one.
        make: claims that get a new volume, made for the node.
    """

    bind: dict[str, str] = {}
    make: tuple[str, ...] = ()


class ClaimFilter(msgspec.Struct, frozen=True):
    """The filter of nodes by a pod's claims.

    Attributes:
        hopeless: why no node can take the pod; empty if some may.
        judge: returns why one node cannot take the pod.
        plan: returns the volumes of the claims on a node that can.
    """

    hopeless: str
    judge: Callable[[CachedNode], NodeRejection | None]
    plan: Callable[[CachedNode], VolumePlan]


def volume_filter(pod: CachedPod, cluster: NodeCache) -> ClaimFilter | None:
    """Returns the filter of nodes for a pod; None if it uses no claims."""
    storage = cluster.storage
    desired = dict(claims_of(pod.namespace, pod.key.partition("/")[2], pod.spec))
    if not desired:
        return None
    reason = next((text for key, own in desired.items() if (text := _unusable(storage, key, ephemeral=own))), "")
    claims = [] if reason else [storage.claims[key] for key in desired]
    bound = [each for each in claims if storage.is_bound(each)]
    loose = [each for each in claims if not storage.is_bound(each)]
    if not reason and not all(map(storage.waits_for_consumer, loose)):
        reason = UNBOUND_IMMEDIATE

    taken = _exclusive_conflict(claims, pod, cluster)

    def judge(node: CachedNode) -> NodeRejection | None:
        if taken:
            return ONE_POD_ONLY
        if _exceeds_limit(claims, node, storage):
            return TOO_MANY
        volumes = [storage.volumes.get(each["spec"]["volumeName"]) for each in bound]
        if not all(volume is not None and reaches(volume, node) for volume in volumes):
            return NODE_CONFLICT
        if _plan(loose, node, storage) is None:
            return NO_VOLUMES
        return None if all(volume is not None and _in_zone(volume, node) for volume in volumes) else NO_ZONE

    return ClaimFilter(reason, judge, lambda node: _plan(loose, node, storage) or VolumePlan())


def _unusable(storage: StorageCache, key: str, *, ephemeral: bool) -> str:
    claim, name = storage.claims.get(key), key.partition("/")[2]
    if claim is None and ephemeral:
        return f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
    if claim is None:
        return f'persistentvolumeclaim "{name}" not found'
    if (claim.get("status") or {}).get("phase") == "Lost":
        volume = claim["spec"].get("volumeName", "")
        return f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{volume}"'
    return f'persistentvolumeclaim "{name}" is being deleted' if claim["metadata"].get("deletionTimestamp") else ""


def reaches(volume: Json, node: CachedNode) -> bool:
    """True if a volume's node affinity admits the node."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required")
    terms = (required or {}).get("nodeSelectorTerms") or ()
    return required is None or any(term_matches(term, node.labels, node.name) for term in terms)


def _in_zone(volume: Json, node: CachedNode) -> bool:
    if not any(key in node.labels for key in ZONES):
        return True
    labels = volume["metadata"].get("labels") or {}
    return all(node.labels.get(key) in labels[key].split("__") for key in ZONES if key in labels)


def _plan(claims: Iterable[Json], node: CachedNode, storage: StorageCache) -> VolumePlan | None:
    """The volume of each claim on the node; None if a claim gets none."""
    bind: dict[str, str] = {}
    make: list[str] = []
    for claim in claims:
        key = f"{claim['metadata']['namespace']}/{claim['metadata']['name']}"
        selected = annotations(claim).get(SELECTED_NODE)
        if selected is not None and selected != node.name:
            return None
        volume = fitting_volume(claim, storage.volumes.values(), node, set(bind.values())) if not selected else None
        if volume is not None:
            bind[key] = volume["metadata"]["name"]
        elif _can_provision(storage.classes[claim["spec"]["storageClassName"]], node):
            make.append(key)
        else:
            return None
    return VolumePlan(bind, tuple(make))


def _can_provision(item: Json, node: CachedNode) -> bool:
    terms = item.get("allowedTopologies") or ()
    return item["provisioner"] != NO_PROVISIONER and (
        not terms
        or any(
            all(node.labels.get(test["key"]) in test["values"] for test in term.get("matchLabelExpressions") or ())
            for term in terms
        )
    )


def fitting_volume(claim: Json, volumes: Iterable[Json], node: CachedNode | None, taken: set[str]) -> Json | None:
    """Returns a volume for a claim, on a node or anywhere: one reserved for the claim, else the smallest that fits."""
    found = [each for each in volumes if each["metadata"]["name"] not in taken and _volume_fits(claim, each)]
    found = [each for each in found if node is None or reaches(each, node)]
    return min(found, key=lambda each: (not each["spec"].get("claimRef"), _claim_size(each), _name(each)), default=None)


def _volume_fits(claim: Json, volume: Json) -> bool:
    want, have = claim["spec"], volume["spec"]
    reference, meta = have.get("claimRef"), claim["metadata"]
    if volume["metadata"].get("deletionTimestamp"):
        return False
    if reference is not None:
        same = (reference.get("namespace"), reference.get("name")) == (meta["namespace"], meta["name"])
        return same and reference.get("uid") in {None, "", meta["uid"]}
    return (
        (volume.get("status") or {}).get("phase") == "Available"
        and (want.get("storageClassName") or "") == (have.get("storageClassName") or "")
        and want.get("volumeMode", "Filesystem") == have.get("volumeMode", "Filesystem")
        and set(want["accessModes"]) <= set(have["accessModes"])
        and _claim_size(volume) >= parse_quantity(want["resources"]["requests"]["storage"])
        and (
            not want.get("selector") or label_selector_matches(want["selector"], volume["metadata"].get("labels") or {})
        )
    )


def _claim_size(volume: Json) -> Any:
    return parse_quantity(volume["spec"]["capacity"]["storage"])


def _name(volume: Json) -> str:
    return str(volume["metadata"]["name"])


def _exclusive_conflict(claims: Iterable[Json], pod: CachedPod, cluster: NodeCache) -> bool:
    """True if another pod uses a claim that only one pod may use."""
    names = {each["metadata"]["name"] for each in claims if each["spec"].get("accessModes") == ["ReadWriteOncePod"]}
    keys = {f"{pod.namespace}/{name}" for name in names}
    return bool(keys) and any(
        key in keys
        for node in cluster.nodes.values()
        for other in node.pods.values()
        for key, _ in claims_of(other.namespace, _own_claims(other), other.spec)
    )


def _own_claims(pod: CachedPod) -> str:
    return pod.key.partition("/")[2]


def _exceeds_limit(claims: Iterable[Json], node: CachedNode, storage: StorageCache) -> bool:
    """True if a CSI driver could not attach so many volumes to the node."""
    drivers = (storage.csi_nodes.get(node.name, {}).get("spec") or {}).get("drivers") or ()
    limits = {each["name"]: (each.get("allocatable") or {}).get("count") for each in drivers}
    new = {found for each in claims if (found := _attached_volumes(each, storage))}
    if not any(limits.get(driver) is not None for driver, _ in new):
        return False
    held = {
        found
        for other in node.pods.values()
        for key, _ in claims_of(other.namespace, _own_claims(other), other.spec)
        if key in storage.claims and (found := _attached_volumes(storage.claims[key], storage))
    }
    for driver, limit in limits.items():
        added = {each for each in new - held if each[0] == driver}
        if limit is not None and added and sum(each[0] == driver for each in held) + len(added) > limit:
            return True
    return False


def _attached_volumes(claim: Json, storage: StorageCache) -> tuple[str, str] | None:
    """Driver and identity of the volume that a claim attaches; None if no CSI driver serves it."""
    volume = storage.volumes.get(claim["spec"].get("volumeName") or "")
    if volume is not None:
        csi = volume["spec"].get("csi")
        return (csi["driver"], csi["volumeHandle"]) if csi else None
    item = storage.classes.get(claim["spec"].get("storageClassName") or "")
    meta = claim["metadata"]
    return None if item is None else (item["provisioner"], f"{meta['namespace']}/{meta['name']}")
