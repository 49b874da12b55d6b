"""Selects the policy of each node from the objects that administrators wrote. Pure.

Rules:

1. The oldest ClusterPolicy counts. If another operator writes its status, it is that operator's and nothing is done.
2. If an object has a mistake, its last valid version counts. If there is none, the selection is frozen and nothing
   changes. So a typing error removes no driver.
3. If the API server does not serve the kind (the CRD was never installed, or was removed), no driver is removed.
   Drivers are removed only if an object was deleted, or says ``enabled: false``.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.nodes.driver_status import DriverStatus
from tessera.api.problems import FileRefused, Notice
from tessera.driver.nodes.node_facts import opt_out_reason, skip_reason
from tessera.gpu_operator.policies.assignment import (
    CLUSTER_POLICIES,
    NVIDIA_DRIVERS,
    DriverAssignment,
    assign_drivers,
    find_governing_policy,
)
from tessera.gpu_operator.policies.cluster_policy import find_other_manager, read_cluster_policy
from tessera.gpu_operator.policies.driver_policy import DriverPolicy
from tessera.gpu_operator.policies.nvidia_driver import read_nvidia_driver
from tessera.gpu_operator.policies.policy_status import (
    AUTO_UPGRADE_OFF,
    PolicyStatus,
    conflict_status,
    disabled_status,
    frozen_status,
    ignored_status,
    invalid_status,
    summarize_nodes,
    unmanaged_status,
)
from tessera.kube.resources.meta import Resource

Obj = Mapping[str, Any]
Labels = Mapping[str, Mapping[str, str]]


class PolicyObjects(msgspec.Struct, frozen=True, kw_only=True):
    """Policy objects as administrators wrote them.

    Attributes:
        cluster_policies: all ClusterPolicy objects; None if the API server does not serve the kind.
        nvidia_drivers: all NVIDIADriver objects; None if the API server does not serve the kind.
        last_valid: the last valid version of each object, by ``kind/name``.
    """

    cluster_policies: Sequence[Obj] | None = None
    nvidia_drivers: Sequence[Obj] | None = None
    last_valid: Mapping[str, DriverPolicy] = {}


class PolicyReport(msgspec.Struct, frozen=True, kw_only=True):
    """An object and its status, apart from its nodes.

    Attributes:
        kind: its kind.
        obj: name, UID, generation and status of the object.
        status: the status; None if it follows from its nodes.
        notices: fields without effect.
    """

    kind: str
    obj: Obj
    status: PolicyStatus | None = None
    notices: tuple[Notice, ...] = ()

    @property
    def name(self) -> str:
        """``ClusterPolicy/cluster-policy``."""
        return f"{self.kind}/{self.obj['metadata']['name']}"


class PolicySelection(msgspec.Struct, frozen=True, kw_only=True):
    """The policy of each node.

    Attributes:
        frozen: why nothing changes; empty if the selection is not frozen.
        cluster: the ClusterPolicy in force; None if none manages drivers.
        nodes: the policy of each node, by the node's name.
        unassigned: why a node has no policy although drivers are managed, by the node's name.
        opted_out: nodes with a label by which people keep Tessera away from their driver; no policy waits for them.
        skipped: nodes with a label by which people keep them from rollouts, with the reason.
        reports: the objects whose status Tessera writes.
        assignment: the assignment of NVIDIADriver objects to nodes.
        last_valid: versions to remember, see :class:`PolicyObjects`.
    """

    frozen: str = ""
    cluster: DriverPolicy | None = None
    nodes: Mapping[str, DriverPolicy] = {}
    unassigned: Mapping[str, str] = {}
    opted_out: frozenset[str] = frozenset()
    skipped: Mapping[str, str] = {}
    reports: tuple[PolicyReport, ...] = ()
    assignment: DriverAssignment = DriverAssignment()
    last_valid: Mapping[str, DriverPolicy] = {}

    @property
    def policies(self) -> Mapping[str, DriverPolicy]:
        """The policies that select a node, by ``kind/name``."""
        return {each.full_name: each for each in self.nodes.values()}

    @property
    def holds(self) -> Mapping[str, str]:
        """Why a driver that works is not replaced, by the node's name; a node of a rollout is not in it."""
        off = {name: AUTO_UPGRADE_OFF for name, policy in self.nodes.items() if not policy.upgrade.auto_upgrade}
        return {**off, **self.skipped}

    def policy_statuses(self, statuses: Mapping[str, DriverStatus | None]) -> list[tuple[PolicyReport, PolicyStatus]]:
        """The status of each object, given each node's status."""
        return [(report, report.status or self._of_nodes(report, statuses)) for report in self.reports]

    def _of_nodes(self, report: PolicyReport, statuses: Mapping[str, DriverStatus | None]) -> PolicyStatus:
        if self.frozen:
            return frozen_status(self.frozen, report.notices)
        selected: Collection[str] = [name for name, each in self.nodes.items() if each.full_name == report.name]
        nobody = "it selects no node that has a card"
        if report.kind == CLUSTER_POLICIES.kind:  # includes nodes with an NVIDIADriver, and nodes that lack one
            selected, nobody = {**self.nodes, **self.unassigned}, "no node has a card"
        counted = {node: statuses.get(node) for node in selected if node not in self.opted_out}
        if selected and not counted:
            nobody = "the labels of all its nodes say that their driver is left alone"
        left = len(selected) - len(counted)
        status = summarize_nodes(counted, report.notices, nobody=nobody, holds=self.holds, left_alone=left)
        conflict = self.assignment.conflict_of(report.obj["metadata"]["name"])
        if report.kind == NVIDIA_DRIVERS.kind and conflict is not None:
            return conflict_status(conflict, status)
        return status


def select_policy(objects: PolicyObjects, nodes: Labels) -> PolicySelection:
    """Divides the nodes with GPUs among policies.

    Args:
        objects: the policy objects.
        nodes: labels of the nodes with GPUs, by name.
    """
    if objects.cluster_policies is None:
        return PolicySelection(frozen="The API server has no ClusterPolicy objects.", last_valid=objects.last_valid)
    winner, others = find_governing_policy(objects.cluster_policies)
    if winner is None:
        return PolicySelection(reports=_disabled_reports(objects))
    left = frozenset(name for name, labels in nodes.items() if opt_out_reason(labels))
    skipped = {name: why for name, labels in nodes.items() if (why := skip_reason(labels))}
    name = winner["metadata"]["name"]
    late = tuple(_report(CLUSTER_POLICIES, each, status=ignored_status(name)) for each in others)
    other = find_other_manager(winner)
    if other:
        return PolicySelection(frozen=f"ClusterPolicy {name} is {other}'s: it writes its status.", reports=late)
    return msgspec.structs.replace(_select_under(winner, late, objects, nodes), opted_out=left, skipped=skipped)


def _select_under(
    winner: Obj, late: tuple[PolicyReport, ...], objects: PolicyObjects, nodes: Labels
) -> PolicySelection:
    cluster, report = _read_cluster(winner, objects)
    followed = _by_name(cluster)
    if cluster is None:
        return PolicySelection(
            frozen="The ClusterPolicy has mistakes.", reports=(report, *late), last_valid=objects.last_valid
        )
    if not cluster.enabled:
        report = msgspec.structs.replace(report, status=report.status or unmanaged_status(report.notices))
        return PolicySelection(reports=(report, *late, *_disabled_reports(objects)), last_valid=followed)
    if not cluster.use_driver_crd:
        governed = dict.fromkeys(nodes, cluster)
        return PolicySelection(
            cluster=cluster, nodes=governed, reports=(report, *late, *_disabled_reports(objects)), last_valid=followed
        )
    return _select_by_nvidia_drivers(cluster, (report, *late), objects, nodes)


def _select_by_nvidia_drivers(
    cluster: DriverPolicy, reports: tuple[PolicyReport, ...], objects: PolicyObjects, nodes: Labels
) -> PolicySelection:
    if objects.nvidia_drivers is None:
        frozen = "The ClusterPolicy has useNvidiaDriverCRD, and the API server has no NVIDIADriver objects."
        return PolicySelection(frozen=frozen, cluster=cluster, reports=reports, last_valid=objects.last_valid)
    read = [_read_driver(each, cluster, objects) for each in objects.nvidia_drivers if not _is_being_deleted(each)]
    if any(policy is None for policy, _ in read):
        own = tuple(each for _, each in read)
        return PolicySelection(
            frozen="An NVIDIADriver has mistakes, and which nodes it is for is not known.",
            cluster=cluster,
            reports=(*reports, *own),
            last_valid=objects.last_valid,
        )
    drivers = [policy for policy, _ in read if policy is not None]
    found = assign_drivers(drivers, nodes)
    contested = {node: each.text for each in found.conflicts for node in each.nodes}
    unassigned = {
        node: contested.get(node, "no NVIDIADriver selects it; add one, or one with default: true")
        for node in nodes
        if node not in found.nodes
    }
    return PolicySelection(
        cluster=cluster,
        nodes=found.nodes,
        unassigned=unassigned,
        reports=(*reports, *(each for _, each in read)),
        assignment=found,
        last_valid=_by_name(cluster, *drivers),
    )


def _read_cluster(obj: Obj, objects: PolicyObjects) -> tuple[DriverPolicy | None, PolicyReport]:
    try:
        read = read_cluster_policy(obj)
    except FileRefused as error:
        report = _report(CLUSTER_POLICIES, obj, status=invalid_status(error.problems))
        return objects.last_valid.get(report.name), report
    return read.policy, _report(CLUSTER_POLICIES, obj, notices=read.notices)


def _read_driver(obj: Obj, cluster: DriverPolicy, objects: PolicyObjects) -> tuple[DriverPolicy | None, PolicyReport]:
    try:
        read = read_nvidia_driver(obj, cluster)
    except FileRefused as error:
        report = _report(NVIDIA_DRIVERS, obj, status=invalid_status(error.problems))
        return objects.last_valid.get(report.name), report
    return read.policy, _report(NVIDIA_DRIVERS, obj, notices=read.notices)


def _disabled_reports(objects: PolicyObjects) -> tuple[PolicyReport, ...]:
    drivers = objects.nvidia_drivers or ()
    return tuple(_report(NVIDIA_DRIVERS, each, status=disabled_status()) for each in drivers)


def _is_being_deleted(obj: Obj) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def _by_name(*policies: DriverPolicy | None) -> dict[str, DriverPolicy]:
    return {each.full_name: each for each in policies if each is not None}


def _report(
    resource: Resource[dict[str, Any]],
    obj: Obj,
    *,
    status: PolicyStatus | None = None,
    notices: tuple[Notice, ...] = (),
) -> PolicyReport:
    """The report of an object; its spec is left out, since it may hold passwords and the planner does not need it."""
    metadata = {key: value for key, value in obj["metadata"].items() if key in {"name", "uid", "generation"}}
    needed = {"metadata": metadata, "status": obj.get("status")}
    return PolicyReport(kind=resource.kind, obj=needed, status=status, notices=notices)
