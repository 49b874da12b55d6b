"""Keeps one provisioning record per node: observations in, records out. Pure.

Rules:

1. :mod:`tessera.provisioning.tracking.milestone_inference` derives milestones from objects. The tracker keeps what it
   observed of those objects.
2. Most milestones are timestamps in objects, so it does not matter when the tracker reads them. Two are not: LABELLED
   (the node's facts are known) and ALLOCATABLE (kubelet offers its cards). The tracker knows them only if it saw the
   change, or if the node is at most :data:`AT_ONCE` old; otherwise they stay unknown.
3. Only new nodes get a record: none for a node registered more than :data:`FRESH` ago, unless its annotation holds an
   unfinished record. For a node that was there before anybody asked for its driver, the record begins at the request.
4. A record continues from the state in the node's annotation.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from tessera.provisioning.milestones import Milestone, Record, Step, WorkloadRecord
from tessera.provisioning.tracking.machines import Request
from tessera.provisioning.tracking.milestone_inference import AT_ONCE, Evidence, advanced, asked_for
from tessera.provisioning.tracking.timestamps import NodeSighting, PodSighting, Role

#: Seconds from its registration after which a node is not new any more.
FRESH = 3600.0


class Keep(msgspec.Struct, frozen=True):
    """A node's record is worth keeping: its cards can be used, or it is gone."""

    record: Record


class KeepWorkload(msgspec.Struct, frozen=True):
    """A pod has started."""

    record: WorkloadRecord


class Tracker:
    """What is known of all nodes on their way.

    Whoever begins to look tells of the pods first, then of the nodes: that a pod is not there means something.

    Attributes:
        records: by node name: nodes that are or were on their way, of the present Node object.
        changed: names of nodes whose record changed since somebody cleared this.
    """

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.changed: set[str] = set()
        self._nodes: dict[str, NodeSighting] = {}
        self._cards: dict[str, float] = {}
        self._pods: dict[str, PodSighting] = {}
        self._on: dict[str, dict[str, PodSighting]] = {}
        self._requests: dict[str, Request] = {}
        self._by_node: dict[str, str] = {}
        self._by_provider: dict[str, str] = {}
        self._providers: dict[str, str] = {}
        self._scaled_up: dict[str, float] = {}
        self._unschedulable: dict[str, float] = {}
        self._told: set[str] = set()
        self._kept: list[Keep | KeepWorkload] = []

    def take(self) -> list[Keep | KeepWorkload]:
        """What came of the observations since the last call."""
        kept, self._kept = self._kept, []
        return kept

    def request(self, node: str) -> Request | None:
        """What a node was made from, as far as known."""
        seen = self._nodes.get(node)
        uid = self._by_node.get(node) or self._by_provider.get(seen.provider_id if seen is not None else "")
        return self._requests.get(uid) if uid is not None else None

    def pods_on(self, node: str, role: Role) -> list[PodSighting]:
        """Pods on a node, in the order in which they were made."""
        found = (each for each in self._on.get(node, {}).values() if each.role is role)
        return sorted(found, key=lambda each: (each.created or 0.0, each.uid))

    # Observations

    def see_node(self, node: NodeSighting, now: float, *, live: bool = True) -> None:
        """A node as it is now.

        Args:
            node: the node.
            now: seconds since 1970.
            live: this is news; False for what was there when looking began.
        """
        before = self._nodes.get(node.name)
        if before is not None and before.uid != node.uid:
            self.lose_node(node.name, now)
            before = None
        self._nodes[node.name] = node
        if live and before is not None and node.gpu and not before.gpu:
            self._cards[node.name] = now
        if node.provider_id:
            self._providers[node.provider_id] = node.name
        if node != before:
            self._follow(node, before, now, live=live)
        if before is None:
            for pod in self.pods_on(node.name, Role.WORKLOAD):
                self._tell_workload(pod, now)

    def _follow(self, node: NodeSighting, before: NodeSighting | None, now: float, *, live: bool) -> None:
        known = self.records.get(node.name)
        record = known or self._begun(node, now)
        if record is None:
            return
        at_once = node.registered is not None and now - node.registered <= AT_ONCE
        watched = live and before is not None
        came = now if watched or at_once else None
        witnessed: dict[Milestone, float | None] = {}
        # What comes back, or what a later milestone proves to have been there, did not come just now.
        if node.facts and not (before is not None and before.facts) and Milestone.PULLED not in record.at:
            witnessed[Milestone.LABELLED] = node.registered if at_once else came
        if node.usable and not (before is not None and before.usable) and not record.usable:
            witnessed[Milestone.ALLOCATABLE] = came
            if came is None:
                if known is None:
                    record = asked_for(record, self._evidence(node, {}))
                record = msgspec.structs.replace(record, unseen=True)
                self.changed.add(node.name)
        self.records[node.name] = record
        anew = watched and before is not None and node.wanted and not before.wanted
        self._advance(node.name, witnessed, anew=anew)
        if record.usable and record is not known:  # whoever wrote the annotation may not have written the book
            self._kept.append(Keep(self.records[node.name]))

    def lose_node(self, name: str, now: float) -> None:
        """A node is gone."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._providers.pop(node.provider_id, None)
        self._cards.pop(name, None)
        record = self.records.pop(name, None)
        self.changed.discard(name)
        if record is not None and not record.usable:
            self._kept.append(Keep(msgspec.structs.replace(record, lost=now)))

    def see_pod(self, pod: PodSighting, now: float) -> None:
        """A pod as it is now."""
        before = self._pods.get(pod.uid)
        if before is not None and before.node and before.node != pod.node:
            self._on[before.node].pop(pod.uid, None)
        self._pods[pod.uid] = pod
        if pod.unschedulable is not None:
            self._unschedulable.setdefault(pod.uid, pod.unschedulable)
        if pod.node and pod != before:
            self._on.setdefault(pod.node, {})[pod.uid] = pod
            self._advance(pod.node)
            self._tell_workload(pod, now)

    def lose_pod(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is not None and pod.node:
            self._on[pod.node].pop(uid, None)
            if not self._on[pod.node]:
                del self._on[pod.node]
        for known in (self._unschedulable, self._scaled_up):
            known.pop(uid, None)
        self._told.discard(uid)

    def see_request(self, request: Request) -> None:
        """A Machine or NodeClaim as it is now."""
        self._requests[request.uid] = request
        if request.node:
            self._by_node[request.node] = request.uid
        if request.provider_id:
            self._by_provider[request.provider_id] = request.uid
        name = request.node or self._providers.get(request.provider_id, "")
        self._advance(name)

    def lose_request(self, uid: str) -> None:
        """A Machine or NodeClaim is gone."""
        request = self._requests.pop(uid, None)
        if request is not None:
            self._by_node.pop(request.node, None)
            self._by_provider.pop(request.provider_id, None)

    def see_scale_up(self, pod_uid: str, at: float) -> None:
        """A cluster autoscaler said that it makes a node for this pod."""
        self._scaled_up[pod_uid] = min(at, self._scaled_up.get(pod_uid, at))

    def lose_scale_up(self, pod_uid: str) -> None:
        """What the autoscaler said is forgotten."""
        self._scaled_up.pop(pod_uid, None)

    def replaced(self, name: str, now: float) -> Record | None:
        """Notes that a node's replacement is asked for; its record, None if it has none or says so already."""
        record = self.records.get(name)
        if record is None or record.replaced is not None:
            return None
        self.records[name] = msgspec.structs.replace(record, replaced=now)
        self.changed.add(name)
        return self.records[name]

    # Records

    def _begun(self, node: NodeSighting, now: float) -> Record | None:
        """The record that a node begins with; None if it is not on its way."""
        if node.kept is not None:
            return node.kept
        if not node.gpu or node.registered is None or now - node.registered > FRESH:
            return None
        self.changed.add(node.name)
        return Record(node=node.name, uid=node.uid, at={Milestone.REGISTERED: node.registered})

    def _advance(
        self, name: str, witnessed: Mapping[Milestone, float | None] = MappingProxyType({}), *, anew: bool = False
    ) -> None:
        """Adds to a node's record what is known by now."""
        record, node = self.records.get(name), self._nodes.get(name)
        if record is None or node is None:
            return
        new = advanced(record, self._evidence(node, witnessed, anew=anew))
        if new != record:
            self.records[name] = new
            self.changed.add(name)
            if new.usable:
                self._kept.append(Keep(new))

    def _evidence(
        self, node: NodeSighting, witnessed: Mapping[Milestone, float | None], *, anew: bool = False
    ) -> Evidence:
        workloads = self.pods_on(node.name, Role.WORKLOAD)
        return Evidence(
            node=node,
            request=self.request(node.name),
            drivers=self.pods_on(node.name, Role.DRIVER),
            toolkits=self.pods_on(node.name, Role.TOOLKIT),
            validations=self.pods_on(node.name, Role.VALIDATION),
            workloads=workloads,
            asked={each.uid: since for each in workloads if (since := self._asked(each.uid)) is not None},
            witnessed=witnessed,
            anew=anew,
            card=self._cards.get(node.name),
        )

    def _asked(self, pod_uid: str) -> float | None:
        """Since when a node is wanted for a pod."""
        return self._scaled_up.get(pod_uid, self._unschedulable.get(pod_uid))

    # Workloads

    def _tell_workload(self, pod: PodSighting, now: float) -> None:
        """Once for each pod whose start is no old story."""
        node, way = self._nodes.get(pod.node), self.records.get(pod.node)
        if pod.role is not Role.WORKLOAD or pod.started is None or pod.uid in self._told or node is None:
            return
        self._told.add(pod.uid)
        if now - pod.started > FRESH:
            return
        usable = way.at.get(Milestone.ALLOCATABLE) if way is not None else None
        at = {
            Step.CREATED: pod.created,
            Step.SCALED_UP: self._scaled_up.get(pod.uid),
            Step.BOUND: pod.bound,
            Step.STARTED: pod.started,
        }
        record = WorkloadRecord(
            namespace=pod.namespace,
            name=pod.name,
            uid=pod.uid,
            node=pod.node,
            node_uid=node.uid,
            at={step: moment for step, moment in at.items() if moment is not None},
            fresh=usable is not None and pod.created is not None and pod.created <= usable,
            group=way.group if way is not None else "",
            strategy=way.strategy if way is not None else "",
            simulated=node.simulated,
        )
        self._kept.append(KeepWorkload(record))
