"""DaemonSet: one pod on every node that its template admits.

As in the real controller, a pod has required affinity on its node's name and tolerates the taints of a failing node. An
update goes node by node within ``maxUnavailable``; or with ``maxSurge``, where a node's new pod is available before its
old one is deleted; or it waits until somebody deletes the pods (OnDelete). The template's hash is only in the pods'
label; there are no ControllerRevision objects.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.kube.resources import DAEMONSETS, PODS
from tessera.kube.resources.meta import key_of
from tessera_lab.scheduler.filters.node_placement import find_untolerated, pinned_names, selector_matches
from tessera_lab.workloads.apps.rollout import owner_hash
from tessera_lab.workloads.base.mirrors import ORPHANS, OWNER, ObjectMirrors
from tessera_lab.workloads.base.ownership import (
    Json,
    OwnershipClaims,
    is_being_deleted,
    labels_of,
    queue_controller,
    queue_itself,
)
from tessera_lab.workloads.base.pods import PodMaker, available_in, created_at, from_template, is_ready, phase
from tessera_lab.workloads.base.work_queue import Expectations, WorkQueue

HASH_LABEL = "controller-revision-hash"
GENERATION_LABEL = "pod-template-generation"

#: Tolerations of every DaemonSet pod (``util.AddOrUpdateDaemonPodTolerations``).
TOLERATIONS: tuple[Mapping[str, str], ...] = (
    {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
    {"key": "node.kubernetes.io/disk-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/pid-pressure", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
)
HOST_NETWORK_TOLERATION = {
    "key": "node.kubernetes.io/network-unavailable",
    "operator": "Exists",
    "effect": "NoSchedule",
}


class DaemonSetController:
    """Keeps DaemonSets on their nodes."""

    def __init__(self, mirrors: ObjectMirrors) -> None:
        self._mirrors = mirrors
        self._queue: WorkQueue[str] = WorkQueue(self._reconcile, rng=mirrors.rng)
        self._expectations = Expectations(mirrors.clock, self._queue.add)
        self._claims = OwnershipClaims(mirrors.client, DAEMONSETS, PODS)
        self._pods = PodMaker(mirrors, DAEMONSETS, self._expectations)
        mirrors.daemonsets.add_handler(queue_itself(self._queue))
        mirrors.pods.add_handler(queue_controller(DAEMONSETS, mirrors.daemonsets, self._queue, self._expectations))
        mirrors.nodes.add_handler(self._on_node)

    async def run(self) -> None:
        """Reconciles until cancelled."""
        await self._queue.run()

    def _on_node(self, event: Any) -> None:
        """Queues all DaemonSets if a node came, went, or changed its labels or taints; a new status changes nothing."""
        old = event.old
        if old is not None and _facts(old) == _facts(event.object) and event.kind != "DELETED":
            return
        for daemonset in self._mirrors.daemonsets.cache.values():
            self._queue.add(key_of(daemonset))

    async def _reconcile(self, key: str) -> float | None:
        owner = self._mirrors.daemonsets.cache.get(key)
        if owner is None:
            self._expectations.forget(key)
            return None
        cache = self._mirrors.pods.cache
        orphans = cache.by_index(ORPHANS, owner["metadata"]["namespace"])
        pods = await self._claims.claim(owner, cache.by_index(OWNER, owner["metadata"]["uid"]), orphans)
        by_node = _by_node(pods)
        nodes = {node["metadata"]["name"]: node for node in self._mirrors.nodes.cache.values()}
        template = pod_template(owner)
        desired = [name for name, node in nodes.items() if should_run(template["spec"], node)]
        try:
            if self._expectations.are_met(key) and not is_being_deleted(owner):
                await self._manage(key, owner, desired, by_node)
                if self._expectations.are_met(key):
                    await self._update(key, owner, desired, by_node)
        finally:  # the status also counts nodes for which the API server refused a pod
            again = await self._write_status(owner, desired, by_node)
        return again

    async def _manage(self, key: str, owner: Json, desired: Sequence[str], by_node: Mapping[str, list[Json]]) -> None:
        """Creates missing pods; deletes failed and surplus pods and those on a wrong node."""
        missing = [name for name in desired if not by_node.get(name)]
        superfluous = [
            pod
            for name, pods in by_node.items()
            for pod in (surplus_pods(owner, pods) if name in desired else self._unwanted_pods(owner, name, pods))
            if not is_being_deleted(pod)
        ]
        failed = [pod for name in desired for pod in by_node.get(name, ())[:1] if phase(pod) == "Failed"]
        for pod in failed:
            node, metadata = pod["spec"].get("nodeName"), pod["metadata"]
            found = f"Found failed daemon pod {metadata['namespace']}/{metadata['name']} on node {node}"
            self._mirrors.record_event(
                DAEMONSETS, owner, "FailedDaemonPod", f"{found}, will try to kill it", warning=True
            )
        victims = superfluous + [pod for pod in failed if not is_being_deleted(pod)]
        if not missing and not victims:
            return
        self._expectations.expect(key, creations=len(missing), deletions=[pod["metadata"]["uid"] for pod in victims])
        await self._pods.delete(key, owner, victims)
        await self._pods.create(key, owner, lambda index: new_pod(owner, missing[index]), len(missing))

    def _unwanted_pods(self, owner: Json, name: str, pods: Sequence[Json]) -> Sequence[Json]:
        """Returns the pods on a node that the present template no longer admits there (``NodeShouldRunDaemonPod``).

        A taint that only forbids scheduling lets them run.
        """
        node = self._mirrors.nodes.cache.get(name)
        if node is None:
            return ()  # the pod garbage collector deletes them
        return () if may_stay(pod_template(owner)["spec"], node) else pods

    async def _update(self, key: str, owner: Json, desired: Sequence[str], by_node: Mapping[str, list[Json]]) -> None:
        """Deletes as many outdated pods as maxUnavailable allows; the next reconcile replaces them."""
        strategy = owner["spec"].get("updateStrategy") or {}
        if strategy.get("type") == "OnDelete":
            return
        rolling = strategy.get("rollingUpdate") or {}
        digest = owner_hash(owner)
        now, minimum = self._mirrors.clock.now(), owner["spec"].get("minReadySeconds") or 0

        def available(pod: Json) -> bool:
            return available_in(pod, minimum, now) == 0.0

        if surge := _budget(rolling.get("maxSurge", 0), len(desired)):
            victims, nodes = _plan_surge(digest, surge, {name: by_node.get(name, []) for name in desired}, available)
            if victims or nodes:
                gone = [pod["metadata"]["uid"] for pod in victims]
                self._expectations.expect(key, creations=len(nodes), deletions=gone)
                await self._pods.delete(key, owner, victims)
                await self._pods.create(key, owner, lambda index: new_pod(owner, nodes[index]), len(nodes))
            return
        budget = _budget(rolling.get("maxUnavailable", 1), len(desired))
        pods = [by_node[name][0] for name in desired if by_node.get(name)]
        unavailable = len(desired) - sum(map(available, pods))
        outdated = [pod for pod in pods if labels_of(pod).get(HASH_LABEL) != digest and not is_being_deleted(pod)]
        lame = [pod for pod in outdated if not available(pod)]
        sound = [pod for pod in outdated if available(pod)]
        victims = lame + sound[: max(0, budget - unavailable)]
        if victims:
            self._expectations.expect(key, deletions=[pod["metadata"]["uid"] for pod in victims])
            await self._pods.delete(key, owner, victims)

    async def _write_status(
        self, owner: Json, desired: Sequence[str], by_node: Mapping[str, list[Json]]
    ) -> float | None:
        now, minimum = self._mirrors.clock.now(), owner["spec"].get("minReadySeconds") or 0
        current = [by_node[name][0] for name in desired if by_node.get(name)]
        waits = [available_in(pod, minimum, now) for pod in current]
        digest = owner_hash(owner)
        available = waits.count(0.0)
        counts = {
            "desiredNumberScheduled": len(desired),
            "currentNumberScheduled": len(current),
            "numberMisscheduled": sum(1 for name, pods in by_node.items() if pods and name not in desired),
            "numberReady": sum(map(is_ready, current)),
            "updatedNumberScheduled": sum(labels_of(pod).get(HASH_LABEL) == digest for pod in current),
            "numberAvailable": available,
            "numberUnavailable": len(desired) - available,
            "observedGeneration": owner["metadata"].get("generation", 0),
        }
        required = {"desiredNumberScheduled", "currentNumberScheduled", "numberMisscheduled", "numberReady"}
        old = owner.get("status") or {}
        status = {name: value for name, value in counts.items() if value or name in required or old.get(name)}
        await self._mirrors.write_status(DAEMONSETS, owner, status)
        every = [available_in(pod, minimum, now) for name in desired for pod in by_node.get(name, ())]
        return min((wait for wait in every if wait), default=None)


def pod_template(owner: Json) -> dict[str, Any]:
    """The DaemonSet's pod template with the tolerations that every DaemonSet pod gets."""
    template = dict(owner["spec"]["template"])
    spec = dict(template["spec"])
    own = list(spec.get("tolerations") or ())
    extra = [*TOLERATIONS, *([HOST_NETWORK_TOLERATION] if spec.get("hostNetwork") else ())]
    spec["tolerations"] = own + [dict(each) for each in extra if each not in own]
    return {**template, "spec": spec}


def new_pod(owner: Json, node: str) -> dict[str, Any]:
    """The pod for one node."""
    template = pod_template(owner)
    extra = {HASH_LABEL: owner_hash(owner), GENERATION_LABEL: str(owner["metadata"].get("generation", 1))}
    pod: dict[str, Any] = from_template(template, owner, DAEMONSETS, extra)
    pod["metadata"]["generateName"] = owner["metadata"]["name"] + "-"
    pod["spec"]["affinity"] = pin_affinity(pod["spec"].get("affinity") or {}, node)
    return pod


def pin_affinity(affinity: Json, node: str) -> dict[str, Any]:
    """The affinity with every required term replaced by this node (``ReplaceDaemonSetPodNodeNameNodeAffinity``)."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {**affinity, "nodeAffinity": {**(affinity.get("nodeAffinity") or {}), **required}}


def should_run(spec: Json, node: Json) -> bool:
    """True if a new pod of this template belongs on the node."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return _is_selected(spec, node) and find_untolerated(taints, spec.get("tolerations") or ()) is None


def may_stay(spec: Json, node: Json) -> bool:
    """True if a pod that is on the node may go on running there."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return _is_selected(spec, node) and find_untolerated(taints, spec.get("tolerations") or (), ("NoExecute",)) is None


def _is_selected(spec: Json, node: Json) -> bool:
    fixed = spec.get("nodeName")
    name = node["metadata"]["name"]
    return (not fixed or fixed == name) and selector_matches(spec, labels_of(node), name)


def _facts(node: Json) -> tuple[Any, Any]:
    return node["metadata"].get("labels"), (node.get("spec") or {}).get("taints")


def _by_node(pods: Sequence[Json]) -> dict[str, list[Json]]:
    """Returns pods by the node that they are on or pinned to, the oldest first; those being deleted last."""
    found: dict[str, list[Json]] = {}
    for pod in sorted(pods, key=lambda each: (is_being_deleted(each), created_at(each), each["metadata"]["name"])):
        names = pinned_names(pod["spec"]) or ()
        node = pod["spec"].get("nodeName") or next(iter(names), None)
        if node is not None:
            found.setdefault(node, []).append(pod)
    return found


def surplus_pods(owner: Json, pods: Sequence[Json]) -> Sequence[Json]:
    """The pods of one node that are too many: all but the oldest, with maxSurge all but the oldest of each template."""
    rolling = (owner["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    if rolling.get("maxSurge") in {None, 0, "0", "0%"}:
        return pods[1:]
    digest = owner_hash(owner)
    return [pod for is_new in (True, False) for pod in _of_template(pods, digest, is_new=is_new)[1:]]


def _plan_surge(
    digest: str, surge: int, by_node: Mapping[str, Sequence[Json]], available: Callable[[Json], bool]
) -> tuple[list[Json], list[str]]:
    """Returns old pods beside which a new one is available, and nodes that get a new pod beside their old one.

    Args:
        digest: hash of the present template.
        surge: the most nodes with a new pod that is not available yet.
        by_node: the pods of each node.
        available: returns true if a pod is available.
    """
    victims: list[Json] = []
    urgent: list[str] = []
    others: list[str] = []
    for name, pods in by_node.items():
        alive = [pod for pod in pods if not is_being_deleted(pod)]
        new, old = (_of_template(alive, digest, is_new=is_new) for is_new in (True, False))
        if new and old:
            surge -= not available(new[0])
            victims += old if available(new[0]) else ()
        elif old:
            (others if available(old[0]) else urgent).append(name)
    return victims, [*urgent, *others[: max(0, surge)]]


def _of_template(pods: Sequence[Json], digest: str, *, is_new: bool) -> list[Json]:
    return [pod for pod in pods if (labels_of(pod).get(HASH_LABEL) == digest) is is_new]


def _budget(value: int | str, total: int) -> int:
    if isinstance(value, int):
        return value
    if value in {"0", "0%"}:
        return 0
    return max(1, -(-int(value.removesuffix("%")) * total // 100)) if value.endswith("%") else int(value)
