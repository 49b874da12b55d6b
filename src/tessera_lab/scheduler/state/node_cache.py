"""The scheduler's cache of nodes, of the pods placed on them, and of volumes.

Kept from events and from the scheduler's own decisions (a decided pod counts at once, before the API server has
confirmed the binding). Node lookups by name and by hostname label cost the same at any number of nodes.

Volumes, claims, storage classes and CSI nodes are decoded JSON by name.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.scheduler.state.claim_cache import ClaimCache
from tessera_lab.scheduler.state.pod_requests import (
    COMPARED,
    Amounts,
    HostPort,
    host_ports,
    parse_amounts,
    pod_requests,
    ports_conflict,
)

#: Provisioner of classes whose volumes somebody makes by hand.
NO_PROVISIONER = "kubernetes.io/no-provisioner"
#: Annotation of a claim: the node that its volume is being made for.
SELECTED_NODE = "volume.kubernetes.io/selected-node"
#: Annotation of a claim whose binding is complete.
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
Json = Mapping[str, Any]
HOSTNAME = "kubernetes.io/hostname"


class StorageCache:
    """Cached volumes, claims, storage classes and CSI nodes.

    Attributes:
        claims: PersistentVolumeClaims by ``namespace/name``.
        volumes: PersistentVolumes.
        classes: StorageClasses.
        csi_nodes: CSINodes.
    """

    def __init__(self) -> None:
        self.claims: dict[str, Json] = {}
        self.volumes: dict[str, Json] = {}
        self.classes: dict[str, Json] = {}
        self.csi_nodes: dict[str, Json] = {}

    def is_bound(self, claim: Json) -> bool:
        """True if a claim has its volume for good."""
        return bool(claim["spec"].get("volumeName")) and BIND_COMPLETED in annotations(claim)

    def waits_for_consumer(self, claim: Json) -> bool:
        """True if a claim is bound only once a pod that uses it has a node."""
        found = self.classes.get(claim["spec"].get("storageClassName") or "")
        return found is not None and found.get("volumeBindingMode") == "WaitForFirstConsumer"


def annotations(item: Json) -> Mapping[str, str]:
    """An object's annotations."""
    found: Mapping[str, str] = item["metadata"].get("annotations") or {}
    return found


def claims_of(namespace: str, name: str, spec: Json) -> Iterator[tuple[str, bool]]:
    """Keys of the claims that a pod uses, and whether they are made for it (generic ephemeral volumes)."""
    for volume in spec.get("volumes") or ():
        if volume.get("persistentVolumeClaim"):
            yield f"{namespace}/{volume['persistentVolumeClaim']['claimName']}", False
        elif volume.get("ephemeral"):
            yield f"{namespace}/{name}-{volume['name']}", True


class CachedPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod, compiled once for many comparisons.

    Attributes:
        key: ``namespace/name``.
        uid: the pod's UID; the key may be used again by another pod.
        labels: its labels.
        terminating: its deletion was asked for.
        owner: UID of its ReplicaSet or StatefulSet; empty without one.
        claims: keys of its ResourceClaims; ``namespace/`` for one that has still to be made.
        priority: higher goes first.
        created: seconds since 1970; earlier goes first among equals.
        spec: the pod's spec as decoded JSON.
        requests: see :func:`tessera_lab.scheduler.state.pod_requests.pod_requests`.
        compared: the same with :data:`.pod_requests.COMPARED`, for comparisons of nodes.
        ports: host ports.
    """

    key: str
    uid: str
    priority: int
    created: float
    spec: Json
    requests: Amounts
    compared: Amounts
    ports: frozenset[HostPort]
    labels: Mapping[str, str] = {}
    terminating: bool = False
    owner: str = ""
    claims: tuple[str, ...] = ()

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self.key.partition("/")[0]

    @property
    def has_anti_affinity(self) -> bool:
        """True if it keeps other pods away from itself."""
        rule = (self.spec.get("affinity") or {}).get("podAntiAffinity") or {}
        return bool(rule.get("requiredDuringSchedulingIgnoredDuringExecution"))

    @property
    def has_preferences(self) -> bool:
        """True if it would rather be near some pods, or far from them."""
        affinity = self.spec.get("affinity") or {}
        rules = (affinity.get(kind) or {} for kind in ("podAffinity", "podAntiAffinity"))
        return any(rule.get("preferredDuringSchedulingIgnoredDuringExecution") for rule in rules)


def build_pod_info(
    key: str,
    uid: str,
    created: float,
    spec: Json,
    labels: Mapping[str, str] | None = None,
    *,
    terminating: bool = False,
    owner: str = "",
    claims: Iterable[str] = (),
) -> CachedPod:
    """Compiles a pod's spec."""
    return CachedPod(
        key=key,
        uid=uid,
        labels=labels or {},
        terminating=terminating,
        owner=owner,
        claims=tuple(f"{key.partition('/')[0]}/{name}" for name in claims),
        priority=int(spec.get("priority") or 0),
        created=created,
        spec=spec,
        requests=pod_requests(spec),
        compared=pod_requests(spec, COMPARED),
        ports=host_ports(spec),
    )


class CachedNode:
    """One node as the scheduler sees it.

    Attributes:
        used: sum of the requests of the pods in ``pods`` (by UID).
        compared: the same of what they count for when nodes are compared.
        images: bytes of the images that it has, by their names.
    """

    __slots__ = ("allocatable", "compared", "images", "labels", "name", "pods", "taints", "unschedulable", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.labels: Mapping[str, str] = {}
        self.taints: tuple[Json, ...] = ()
        self.unschedulable = False
        self.allocatable: Amounts = {}
        self.used: Amounts = {}
        self.compared: Amounts = {}
        self.images: Mapping[str, int] = {}
        self.pods: dict[str, CachedPod] = {}

    def lacking_resources(self, requests: Amounts) -> list[tuple[str, int]]:
        """The requests of which too little is free, in the pod's order."""
        used, allocatable = self.used, self.allocatable
        return [each for each in requests.items() if each[1] > allocatable.get(each[0], 0) - used.get(each[0], 0)]

    def ports_in_use(self, ports: frozenset[HostPort]) -> bool:
        """True if another pod of the node holds one of the host ports."""
        return bool(ports) and any(ports_conflict(ports, pod.ports) for pod in self.pods.values())

    def hold(self, pod: CachedPod) -> None:
        """Counts a pod."""
        self.pods[pod.uid] = pod
        for total, amounts in ((self.used, pod.requests), (self.compared, pod.compared)):
            for name, value in amounts.items():
                total[name] = total.get(name, 0) + value

    def free(self, uid: str) -> CachedPod | None:
        """Counts a pod no more, and returns it."""
        pod = self.pods.pop(uid, None)
        if pod is not None:
            for total, amounts in ((self.used, pod.requests), (self.compared, pod.compared)):
                for name, value in amounts.items():
                    total[name] -= value
        return pod


class NodeCache:
    """Nodes, and pods on nodes. A pod may be placed on a node that is not known yet; it counts when the node comes.

    Attributes:
        nodes: by name.
        namespaces: labels of namespaces.
        storage: volumes, claims and storage classes.
        nominated: pods that room was made for, by the node's name and their UIDs.
        holders_of_anti_affinity: node of every placed pod with required anti-affinity, by UID.
        holders_of_preferences: node of every placed pod with preferred affinity or anti-affinity, by UID.
        image_nodes: number of nodes that have an image, by each of its names.
        replicas: number of placed pods by their owner's UID and their node's name, without terminating ones.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, CachedNode] = {}
        self.namespaces: dict[str, Mapping[str, str]] = {}
        self.storage = StorageCache()
        self.claims = ClaimCache()
        self.holders_of_anti_affinity: dict[str, str] = {}
        self.holders_of_preferences: dict[str, str] = {}
        self.image_nodes: Counter[str] = Counter()
        self.replicas: dict[str, Counter[str]] = {}
        self.nominated: dict[str, dict[str, CachedPod]] = {}
        self._nominations: dict[str, str] = {}
        self._priorities: Counter[int] = Counter()
        self._by_hostname: dict[str, set[str]] = {}
        self._placed: dict[str, tuple[str, CachedPod]] = {}
        self._waiting_for_node: dict[str, dict[str, CachedPod]] = {}

    def set_node(self, name: str, labels: Mapping[str, str], spec: Json, allocatable: Mapping[str, str]) -> bool:
        """Adds or updates a node. Returns whether anything that decides about pods has changed."""
        node = self.nodes.get(name)
        is_new = node is None
        if node is None:
            node = self.nodes[name] = CachedNode(name)
            for pod in self._waiting_for_node.pop(name, {}).values():
                node.hold(pod)
        facts = (
            dict(labels),
            tuple(spec.get("taints") or ()),
            bool(spec.get("unschedulable")),
            parse_amounts(allocatable),
        )
        if not is_new and facts == (node.labels, node.taints, node.unschedulable, node.allocatable):
            return False
        self._index(node, labels)
        node.labels, node.taints, node.unschedulable, node.allocatable = facts
        return True

    def set_images(self, name: str, listed: Sequence[Json]) -> None:
        """Notes the images that a node's status lists; they decide only which of several nodes is better."""
        node = self.nodes[name]
        images = {each: int(image.get("sizeBytes") or 0) for image in listed for each in image.get("names") or ()}
        self.image_nodes.subtract(node.images.keys())
        self.image_nodes.update(images.keys())
        node.images = images

    def remove_node(self, name: str) -> None:
        """Forgets a node; its pods stay on record until they are removed."""
        node = self.nodes.pop(name, None)
        if node is not None:
            self.image_nodes.subtract(node.images.keys())
            self._by_hostname.get(node.labels.get(HOSTNAME, ""), set()).discard(name)
            if node.pods:
                self._waiting_for_node[name] = dict(node.pods)

    def place(self, pod: CachedPod, node_name: str) -> None:
        """Counts a pod on a node, in its present form."""
        self.remove_pod(pod.uid)
        self._placed[pod.uid] = (node_name, pod)
        self._priorities[pod.priority] += 1
        if pod.has_anti_affinity:
            self.holders_of_anti_affinity[pod.uid] = node_name
        if pod.has_preferences:
            self.holders_of_preferences[pod.uid] = node_name
        self._count_replica(pod, node_name, 1)
        node = self.nodes.get(node_name)
        if node is None:
            self._waiting_for_node.setdefault(node_name, {})[pod.uid] = pod
        else:
            node.hold(pod)

    def remove_pod(self, uid: str) -> bool:
        """Frees what the pod held. Returns whether it held anything."""
        placed = self._placed.pop(uid, None)
        if placed is None:
            return False
        node_name, pod = placed
        self._priorities[pod.priority] -= 1
        self.holders_of_anti_affinity.pop(uid, None)
        self.holders_of_preferences.pop(uid, None)
        self._count_replica(pod, node_name, -1)
        node = self.nodes.get(node_name)
        if node is None:
            self._waiting_for_node.get(node_name, {}).pop(uid, None)
        else:
            node.free(uid)
        return True

    def _count_replica(self, pod: CachedPod, node_name: str, number: int) -> None:
        if not pod.owner or pod.terminating:
            return
        found = self.replicas.setdefault(pod.owner, Counter())
        found[node_name] += number
        if not found[node_name]:
            del found[node_name]
        if not found:
            del self.replicas[pod.owner]

    def nominate(self, uid: str, room: tuple[CachedPod, str] | None) -> None:
        """Notes that room is made for a pod on a node; None takes that back."""
        before = self._nominations.pop(uid, None)
        if before is not None:
            del self.nominated[before][uid]
            if not self.nominated[before]:
                del self.nominated[before]
        if room is not None:
            pod, self._nominations[uid] = room
            self.nominated.setdefault(self._nominations[uid], {})[uid] = pod

    def nomination(self, uid: str) -> str | None:
        """The node on which room is made for a pod."""
        return self._nominations.get(uid)

    def has_below(self, priority: int) -> bool:
        """True if a placed pod is less important."""
        return any(count and each < priority for each, count in self._priorities.items())

    def find_placed(self, uid: str) -> CachedPod | None:
        """A pod that counts on a node, as it was counted."""
        found = self._placed.get(uid)
        return found[1] if found is not None else None

    def is_placed(self, uid: str) -> bool:
        """True if the pod counts on a node."""
        return uid in self._placed

    def with_hostname(self, hostname: str) -> Iterable[CachedNode]:
        """The nodes whose hostname label has this value."""
        return [self.nodes[name] for name in sorted(self._by_hostname.get(hostname, ()))]

    def _index(self, node: CachedNode, labels: Mapping[str, str]) -> None:
        before, after = node.labels.get(HOSTNAME, ""), labels.get(HOSTNAME, "")
        if before != after:
            self._by_hostname.get(before, set()).discard(node.name)
        self._by_hostname.setdefault(after, set()).add(node.name)
