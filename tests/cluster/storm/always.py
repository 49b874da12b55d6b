"""Invariants of a storm, checked inside every write of the API server.

1. No foreign cordon is lifted.
2. A node is begun with only while ``maxParallelUpgrades`` and ``maxUnavailable`` leave room, counted as docs/drivers.md
   says: without nodes that a person cordoned.
3. Driver pods of two sets are never on one node.
4. No card is offered before the driver that runs was validated.
5. No DaemonSet is made of an image that a registry did not say to have.
6. No pod is evicted twice.

Who forges a node's record is believed by nobody here: such a node counts for no limit.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from tests.cluster.driverlab import Drivers
from tests.cluster.storm.story import Story
from tests.cluster.storm.words import (
    Node,
    annotations,
    boot,
    cards,
    cordoned,
    differences,
    labels,
    ours,
    shape,
    started,
    state_of,
)
from tests.cluster.storm.world import Registries

from tessera.api.nodes.node_marks import DRIVER_APP, DRIVER_SET_LABEL, VALIDATION_APP
from tessera.api.problems import FileRefused
from tessera.clock import parse_rfc3339
from tessera.driver.driver_sets import APP_LABEL, NAMESPACE, set_of
from tessera.driver.node_facts import (
    CHANGING,
    RECORD_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    parse_upgrade_record,
)
from tessera.driver.rollout.candidates import unavailable_limit
from tessera.gpu_operator.driver_policy import UpgradePolicy
from tessera.gpu_operator.policy_objects import OWNER_LABEL, read_cluster_policy, read_nvidia_driver
from tessera.kube.resources.meta import ObjectMeta
from tessera_lab.apiserver.interfaces import GroupResource
from tessera_lab.apiserver.storage.store import Change

#: Seconds in which a decision may still rest on what was there before.
GRACE = 10.0


class Always:
    """Looks at every write.

    Args:
        lab: the cluster.
        registries: what they answered.
        story: where it is told.

    Attributes:
        foreign: nodes that a person cordoned.
        forged: records that a person wrote.
        most: nodes that were under way at once, at most.
        evicted: how many pods were evicted.
    """

    def __init__(self, lab: Drivers, registries: Registries, story: Story) -> None:
        self._lab, self._registries, self._story = lab, registries, story
        self._store = lab.cluster.server.core.store
        self._limits: dict[str, list[tuple[float, UpgradePolicy]]] = {}
        self._assigned = 0.0
        self._proven: dict[str, float] = {}
        self._evictions = Counter[tuple[str, str]]()
        self.foreign: set[str] = set()
        self.forged: set[str] = set()
        self.most = self.evicted = 0
        listeners = {
            GroupResource("", "nodes"): self._node,
            GroupResource("", "pods"): self._pod,
            GroupResource("apps", "daemonsets"): self._daemonset,
            GroupResource("nvidia.com", "clusterpolicies"): self._policy,
            GroupResource("nvidia.com", "nvidiadrivers"): self._policy,
        }
        for resource, listener in listeners.items():
            self._store.listen(resource, listener)

    # Nodes

    def _node(self, change: Change) -> None:
        new, old = change.new.obj, change.old.obj if change.old is not None else None
        name = new["metadata"]["name"]
        if change.kind == "DELETED":
            self.foreign.discard(name)
            self._proven.pop(name, None)
        elif old is not None:
            for text in differences(old, new):
                self._story.note(f"  {name}: {text}")
            if name in self.foreign and cordoned(old) and not cordoned(new):
                self._story.problem(f"node {name}: a cordon of somebody else was lifted")
                self.foreign.discard(name)
            if boot(old) != boot(new):
                self._proven.pop(name, None)
            if cards(new) and not cards(old):
                self._look_at_offer(name)
            if self._begins(old, new):
                self._look_at_limits(name, new)

    def _begins(self, old: Node, new: Node) -> bool:
        text = annotations(new).get(RECORD_ANNOTATION, "")
        begun = state_of(new) is UpgradeState.CORDON and not state_of(old).active
        return begun and text not in self.forged

    def _look_at_offer(self, name: str) -> None:
        """Cards are offered: there is a driver, and it was validated since its container began."""
        machine = self._lab.cluster.nodes[name].machine
        began = max((started(pod) for pod in self._drivers(name)), default=0.0)
        proven = self._proven.get(name, 0.0)
        if machine is None or machine.loaded_driver is None:
            self._story.problem(f"node {name} offers cards without a driver")
        elif not proven or proven < began:
            self._story.problem(f"node {name} offers cards before its driver was validated ({proven=}, {began=})")

    def _look_at_limits(self, name: str, node: Node) -> None:
        limits = list(self._in_force())
        if not limits or self._lab.clock.now() - self._assigned < GRACE:
            return
        owner = labels(node).get(OWNER_LABEL)
        group = {each["metadata"]["name"]: each for each in self._store.list(GroupResource("", "nodes"))}
        group = {key: each for key, each in group.items() if labels(each).get(OWNER_LABEL) == owner}
        active = {key for key, each in group.items() if state_of(each).active and self._record(each) is not None}
        self.most = max(self.most, len(active))
        parallel = max(len(group) if each.max_parallel == 0 else each.max_parallel for each in limits)
        if len(active) > parallel:
            self._story.problem(f"{sorted(active)} are under way at once, {parallel} may be")
        out = {key for key, each in group.items() if self._is_out(each)}
        unavailable = max(unavailable_limit(each, len(group)) for each in limits)
        if name in out and len(out) > unavailable:
            self._story.problem(f"{sorted(out)} are out of service at once, {unavailable} may be")

    def _record(self, node: Node) -> UpgradeRecord | None:
        text = annotations(node).get(RECORD_ANNOTATION, "")
        return None if text in self.forged else parse_upgrade_record(text)

    def _is_out(self, node: Node) -> bool:
        """Out of service by the rollout; nodes that a person cordoned are not counted."""
        record = self._record(node)
        if record is None or (cordoned(node) and not ours(node)):
            return False
        under_way = state_of(node).active or (state_of(node) is UpgradeState.FAILED and not record.restored)
        return under_way or labels(node).get(DRIVER_SET_LABEL) == CHANGING or (cordoned(node) and ours(node))

    # Policies

    def _policy(self, change: Change) -> None:
        obj = change.new.obj
        kind, name = obj["kind"], obj["metadata"]["name"]
        if change.old is not None and change.old.obj.get("spec") == obj.get("spec") and change.kind != "DELETED":
            return  # its status
        self._assigned = self._lab.clock.now()
        read = read_cluster_policy if kind == "ClusterPolicy" else read_nvidia_driver
        try:
            found = read(obj).policy.upgrade
        except FileRefused:
            return  # what it said before goes on
        self._limits.setdefault(name, []).append((self._lab.clock.now(), found))

    def _in_force(self) -> Iterator[UpgradePolicy]:
        """Yields the limits that any object sets, or set until a moment ago."""
        since = self._lab.clock.now() - GRACE
        for said in self._limits.values():
            earlier = [policy for at, policy in said if at < since]
            yield from earlier[-1:]
            yield from (policy for at, policy in said if at >= since)

    # Pods and sets

    def _pod(self, change: Change) -> None:
        pod = change.new.obj
        if pod["metadata"].get("namespace") != NAMESPACE or change.kind == "DELETED":
            return
        app, name = labels(pod).get(APP_LABEL), (pod.get("spec") or {}).get("nodeName", "")
        if app == VALIDATION_APP and pod.get("status", {}).get("phase") == "Succeeded":
            self._proven.setdefault(name, 0.0)
            self._proven[name] = max(self._proven[name], parse_rfc3339(pod["metadata"]["creationTimestamp"]))
        if app == DRIVER_APP and name:
            self._tell_pod(change, name)
            sets = {labels(each).get(DRIVER_SET_LABEL) for each in self._drivers(name)}
            if len(sets) > 1:
                self._story.problem(f"node {name}: there are driver pods of the sets {sorted(map(str, sets))} at once")

    def _tell_pod(self, change: Change, node: str) -> None:
        old = shape(change.old.obj) if change.old is not None else ""
        new = shape(change.new.obj)
        if new != old:
            self._story.note(f"  {node}: pod {change.new.obj['metadata']['name']} {new}")

    def _drivers(self, node: str) -> Iterator[Mapping[str, Any]]:
        for pod in self._store.list(GroupResource("", "pods"), NAMESPACE):
            ended = (pod.get("status") or {}).get("phase") in {"Succeeded", "Failed"}
            here = (pod.get("spec") or {}).get("nodeName") == node
            if labels(pod).get(APP_LABEL) == DRIVER_APP and here and not ended:
                yield pod

    def _daemonset(self, change: Change) -> None:
        if change.kind != "ADDED":
            return
        made = set_of(msgspec.convert(change.new.obj["metadata"], ObjectMeta))
        if made is None:
            return
        self._story.note(f"  driver set {made.id} is made: {made.strategy.value} {made.tag} for {made.pool.text}")
        since = self._lab.clock.now() - GRACE
        if not self._registries.counted(made.image, made.pool.architecture, since):
            self._story.problem(f"driver set {made.id} is made of {made.image}, which no registry said to have")

    # Evictions

    def look_at_evictions(self) -> None:
        """Reads the server's log, and empties it."""
        audit = self._lab.cluster.server.audit
        for each in audit:
            if each.subresource == "eviction" and each.code < 300:
                self._evictions[each.namespace, each.name] += 1
        self.evicted = len(self._evictions)
        audit.clear()
        for (namespace, name), count in self._evictions.items():
            if count > 1:
                self._story.problem(f"pod {namespace}/{name} was evicted {count} times")
