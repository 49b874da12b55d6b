"""Claims, volumes, storage classes, CSI nodes and local models of the cluster, and the scheduler's filters about them.

The filters are VolumeRestrictions, NodeVolumeLimits, VolumeBinding and VolumeZone. A bound claim admits the nodes that
reach its volume. A claim that waits for its first consumer admits the nodes that its class can provision volumes for,
or that reach a free volume; the scheduler binds the claim once the pod has its node. A pod waits if a claim is missing,
being deleted or lost, or must be bound at once and is not bound yet. Storage capacity is not checked.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import msgspec

from tessera.api.names import NodeName
from tessera.controller.cluster.filters import Filter
from tessera.controller.cluster.node_index import NodeIndex
from tessera.controller.cluster.pod_index import PodIndex
from tessera.controller.objects.pod_constraints import NodeConstraints
from tessera.controller.objects.pod_info import PodInfo
from tessera.kube.quantity import integer_value
from tessera.kube.resources import (
    CsiNode,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PersistentVolume,
    PersistentVolumeClaim,
    Resource,
    StorageClass,
)
from tessera.kube.resources.cluster import PersistentVolumeClaimSpec
from tessera.kube.resources.meta import key_of
from tessera.kube.resources.selectors import make_selector
from tessera.reasons.node_rules import NodeRule, RuleKind

#: Annotation of a claim that is bound permanently to its volume.
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
#: KServe's (``pkg/apis/serving/v1alpha1/local_model_node_types.go``), and what one says of a model that is there.
LOCAL_MODEL_NODES: Resource[dict[str, Any]] = Resource(
    "serving.kserve.io", "v1alpha1", "localmodelnodes", "LocalModelNode", False, dict
)
_DOWNLOADED = "ModelDownloaded"
#: Most models of a node that are looked at: a disk of 30 TB has fewer of 100 GB.
MODELS = 1_000


class NodeModels(msgspec.Struct, frozen=True):
    """The models that KServe has brought to a node: names of LocalModelCaches, ``namespace/name`` of others."""

    node: str
    models: frozenset[str]


def read_models(item: dict[str, Any]) -> NodeModels | None:
    """Reads a LocalModelNode; a status that is none counts as empty, and an object without a name is None."""
    status = item.get("status")
    told = status.get("modelStatus") if isinstance(status, dict) else None
    states = islice(told.items(), MODELS) if isinstance(told, dict) else ()
    name = item.get("metadata", {}).get("name")
    return NodeModels(name, frozenset(model for model, state in states if state == _DOWNLOADED)) if name else None


#: The objects that decide where a pod's volumes can be.
StorageObject = PersistentVolume | PersistentVolumeClaim | StorageClass | CsiNode | NodeModels


@dataclass(slots=True)
class Storage:
    """Claims, volumes, classes and drivers as they are, by name; claims by ``namespace/name``.

    Attributes:
        free: volumes without a claim that are reserved for no claim, by class.
        reserved: by claim, the volume that names it.
    """

    claims: dict[str, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    csi_nodes: dict[str, CsiNode] = field(default_factory=dict)
    models: dict[str, frozenset[str]] = field(default_factory=dict)
    free: dict[str, dict[str, PersistentVolume]] = field(default_factory=dict)
    reserved: dict[str, PersistentVolume] = field(default_factory=dict)

    def put(self, item: StorageObject) -> None:
        """Takes in an object as it is now."""
        match item:
            case PersistentVolume():
                self.put_volume(item)
            case NodeModels():
                self.models[item.node] = item.models
            case _:
                self._like(item)[key_of(item)] = item

    def drop(self, item: StorageObject) -> None:
        """Forgets a deleted object."""
        match item:
            case PersistentVolume():
                self.drop_volume(item.metadata.name)
            case NodeModels():
                self.models.pop(item.node, None)
            case _:
                self._like(item).pop(key_of(item), None)

    def _like(self, item: PersistentVolumeClaim | StorageClass | CsiNode) -> dict[str, Any]:
        if isinstance(item, PersistentVolumeClaim):
            return self.claims
        return self.classes if isinstance(item, StorageClass) else self.csi_nodes

    def put_volume(self, volume: PersistentVolume) -> None:
        """Takes in a volume as it is now."""
        self.drop_volume(volume.metadata.name)
        self.volumes[volume.metadata.name] = volume
        reference = volume.spec.claim_ref
        if reference is not None:
            self.reserved[f"{reference.namespace}/{reference.name}"] = volume
        elif volume.status.phase == "Available" and volume.metadata.deletion_timestamp is None:
            self.free.setdefault(volume.spec.storage_class_name, {})[volume.metadata.name] = volume

    def drop_volume(self, name: str) -> None:
        """Forgets a deleted volume."""
        volume = self.volumes.pop(name, None)
        if volume is None:
            return
        self.free.get(volume.spec.storage_class_name, {}).pop(name, None)
        reference = volume.spec.claim_ref
        if reference is not None and self.reserved.get(f"{reference.namespace}/{reference.name}") is volume:
            del self.reserved[f"{reference.namespace}/{reference.name}"]

    def bound(self, claim: PersistentVolumeClaim) -> bool:
        """True if a claim is bound permanently to its volume."""
        return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations

    def attached_volume(self, key: str) -> tuple[str, str] | None:
        """Returns driver and identity of the volume that a claim attaches; None if no CSI driver serves it."""
        claim = self.claims.get(key)
        if claim is None:
            return None
        volume = self.volumes.get(claim.spec.volume_name)
        if volume is not None:
            csi = volume.spec.csi
            return (csi.driver, csi.volume_handle) if csi is not None else None
        item = self.classes.get(claim.spec.storage_class_name)
        return (item.provisioner, key) if item is not None else None


#: Most volumes: free volumes that one decision compares with claims. About 100 ms; claims beyond are taken to fit, and
#: the scheduler decides.
VOLUME_STEPS = 20_000

UNBOUND = NodeRule(RuleKind.UNBOUND_CLAIM)
NODE_CONFLICT = NodeRule(RuleKind.VOLUME_AFFINITY)
NO_VOLUMES = NodeRule(RuleKind.NO_VOLUME)
NO_ZONE = NodeRule(RuleKind.VOLUME_ZONE)
TOO_MANY = NodeRule(RuleKind.VOLUME_COUNT)
ONE_POD_ONLY = NodeRule(RuleKind.CLAIM_IN_USE)

NO_PROVISIONER = "kubernetes.io/no-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
#: Labels of a volume that a node must have with the same value, if the node has any of them.
ZONES = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)


@dataclass(frozen=True, slots=True)
class _AllowedNodes:
    """The nodes that a pod's claims admit.

    Attributes:
        refusal: the rule by which no node can take the pod; None if some node may.
        rules: the rules, each with the nodes that satisfy it.
        unprovisioned: claims whose volumes an administrator makes: the node must have a free one.
    """

    refusal: NodeRule | None = None
    rules: tuple[tuple[int, NodeRule], ...] = ()
    unprovisioned: tuple[str, ...] = ()


class VolumeFilter(Filter):
    """The filter of one batch.

    Args:
        storage: the cluster's claims, volumes, classes and CSI nodes.
        pods: the claims in use; :class:`PodAffinityFilter` adds those of the batch.
        nodes: the nodes.
    """

    def __init__(self, storage: Storage, pods: PodIndex, nodes: NodeIndex) -> None:
        self._storage, self._pods, self._nodes = storage, pods, nodes
        self._allowed: dict[tuple[str, ...], _AllowedNodes] = {}
        self._masks: dict[bytes, tuple[int, ...]] = {}
        self._steps = 0

    def refusal(self, pod: PodInfo, node: NodeName) -> NodeRule | None:
        """Returns the rule by which the pod's claims exclude the node; None if they admit it."""
        if not pod.claims:
            return None
        reach = self._allowed.get(pod.claims)
        if reach is None:
            reach = self._allowed[pod.claims] = self._read_claims(pod.claims)
        if reach.refusal is not None:
            return reach.refusal
        if any(self._pods.claim_users[key] and self._is_read_write_once_pod(key) for key in pod.claims):
            return ONE_POD_ONLY
        if self._exceeds_volume_limit(pod.claims, node):
            return TOO_MANY
        bit = self._nodes.mask_of(node)
        why = next((why for mask, why in reach.rules if not mask & bit), None)
        return why or (None if self._has_free_volumes(reach.unprovisioned, node) else NO_VOLUMES)

    def kind(self, pod: PodInfo) -> Hashable:
        """Returns the claims that the pod uses."""
        return pod.claims

    # All nodes at once

    def _read_claims(self, keys: Iterable[str]) -> _AllowedNodes:
        rules: list[tuple[int, NodeRule]] = []
        local: list[str] = []
        for key in keys:
            claim = self._storage.claims.get(key)
            never = self._unusable_reason(key, claim)
            if never or claim is None:
                return _AllowedNodes(never)
            if self._storage.bound(claim):
                rules += self._bound_claim_rules(claim)
                continue
            mask = self._provisionable_nodes(claim)
            if mask is None:
                local.append(key)
            else:
                free = 0
                for reached in self._volumes_for(claim):
                    free |= reached
                rules.append((mask | free, NO_VOLUMES))
        return _AllowedNodes(None, tuple(rules), tuple(local))

    def _unusable_reason(self, key: str, claim: PersistentVolumeClaim | None) -> NodeRule | None:
        name = key.partition("/")[2]
        if claim is None:
            return NodeRule(RuleKind.CLAIM, f'"{name}" not found')
        if claim.status.phase == "Lost":
            gone = f'"{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
            return NodeRule(RuleKind.CLAIM, gone)
        if claim.metadata.deletion_timestamp is not None:
            return NodeRule(RuleKind.CLAIM, f'"{name}" is being deleted')
        item = self._storage.classes.get(claim.spec.storage_class_name)
        waits = item is not None and item.volume_binding_mode == "WaitForFirstConsumer"
        return None if waits or self._storage.bound(claim) else UNBOUND

    def _bound_claim_rules(self, claim: PersistentVolumeClaim) -> Iterator[tuple[int, NodeRule]]:
        volume = self._storage.volumes.get(claim.spec.volume_name)
        yield (0 if volume is None else self._reachable_nodes(volume)), NODE_CONFLICT
        zones = {key: value for key in ZONES if volume is not None and (value := volume.metadata.labels.get(key))}
        if zones:
            tests = [
                NodeSelectorRequirement(key=k, operator="In", values=tuple(v.split("__"))) for k, v in zones.items()
            ]
            none = [NodeSelectorRequirement(key=key, operator="DoesNotExist") for key in ZONES]
            terms = tuple(NodeSelectorTerm(match_expressions=tuple(each)) for each in (tests, none))
            yield self._nodes.selected_nodes(NodeConstraints(terms=terms)), NO_ZONE

    def _reachable_nodes(self, volume: PersistentVolume) -> int:
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return -1
        return self._nodes.selected_nodes(NodeConstraints(terms=affinity.required.node_selector_terms))

    def _provisionable_nodes(self, claim: PersistentVolumeClaim) -> int | None:
        """Returns the nodes for which the class can provision a volume; None if an administrator makes the volumes."""
        item = self._storage.classes[claim.spec.storage_class_name]
        chosen = claim.metadata.annotations.get(SELECTED_NODE)
        if chosen is not None:
            return self._nodes.mask_of(NodeName(chosen))
        if item.provisioner == NO_PROVISIONER:
            return None
        if not item.allowed_topologies:
            return -1
        terms = tuple(
            NodeSelectorTerm(
                match_expressions=tuple(
                    NodeSelectorRequirement(key=test.key, operator="In", values=test.values)
                    for test in term.match_label_expressions
                )
            )
            for term in item.allowed_topologies
        )
        return self._nodes.selected_nodes(NodeConstraints(terms=terms))

    def _volumes_for(self, claim: PersistentVolumeClaim) -> tuple[int, ...]:
        """Returns the nodes that reach each free volume for a claim. Equal claims share the answer."""
        meta, spec = claim.metadata, claim.spec
        own = self._storage.reserved.get(f"{meta.namespace}/{meta.name}")
        reference = own.spec.claim_ref if own is not None else None
        if own is not None and reference is not None and reference.uid in {"", meta.uid}:
            return (self._reachable_nodes(own),)
        key = msgspec.json.encode(spec)
        if key not in self._masks:
            free = self._storage.free.get(spec.storage_class_name, {})
            self._steps += len(free)
            if self._steps > VOLUME_STEPS:
                return (-1,) * len(free)
            self._masks[key] = tuple(self._reachable_nodes(each) for each in free.values() if _volume_fits(spec, each))
        return self._masks[key]

    # One node

    def _is_read_write_once_pod(self, key: str) -> bool:
        claim = self._storage.claims.get(key)
        return claim is not None and claim.spec.access_modes == ("ReadWriteOncePod",)

    def _has_free_volumes(self, keys: tuple[str, ...], node: NodeName) -> bool:
        """True if the node has a free volume for each claim, besides the volumes for pods with promised places."""
        if not keys:
            return True
        bit = self._nodes.mask_of(node)
        in_use = self._pods.claims.get(node, Counter())
        promised = [each for key in in_use if (each := self._storage.claims.get(key)) and not self._storage.bound(each)]
        for key in keys:
            claim = self._storage.claims[key]
            needed = sum(each.spec.storage_class_name == claim.spec.storage_class_name for each in promised)
            needed += sum(
                self._storage.claims[other].spec.storage_class_name == claim.spec.storage_class_name for other in keys
            )
            if sum(bool(mask & bit) for mask in self._volumes_for(claim)) < needed:
                return False
        return True

    def _exceeds_volume_limit(self, keys: tuple[str, ...], node: NodeName) -> bool:
        """True if the pod needs more volumes than a driver can attach on the node."""
        found = self._storage.csi_nodes.get(node)
        drivers = found.spec.drivers if found is not None else ()
        limits = {each.name: each.allocatable.count for each in drivers if each.allocatable is not None}
        new = {each for key in keys if (each := self._storage.attached_volume(key)) and limits.get(each[0]) is not None}
        if not new:
            return False
        held = {each for key in self._pods.claims.get(node, ()) if (each := self._storage.attached_volume(key))}
        for driver in {each[0] for each in new - held}:
            limit = limits[driver]
            if limit is not None and sum(each[0] == driver for each in held | new) > limit:
                return True
        return False


def _volume_fits(want: PersistentVolumeClaimSpec, volume: PersistentVolume) -> bool:
    have = volume.spec
    if want.volume_mode != have.volume_mode or not set(want.access_modes) <= set(have.access_modes):
        return False
    selector = make_selector(want.selector)
    try:
        enough = integer_value(have.capacity.get("storage", "0")) >= integer_value(
            want.resources.requests.get("storage", "0")
        )
    except ValueError:
        return False
    return enough and (selector is None or selector.matches(volume.metadata.labels))
