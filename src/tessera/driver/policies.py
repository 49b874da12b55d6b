"""Selects the policy of each node from the objects that administrators wrote.

Rules:

1. The oldest ClusterPolicy counts. If another operator writes its status, it is that operator's and nothing is done.
2. If an object has a mistake, its last valid version counts. If there is none, the selection is frozen and nothing
   changes. So a typing error removes no driver.
3. If the API server does not serve the kind (the CRD was never installed, or was removed), no driver is removed.
   Drivers are removed only if an object was deleted, or says ``enabled: false``.

A :class:`PolicyWatcher` follows the objects, and keeps the last valid version of each.

A cluster without the CRDs counts as one without such objects; the CRDs may be installed at any time.

The controller ignores an object with a mistake and uses its last valid version. The ConfigMap ``driver-policies`` holds
these versions, so that a controller that starts after the mistake does the same. Content that cannot be decoded counts
as missing.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from tessera.api.nodes.node_marks import DriverStatus
from tessera.api.problems import FileRefused, Notice
from tessera.driver.driver_sets import NAMESPACE
from tessera.driver.limits import DRIVER_MEMORY
from tessera.driver.node_facts import opt_out_reason, skip_reason
from tessera.gpu_operator.assignment import (
    CLUSTER_POLICIES,
    NVIDIA_DRIVERS,
    DriverAssignment,
    assign_drivers,
    find_governing_policy,
)
from tessera.gpu_operator.driver_policy import DriverPolicy
from tessera.gpu_operator.policy_objects import find_other_manager, read_cluster_policy, read_nvidia_driver
from tessera.gpu_operator.policy_status import (
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
from tessera.kube.cache import WatchEvent
from tessera.kube.errors import NotFound
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.persistent_config_map import PersistentConfigMap
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


_log = logging.getLogger(__name__)

CONFIG_MAP = "driver-policies"
KEY = "policies.json"


class ValidPolicies:
    """The last valid version of each policy, by ``kind/name``.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        namespace: namespace of the ConfigMap.
    """

    def __init__(self, runtime: KubeRuntime, *, namespace: str) -> None:
        self.last_valid: Mapping[str, DriverPolicy] = {}
        self._map = PersistentConfigMap(
            runtime.client,
            runtime.clock,
            namespace=namespace,
            name=CONFIG_MAP,
            data=self._data,
            rng=runtime.rng,
            may_act=runtime.may_act,
        )

    async def load(self) -> None:
        """Reads the versions that an earlier controller stored; retries until the server answers."""
        self.last_valid = decode_policies((await self._map.load()).get(KEY, "{}"))

    async def run(self) -> None:
        """Writes the versions to the ConfigMap, until cancelled."""
        await self._map.run()

    def update(self, policies: Mapping[str, DriverPolicy]) -> None:
        """Replaces the versions to store."""
        if policies != self.last_valid:
            self.last_valid = dict(policies)
            self._map.mark_changed()

    def _data(self) -> Mapping[str, str]:
        return {KEY: msgspec.json.encode(self.last_valid, order="sorted").decode()}


def decode_policies(text: str) -> Mapping[str, DriverPolicy]:
    """The versions in the ConfigMap's text; none if it cannot be decoded."""
    try:
        return msgspec.json.decode(text[:DRIVER_MEMORY], type=dict[str, DriverPolicy])
    except (msgspec.DecodeError, RecursionError) as error:
        _log.warning("the policies in ConfigMap %s cannot be decoded, it is replaced: %s", CONFIG_MAP, error)
        return {}


PolicyJson = dict[str, Any]


class PolicyWatcher:
    """Watches ClusterPolicy and NVIDIADriver objects.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        changed: called when an object changed, with the keys of writes that may be decided again.
    """

    def __init__(self, runtime: KubeRuntime, *, changed: Callable[[Iterable[str]], None]) -> None:
        client, clock, rng = runtime.client, runtime.clock, runtime.rng
        self._cluster_policies: Informer[PolicyJson] = Informer(client, CLUSTER_POLICIES, clock=clock, rng=rng)
        self._drivers: Informer[PolicyJson] = Informer(client, NVIDIA_DRIVERS, clock=clock, rng=rng)
        self._valid = ValidPolicies(runtime, namespace=NAMESPACE)
        self._changed = changed
        #: The last selection, and what it was made from.
        self._selection = PolicySelection()
        self._selected_from: tuple[PolicyObjects, Labels] | None = None
        self._cluster_policies.add_handler(partial(self._on_object, CLUSTER_POLICIES))
        self._drivers.add_handler(partial(self._on_object, NVIDIA_DRIVERS))

    async def run(self) -> None:
        """Watches the objects and stores valid versions, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._cluster_policies.run(), self._drivers.run(), self._valid.run()):
                group.create_task(part)

    async def wait_read(self) -> None:
        """Returns once all objects were listed, or their kind does not exist, and the stored versions were read."""
        for mirror in (self._cluster_policies, self._drivers):
            while not mirror.synced and not _is_absent(mirror):
                mirror.reflector.attempted.clear()
                await mirror.reflector.attempted.wait()
        await self._valid.load()

    def select_policy(self, nodes: Labels) -> PolicySelection:
        """Selects the policy of each node, and remembers the valid versions; reads no object again that is as it was.

        Args:
            nodes: labels of the nodes with GPUs, by name.
        """
        objects = PolicyObjects(
            cluster_policies=_objects(self._cluster_policies),
            nvidia_drivers=_objects(self._drivers),
            last_valid=self._valid.last_valid,
        )
        if self._selected_from != (objects, nodes):
            self._selected_from = objects, nodes
            self._selection = select_policy(objects, nodes)
            self._valid.update(self._selection.last_valid)
        return self._selection

    def _on_object(self, kind: Resource[PolicyJson], event: WatchEvent[PolicyJson]) -> None:
        self._changed((f"policy/{kind.kind}/{event.object['metadata']['name']}",))


def _objects(mirror: Informer[PolicyJson]) -> list[PolicyJson] | None:
    """All objects of a kind; None if the API server does not serve the kind."""
    return list(mirror.cache.values()) if mirror.synced else None


def _is_absent(mirror: Informer[PolicyJson]) -> bool:
    """True if the API server said that it does not serve the kind."""
    return isinstance(mirror.reflector.error, NotFound)
