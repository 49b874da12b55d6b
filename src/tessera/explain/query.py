"""Reads what an answer needs: GET and LIST only, everything at the same time.

What one may not read is left out and named. What does not exist (the CRD on a cluster without Tessera) is empty.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE
from tessera.clock import Clock
from tessera.explain.explanation import ExplanationReport
from tessera.explain.nodes import explain_node
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import LEASE, ClusterView, Snapshot
from tessera.explain.workloads import WorkloadState, exhausted_quotas, explain_workload
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Forbidden, NotFound
from tessera.kube.resources import (
    CONFIGMAPS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    REPLICASETS,
    RESOURCE_QUOTAS,
    STATEFULSETS,
    Condition,
    Job,
    Pod,
    ReplicaSet,
)
from tessera.kube.resources.meta import Resource
from tessera.limits import NAMES_COMPARED
from tessera.provisioning.history import RECORDS_KEY, Book
from tessera.provisioning.milestones import Record
from tessera.provisioning.recording.history_store import RECORDS_NAME
from tessera.text import one_line

T = TypeVar("T")

_WORKLOADS: dict[str, Resource[Any]] = {
    "deployment": DEPLOYMENTS,
    "replicaset": REPLICASETS,
    "statefulset": STATEFULSETS,
    "job": JOBS,
}
#: Other names of the kinds, as kubectl takes them.
_ALIASES = {
    "pods": "pod",
    "po": "pod",
    "deployments": "deployment",
    "deploy": "deployment",
    "replicasets": "replicaset",
    "rs": "replicaset",
    "statefulsets": "statefulset",
    "sts": "statefulset",
    "jobs": "job",
    "nodes": "node",
    "no": "node",
}
_DEFAULT_REPLICAS = 1
#: Form of the names of these kinds (RFC 1123 subdomain).
_NAME, _LONGEST_NAME = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"), 253
#: Where events about objects without a namespace lie.
NODE_EVENTS = "default"
#: Where Tessera runs.
AGENT_NAMESPACE = "tessera-system"


@dataclass(frozen=True, slots=True)
class Query:
    """What the user named: a kind in lower case and a name."""

    kind: str
    name: str


def parse_query(text: str) -> Query:
    """Reads ``NAME`` or ``KIND/NAME``; a kind may be written as kubectl takes or prints it (``deployment.apps/web``).

    Raises:
        ValueError: no such kind is known here, or the name is empty.
    """
    written, slash, name = text.rpartition("/")
    kind = written.partition(".")[0].lower() if slash else "pod"
    kind = _ALIASES.get(kind, kind)
    if kind not in {"pod", "node"} and kind not in _WORKLOADS:
        raise ValueError(f'"{text}": kind "{written}" is not known here; known are pod, node, {", ".join(_WORKLOADS)}')
    if not name:
        raise ValueError(f'"{text}": the name is empty; write {kind}/NAME')
    if len(name) > _LONGEST_NAME or _NAME.fullmatch(name) is None:
        rule = f"at most {_LONGEST_NAME} lower case letters, digits, dots and dashes"
        raise ValueError(f'"{one_line(text)}": there can be no {kind} of this name; names are {rule}')
    return Query(kind, name)


async def explain(client: Client, clock: Clock, what: Query, namespace: str) -> ExplanationReport:
    """Everything about what was asked.

    Raises:
        NotFound: there is no such object; where a quota on slices is used up, a note says so.
        ApiError: it may not be read.
    """
    if what.kind == "pod":
        return await _pod(client, clock, what, namespace)
    if what.kind == "node":
        return await _node(client, clock, what.name)
    try:
        workload = await _workload(client, what, namespace)
    except NotFound as error:
        await _hint(client, what, namespace, error)
        raise
    return explain_workload(ClusterView(await _sight(client, clock, namespace)), workload)


async def _pod(client: Client, clock: Clock, what: Query, namespace: str) -> ExplanationReport:
    try:
        pod = await client.get(PODS, what.name, namespace)
    except NotFound as error:
        await _hint(client, what, namespace, error)
        for line in exhausted_quotas((await _some(client, RESOURCE_QUOTAS, namespace))[0]):
            error.add_note(f"Its creation may have been refused: {line}")
        raise
    view = ClusterView(await _sight(client, clock, namespace, pod))
    return ExplanationReport(kind="pod", namespace=namespace, name=what.name, answers=(explain_pod(view, pod),))


async def _hint(client: Client, what: Query, namespace: str, error: NotFound) -> None:
    """Notes what may have been meant: another namespace, a node, a name that is close."""
    try:
        await client.get(NAMESPACES, namespace)
    except NotFound:
        every, _ = await _some(client, NAMESPACES)
        error.add_note(f'There is no namespace "{namespace}"{_meant(namespace, (n.metadata.name for n in every))}')
        return
    except ApiError:
        pass
    if what.kind == "pod":
        nodes, _ = await _some(client, NODES, fields=f"metadata.name={what.name}")
        if any(node.metadata.name == what.name for node in nodes):
            error.add_note(f"There is a node of that name: tessera why node/{what.name}")
            return
    plural: Resource[Any] = PODS if what.kind == "pod" else _WORKLOADS[what.kind]
    found, _ = await _some(client, plural, namespace)
    meant = _meant(what.name, (item.metadata.name for item in found))
    if meant:
        error.add_note(f"Namespace {namespace} has none of that name{meant}")


def _meant(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name[:253], list(known)[:NAMES_COMPARED], n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


async def _node(client: Client, clock: Clock, name: str) -> ExplanationReport:
    node, history, pods, events = await asyncio.gather(
        client.get(NODES, name),
        _history(client),
        _some(client, PODS, fields=f"spec.nodeName={name}"),
        _some(client, EVENTS, NODE_EVENTS, fields=f"involvedObject.name={name}"),
    )
    unseen = {resource.plural for (_, seen), resource in ((pods, PODS), (events, EVENTS)) if not seen}
    # The controller's state has no part in what is said of a node.
    unseen.add(INSTASLICES.plural)
    sight = Snapshot(
        now=clock.now(), pods=pods[0], nodes=[node], events=events[0], history=history, forbidden=frozenset(unseen)
    )
    return ExplanationReport(kind="node", namespace="", name=name, answers=(explain_node(ClusterView(sight), node),))


async def _history(client: Client) -> Sequence[Record]:
    """Records of nodes that came up; none where there are none or they may not be read."""
    try:
        found = await client.get(CONFIGMAPS, RECORDS_NAME, AGENT_NAMESPACE)
    except (Forbidden, NotFound):
        return ()
    book = Book()
    book.read({RECORDS_KEY: found.data.get(RECORDS_KEY, "")})
    return book.nodes.values()


# The cluster


async def _sight(client: Client, clock: Clock, namespace: str, pod: Pod | None = None) -> Snapshot:
    """What may be read of everything; ``pod`` is the one that is asked about, if it is one."""
    about = None if pod is None else f"involvedObject.uid={pod.metadata.uid}"
    pods, nodes, instaslices, leases, events, quotas = await asyncio.gather(
        _some(client, PODS),
        _some(client, NODES),
        _some(client, INSTASLICES, INSTASLICE_NAMESPACE),
        _some(client, LEASES, fields=f"metadata.name={LEASE}"),
        _some(client, EVENTS, namespace, fields=about),
        _some(client, RESOURCE_QUOTAS, namespace),
    )
    unseen = {
        resource.plural
        for (_, allowed), resource in (
            (pods, PODS),
            (nodes, NODES),
            (instaslices, INSTASLICES),
            (leases, LEASES),
            (events, EVENTS),
            (quotas, RESOURCE_QUOTAS),
        )
        if not allowed
    }
    seen = pods[0] if pods[1] else (await _some(client, PODS, namespace))[0]
    return Snapshot(
        now=clock.now(),
        pods=seen if pod is None else _with(seen, pod),
        nodes=nodes[0],
        instaslices=instaslices[0],
        leases=leases[0],
        events=events[0],
        quotas=quotas[0],
        forbidden=frozenset(unseen),
    )


def _with(pods: Sequence[Pod], pod: Pod) -> Sequence[Pod]:
    """The pods with this one as it was read by itself, also if it came or went between the two reads."""
    return [each for each in pods if each.metadata.uid != pod.metadata.uid] + [pod]


async def _some(
    client: Client, resource: Resource[T], namespace: str | None = None, *, fields: str | None = None
) -> tuple[Sequence[T], bool]:
    """The objects, and whether they may be listed."""
    try:
        return (await client.list(resource, namespace, field_selector=fields)).items, True
    except Forbidden:
        return (), False
    except NotFound:
        return (), True


# Workloads


async def _workload(client: Client, what: Query, namespace: str) -> WorkloadState:
    if what.kind == "job":
        return _job(await client.get(JOBS, what.name, namespace))
    item = await client.get(_WORKLOADS[what.kind], what.name, namespace)
    makers: list[ReplicaSet] = []
    if what.kind == "deployment":
        every = (await client.list(REPLICASETS, namespace)).items
        makers = [each for each in every if _owned(each, item.metadata.uid)]
    replicas = item.spec.replicas
    return WorkloadState(
        kind=what.kind,
        namespace=namespace,
        name=what.name,
        controller_uids=frozenset({item.metadata.uid, *(each.metadata.uid for each in makers)}),
        desired=_DEFAULT_REPLICAS if replicas is None else replicas,
        conditions=(*_conditions(makers), *item.status.conditions),
    )


def _owned(item: ReplicaSet, uid: str) -> bool:
    return any(owner.controller and owner.uid == uid for owner in item.metadata.owner_references)


def _conditions(makers: Sequence[ReplicaSet]) -> list[Condition]:
    return [condition for each in makers if each.spec.replicas for condition in each.status.conditions]


def _job(job: Job) -> WorkloadState:
    """A job wants as many pods at a time as it has parallelism, but no more than successes are missing."""
    over = any(each.type in {"Complete", "Failed"} and each.status == "True" for each in job.status.conditions)
    wanted = _DEFAULT_REPLICAS if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is not None:
        wanted = min(wanted, max(0, job.spec.completions - job.status.succeeded))
    return WorkloadState(
        kind="job",
        namespace=job.metadata.namespace,
        name=job.metadata.name,
        controller_uids=frozenset({job.metadata.uid}),
        desired=0 if over or job.spec.suspend else wanted,
        suspended=job.spec.suspend,
        conditions=job.status.conditions,
    )
