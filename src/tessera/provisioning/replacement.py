"""Replaces overdue nodes: a limited number, and never against an annotation that forbids it.

Replacing helps against a broken machine, not against a driver that does not exist. So a node whose driver is held back
by a cause that would hold back another node's too is not replaced. That cannot always be known, so the number of
replacements per group and hour is limited. Replacements are counted in the history, so a controller that restarts
continues the count; a node is in the history before it is deleted. A controller that dies in between has replaced one
node less than it counts, never more.

The Machine, NodeClaim or Node behind the node is deleted; the autoscaler then creates another. The controller of a
Machine or NodeClaim drains the node first. A bare Node is not drained, so it is deleted only while no pods run on it
except those of DaemonSets, static pods and Tessera's own.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tessera.clock import rfc3339
from tessera.gpu_operator.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.gpu_operator.policy_status import ERROR
from tessera.kube.cache import Cache
from tessera.kube.errors import NotFound
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CAPI_MACHINES, NODECLAIMS, NODES, OPENSHIFT_MACHINES, Machine, Node, Pod, Resource
from tessera.provisioning.milestones import ProvisioningRecord
from tessera.provisioning.recording import HistoryStore
from tessera.provisioning.startup_deadline import (
    DRIVER_REASONS,
    ProvisionedCondition,
    StartupDeadline,
    deadline_began,
    driver_status,
    driver_text,
    shared_cause_text,
)
from tessera.provisioning.timestamps import MachineRequest, tessera_app
from tessera.provisioning.tracker import Tracker
from tessera.text import count_noun, list_names

_MIRROR = "kubernetes.io/config.mirror"
#: Type, status and reason of the condition of a policy with mistakes.
_REFUSED = (ERROR, "True", "ReconcileFailed")

#: Seconds in which replacements of a group are counted.
HOUR = 3600.0

#: Annotations of a node or its Machine that forbid its removal: Karpenter's, the cluster autoscaler's, and those by
#: which Cluster API leaves a machine alone.
PROTECTING: Mapping[str, frozenset[str] | None] = {
    "karpenter.sh/do-not-disrupt": frozenset({"true"}),
    "cluster-autoscaler.kubernetes.io/scale-down-disabled": frozenset({"true"}),
    "cluster.x-k8s.io/skip-remediation": None,
    "cluster.x-k8s.io/paused": None,
}


class ReplacementAnswer(Enum):
    """The outcomes for an overdue node."""

    #: Replacement is off, or in progress.
    NOTHING = "nothing"
    REPLACE = "replace"
    #: An annotation or a cordon forbids it, or the limit is reached.
    HELD = "held"


class ReplacementDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, with the reason in a sentence."""

    answer: ReplacementAnswer
    text: str = ""


def shared_cause(
    node: Node, record: ProvisioningRecord, condition: ProvisionedCondition, *, deadline: StartupDeadline, now: float
) -> str:
    """Reason that another node in place of an overdue one would fail too; empty if it might not."""
    status, until = driver_status(node), deadline.end(deadline_began(node, record, now), record.waited)
    if status is not None and status.shared and condition.reason in DRIVER_REASONS:
        return f"another node in its place would have the same driver status: {driver_text(node)}"
    return f"{shared_cause_text(record)}; it has until {rfc3339(until)}" if now < until else ""


def has_no_driver_status(node: Node, condition: ProvisionedCondition) -> bool:
    """True if an overdue node has no driver and no status that explains it."""
    return condition.reason in DRIVER_REASONS and driver_status(node) is None


def decide_replacement(
    record: ProvisioningRecord,
    history: Iterable[ProvisioningRecord],
    *,
    limit: int,
    now: float,
    deleting: bool,
    cordoned: bool,
    shared_cause: str,
    annotations: Sequence[Mapping[str, str]],
) -> ReplacementDecision:
    """Decides whether an overdue node is replaced.

    Args:
        record: the node's provisioning record.
        history: the records of the history.
        limit: maximum number of nodes of one group to replace in an hour; 0 for none.
        now: seconds since 1970.
        deleting: the node or its Machine is being deleted.
        cordoned: somebody cordoned the node.
        shared_cause: why another node in its place would fail too; empty if it might not.
        annotations: annotations of the node and of its Machine.
    """
    if limit <= 0 or deleting or record.usable:
        return ReplacementDecision(answer=ReplacementAnswer.NOTHING)
    if cordoned:
        return ReplacementDecision(answer=ReplacementAnswer.HELD, text="somebody cordoned it")
    for name, values in PROTECTING.items():
        if any(name in each and (values is None or each[name] in values) for each in annotations):
            return ReplacementDecision(answer=ReplacementAnswer.HELD, text=f"its annotation {name} forbids it")
    if shared_cause:
        return ReplacementDecision(answer=ReplacementAnswer.HELD, text=shared_cause)
    if record.replaced is not None:
        return ReplacementDecision(answer=ReplacementAnswer.REPLACE)  # it is counted already, but its deletion failed
    recent = sum(1 for each in history if _counts(each, record, now))
    if recent >= limit:
        group = f"group {record.group}" if record.group else "no known group"
        most = f"{count_noun(limit, 'node')} of {group} in an hour"
        return ReplacementDecision(
            answer=ReplacementAnswer.HELD, text=f"{most} were replaced already, which is the limit"
        )
    return ReplacementDecision(answer=ReplacementAnswer.REPLACE)


def _counts(other: ProvisioningRecord, record: ProvisioningRecord, now: float) -> bool:
    return other.group == record.group and other.replaced is not None and now - other.replaced < HOUR


class Replacer:
    """Deletes the object that a node was made from.

    Args:
        runtime: see :class:`~tessera.kube.leader_election.KubeRuntime`.
        pods: all pods.
        tracker: the nodes' records.
        store: the history, which counts replacements.
        served: returns a kind of machine at its served version; see
            :class:`~tessera.kube.informer.OptionalKind`.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        pods: Cache[Pod],
        tracker: Tracker,
        store: HistoryStore,
        served: Callable[[Resource[Machine]], Resource[Machine]],
    ) -> None:
        self._client = runtime.client
        self._pods = pods
        self._tracker = tracker
        self._store = store
        self._served = served

    def obstacle(self, node: Node, request: MachineRequest | None) -> str:
        """Reason that a node must not be deleted now; empty if it may be."""
        if request is not None:
            return ""
        found = sorted(
            f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in self._blocking_pods(node.metadata.name)
        )
        return f"no Machine or NodeClaim is known, and pods run on it: {list_names(found, 3)}" if found else ""

    async def invalid_policy(self) -> str:
        """The policy with mistakes because of which no node gets a driver; empty if there is none.

        Raises:
            ApiError: the policies cannot be read.
            ConnectionError: the server gave no answer.
        """
        for resource in (CLUSTER_POLICIES, NVIDIA_DRIVERS):
            try:
                found = (await self._client.list(resource)).items
            except NotFound:
                continue  # the cluster has no such kind
            for each in found:
                conditions = (each.get("status") or {}).get("conditions") or ()
                if any((one.get("type"), one.get("status"), one.get("reason")) == _REFUSED for one in conditions):
                    name = f"{resource.kind} {each['metadata']['name']}"
                    return f"{name} has mistakes, so that another node in its place would be given no driver either"
        return ""

    async def replace(self, node: Node, request: MachineRequest | None, now: float) -> str:
        """Counts the replacement and requests it.

        Returns:
            The deleted object.

        Raises:
            ApiError: the replacement could not be counted, or the object not deleted.
            ConnectionError: the server gave no answer.
        """
        name = node.metadata.name
        record = self._tracker.mark_replaced(name, now)
        if record is not None:  # else it is counted already
            self._store.history.nodes.put(record)
            await self._store.flush()
        try:
            return await self._delete(node, request)
        except NotFound:
            return f"Node {name}, which is gone already"

    async def _delete(self, node: Node, request: MachineRequest | None) -> str:
        if request is None:
            await self._client.delete(NODES, node.metadata.name, uid=node.metadata.uid)
            return f"Node {node.metadata.name}"
        if request.resource == NODECLAIMS.label:
            await self._client.delete(self._served(NODECLAIMS), request.name, uid=request.uid)
        elif request.resource == OPENSHIFT_MACHINES.label:
            await self._client.delete(
                self._served(OPENSHIFT_MACHINES), request.name, request.namespace, uid=request.uid
            )
        else:
            await self._client.delete(self._served(CAPI_MACHINES), request.name, request.namespace, uid=request.uid)
        return f"{request.resource} {request.namespace}/{request.name}".replace(" /", " ")

    def _blocking_pods(self, node: str) -> Iterable[Pod]:
        for pod in self._pods.values():
            daemon = any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
            own = tessera_app(pod).startswith("tessera-")
            over = pod.status.phase in {"Succeeded", "Failed"}
            if pod.spec.node_name == node and not (daemon or own or over or _MIRROR in pod.metadata.annotations):
                yield pod
