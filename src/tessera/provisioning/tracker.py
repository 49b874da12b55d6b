"""Keeps one provisioning record per node: observations in, records out. Pure.

Rules:

1. :mod:`tessera.provisioning.milestone_inference` derives milestones from objects. The tracker keeps what it
   observed of those objects.
2. Most milestones are timestamps in objects, so it does not matter when the tracker reads them. Two are not: LABELLED
   (the node's facts are known) and ALLOCATABLE (kubelet offers its GPUs). The tracker knows them only if it saw the
   change, or if the node is at most ``SAME_MOMENT`` old; otherwise they stay unknown.
3. Only new nodes get a record: none for a node registered more than :data:`FRESH` ago, unless its annotation holds an
   unfinished record. For a node that existed before anybody asked for its driver, the record begins at the request.
4. A record continues from the state in the node's annotation.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from tessera.provisioning.milestone_inference import SAME_MOMENT, Observations, infer_milestones, infer_request
from tessera.provisioning.milestones import Milestone, ProvisioningRecord, WorkloadRecord, WorkloadStep
from tessera.provisioning.timestamps import MachineRequest, NodeTimestamps, PodRole, PodTimestamps

#: Seconds from its registration after which a node is not new any more.
FRESH = 3600.0


class SaveRecord(msgspec.Struct, frozen=True):
    """A node's record to save: its GPUs are usable, or it is gone."""

    record: ProvisioningRecord


class SaveWorkload(msgspec.Struct, frozen=True):
    """A pod's record to save: the pod has started."""

    record: WorkloadRecord


class Tracker:
    """The records of all starting nodes.

    A caller that starts must pass the pods first, then the nodes, since the absence of a pod has a meaning.

    Attributes:
        records: by node name: nodes that are or were starting, of the present Node object.
        usable: of these, the nodes whose GPUs are usable, with the UID of the Node.
        changed: names of nodes whose record changed since the caller cleared this set.
    """

    def __init__(self) -> None:
        self.records: dict[str, ProvisioningRecord] = {}
        self.usable: dict[str, str] = {}
        self.changed: set[str] = set()
        #: Nodes that exist, by name, as last observed.
        self._nodes: dict[str, NodeTimestamps] = {}
        #: When a node was first seen to have a GPU; only nodes that had none before.
        self._gpu_since: dict[str, float] = {}
        #: Relevant pods that exist, by uid.
        self._pods: dict[str, PodTimestamps] = {}
        #: The bound ones of ``_pods``, by node name and uid.
        self._pods_by_node: dict[str, dict[str, PodTimestamps]] = {}
        #: Machines and NodeClaims that exist, by uid; the next two lead to keys of it.
        self._requests: dict[str, MachineRequest] = {}
        self._request_by_node: dict[str, str] = {}
        self._request_by_provider: dict[str, str] = {}
        #: Names of nodes in ``_nodes`` by their provider id.
        self._node_by_provider: dict[str, str] = {}
        #: When the autoscaler first announced a node for a pod, by the pod's uid.
        self._scaled_up: dict[str, float] = {}
        #: When a pod was first unschedulable, by uid; kept after it was bound.
        self._unschedulable: dict[str, float] = {}
        #: Uids of pods whose start was handled, here or by an earlier process.
        self._saved_workloads: set[str] = set()
        #: Outputs since the last :meth:`pop_saves`.
        self._saves: list[SaveRecord | SaveWorkload] = []

    def skip_workloads(self, uids: Iterable[str]) -> None:
        """Notes that the records of these pods are saved already."""
        self._saved_workloads.update(uids)

    def pop_saves(self) -> list[SaveRecord | SaveWorkload]:
        """The records to save since the last call."""
        kept, self._saves = self._saves, []
        return kept

    def machine_request(self, node: str) -> MachineRequest | None:
        """The Machine or NodeClaim of a node, if known."""
        known = self._nodes.get(node)
        uid = self._request_by_node.get(node) or self._request_by_provider.get(
            known.provider_id if known is not None else ""
        )
        return self._requests.get(uid) if uid is not None else None

    def pods_on(self, node: str, role: PodRole) -> list[PodTimestamps]:
        """Pods on a node, in the sequence of their creation."""
        found = (each for each in self._pods_by_node.get(node, {}).values() if each.role is role)
        return sorted(found, key=lambda each: (each.created or 0.0, each.uid))

    # Observations

    def observe_node(self, node: NodeTimestamps, now: float, *, live: bool = True) -> None:
        """Takes the present state of a node.

        Args:
            node: the node.
            now: seconds since 1970.
            live: True for a change; False for the state at the start of the watch.
        """
        before = self._nodes.get(node.name)
        if before is not None and before.uid != node.uid:
            self.remove_node(node.name, now)
            before = None
        self._nodes[node.name] = node
        if live and before is not None and node.gpu and not before.gpu:
            self._gpu_since[node.name] = now
        if node.provider_id:
            self._node_by_provider[node.provider_id] = node.name
        if node != before:
            self._update_node(node, before, now, live=live)
        if before is None:
            for pod in self.pods_on(node.name, PodRole.WORKLOAD):
                self._save_workload(pod, now)

    def _update_node(self, node: NodeTimestamps, before: NodeTimestamps | None, now: float, *, live: bool) -> None:
        known = self.records.get(node.name)
        record = known or self._new_record(node, now)
        if record is None:
            return
        at_once = node.registered is not None and now - node.registered <= SAME_MOMENT
        watched = live and before is not None
        came = now if watched or at_once else None
        witnessed: dict[Milestone, float | None] = {}
        # A state that returns, or that a later milestone proves to be older, did not begin just now.
        if node.facts and not (before is not None and before.facts) and Milestone.PULLED not in record.at:
            witnessed[Milestone.LABELLED] = node.registered if at_once else came
        if node.usable and not (before is not None and before.usable) and not record.usable:
            witnessed[Milestone.ALLOCATABLE] = came
            if came is None:
                if known is None:
                    record = infer_request(record, self._observations(node, {}))
                record = msgspec.structs.replace(record, unseen=True)
                self.changed.add(node.name)
        self._put(node.name, record)
        anew = watched and before is not None and node.wanted and not before.wanted
        self._infer(node.name, witnessed, anew=anew)
        if record.usable and record is not known:  # the writer of the annotation may not have saved the record
            self._saves.append(SaveRecord(self.records[node.name]))

    def remove_node(self, name: str, now: float) -> None:
        """Forgets a deleted node."""
        node = self._nodes.pop(name, None)
        if node is not None:
            self._node_by_provider.pop(node.provider_id, None)
        self._gpu_since.pop(name, None)
        record = self.records.pop(name, None)
        self.usable.pop(name, None)
        self.changed.discard(name)
        if record is not None and not record.usable:
            self._saves.append(SaveRecord(msgspec.structs.replace(record, lost=now)))

    def observe_pod(self, pod: PodTimestamps, now: float) -> None:
        """Takes the present state of a pod."""
        before = self._pods.get(pod.uid)
        if before is not None and before.node and before.node != pod.node:
            self._pods_by_node[before.node].pop(pod.uid, None)
        self._pods[pod.uid] = pod
        if pod.unschedulable is not None:
            self._unschedulable.setdefault(pod.uid, pod.unschedulable)
        if pod.node and pod != before:
            self._pods_by_node.setdefault(pod.node, {})[pod.uid] = pod
            if not self._came_later(pod):
                self._infer(pod.node)
            self._save_workload(pod, now)

    def _came_later(self, pod: PodTimestamps) -> bool:
        """True for a workload that shows nothing of its node's start: the node was usable before it was created."""
        record = self.records.get(pod.node)
        if record is None or pod.node not in self.usable or pod.role is not PodRole.WORKLOAD or pod.created is None:
            return False
        usable = record.at.get(Milestone.ALLOCATABLE, record.at.get(Milestone.REGISTERED))
        return usable is not None and pod.created > usable

    def remove_pod(self, uid: str) -> None:
        """Forgets a deleted pod."""
        pod = self._pods.pop(uid, None)
        if pod is not None and pod.node:
            self._pods_by_node[pod.node].pop(uid, None)
            if not self._pods_by_node[pod.node]:
                del self._pods_by_node[pod.node]
        for known in (self._unschedulable, self._scaled_up):
            known.pop(uid, None)
        self._saved_workloads.discard(uid)

    def observe_machine(self, request: MachineRequest) -> None:
        """Takes the present state of a Machine or NodeClaim."""
        self._requests[request.uid] = request
        if request.node:
            self._request_by_node[request.node] = request.uid
        if request.provider_id:
            self._request_by_provider[request.provider_id] = request.uid
        name = request.node or self._node_by_provider.get(request.provider_id, "")
        self._infer(name)

    def remove_machine(self, uid: str) -> None:
        """Forgets a deleted Machine or NodeClaim."""
        request = self._requests.pop(uid, None)
        if request is not None:
            self._request_by_node.pop(request.node, None)
            self._request_by_provider.pop(request.provider_id, None)

    def observe_scale_up(self, pod_uid: str, at: float) -> None:
        """Records that a cluster autoscaler announced a node for this pod."""
        self._scaled_up[pod_uid] = min(at, self._scaled_up.get(pod_uid, at))

    def remove_scale_up(self, pod_uid: str) -> None:
        """Forgets the autoscaler's announcement for a pod."""
        self._scaled_up.pop(pod_uid, None)

    def mark_replaced(self, name: str, now: float) -> ProvisioningRecord | None:
        """Records that a node is being replaced; returns its record, None if it has none or is unchanged."""
        record = self.records.get(name)
        if record is None or record.replaced is not None:
            return None
        self._put(name, msgspec.structs.replace(record, replaced=now))
        self.changed.add(name)
        return self.records[name]

    # Records

    def _put(self, name: str, record: ProvisioningRecord) -> None:
        self.records[name] = record
        if record.usable:
            self.usable[name] = record.uid
        else:
            self.usable.pop(name, None)

    def _new_record(self, node: NodeTimestamps, now: float) -> ProvisioningRecord | None:
        """The first record of a node; None if the node is not starting."""
        if node.record is not None:
            return node.record
        if not node.gpu or node.registered is None or now - node.registered > FRESH:
            return None
        self.changed.add(node.name)
        return ProvisioningRecord(node=node.name, uid=node.uid, at={Milestone.REGISTERED: node.registered})

    def _infer(
        self, name: str, witnessed: Mapping[Milestone, float | None] = MappingProxyType({}), *, anew: bool = False
    ) -> None:
        """Adds to a node's record everything that is known by now."""
        record, node = self.records.get(name), self._nodes.get(name)
        if record is None or node is None:
            return
        new = infer_milestones(record, self._observations(node, witnessed, anew=anew))
        if new != record:
            self._put(name, new)
            self.changed.add(name)
            if new.usable:
                self._saves.append(SaveRecord(new))

    def _observations(
        self, node: NodeTimestamps, witnessed: Mapping[Milestone, float | None], *, anew: bool = False
    ) -> Observations:
        workloads = self.pods_on(node.name, PodRole.WORKLOAD)
        return Observations(
            node=node,
            request=self.machine_request(node.name),
            drivers=self.pods_on(node.name, PodRole.DRIVER),
            toolkits=self.pods_on(node.name, PodRole.TOOLKIT),
            validations=self.pods_on(node.name, PodRole.VALIDATION),
            workloads=workloads,
            node_wanted_since={
                each.uid: since for each in workloads if (since := self._node_requested_at(each.uid)) is not None
            },
            witnessed=witnessed,
            newly_requested=anew,
            gpu_since=self._gpu_since.get(node.name),
        )

    def _node_requested_at(self, pod_uid: str) -> float | None:
        """Time at which a node was requested for a pod, seconds since 1970; None if none was."""
        return self._scaled_up.get(pod_uid, self._unschedulable.get(pod_uid))

    # Workloads

    def _save_workload(self, pod: PodTimestamps, now: float) -> None:
        """Saves the record of each pod once, unless its start was long ago."""
        node, way = self._nodes.get(pod.node), self.records.get(pod.node)
        if pod.role is not PodRole.WORKLOAD or pod.started is None or pod.uid in self._saved_workloads or node is None:
            return
        self._saved_workloads.add(pod.uid)
        if now - pod.started > FRESH:
            return
        usable = way.at.get(Milestone.ALLOCATABLE) if way is not None else None
        at = {
            WorkloadStep.CREATED: pod.created,
            WorkloadStep.SCALED_UP: self._scaled_up.get(pod.uid),
            WorkloadStep.BOUND: pod.bound,
            WorkloadStep.STARTED: pod.started,
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
        self._saves.append(SaveWorkload(record))
