"""The entry to this package: reads the cluster, and explains.

Modules of one kind of question, of claims, nodes or workloads, are imported when it is asked: with them,
``tessera why POD`` would import a third more. Only GET and LIST are used, all at the same time.
A kind that the user may not read, or that the API server does not answer, is left out and named in the snapshot. A
kind that the cluster does not have counts as empty; but Instaslice is unread where a node shows that Tessera is there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.access.agent_pages import read_fleet
from tessera.access.page_reader import PageReader
from tessera.api.instaslice import INSTASLICES, KIND_MISSING
from tessera.api.names import GATE, INSTASLICE_NAMESPACE, SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import is_agent
from tessera.api.nodes.silence import SilentNode, has_traces
from tessera.api.nodes.usage import NodeUsage
from tessera.clock import Clock
from tessera.explain.explanation import Explanation, ExplanationReport, Query
from tessera.explain.snapshot import LEASE, REQUIRED_KINDS, ClusterView, Snapshot
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Forbidden, NotFound, note_unanswered
from tessera.kube.resources import (
    CONFIGMAPS,
    CRONJOBS,
    DAEMONSETS,
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

if TYPE_CHECKING:
    from tessera.explain.claim_objects import ClaimObjects
    from tessera.explain.workloads import WorkloadState
    from tessera.forecast.queue_page import QueuePage
    from tessera.kueue.positions import QueueReading
    from tessera.provisioning.milestones import ProvisioningRecord

_WORKLOADS: dict[str, Resource[Any]] = {
    "deployment": DEPLOYMENTS,
    "replicaset": REPLICASETS,
    "statefulset": STATEFULSETS,
    "daemonset": DAEMONSETS,
    "job": JOBS,
    "cronjob": CRONJOBS,
}
#: Controllers of a workload's pods that are asked about: ReplicaSets of a Deployment, Jobs of a CronJob.
_OWNERS = 8
#: Namespace of events about objects that have no namespace.
NODE_EVENTS = "default"


#: Reads the controller's queue, or returns why it cannot be read.
ReadQueue = Callable[[Client], Awaitable["QueuePage | str"]]
#: Asks somebody who may read more why the pods of a controller, by its UID, do not run.
AskForPods = Callable[[str], Awaitable[Sequence[Explanation]]]


async def explain(  # noqa: PLR0917 - the last two are ways to those who know more
    client: Client,
    clock: Clock,
    query: Query,
    namespace: str,
    read_queue: ReadQueue | None = None,
    ask: AskForPods | None = None,
    *,
    joined: bool = True,
) -> ExplanationReport:
    """Reads the cluster and explains one object.

    Args:
        client: the user's client.
        clock: the present time.
        query: the object.
        namespace: its namespace.
        read_queue: reads what the controller says of waiting pods; None to go without.
        ask: for a workload, asks about the pods of a user who may read too little of the cluster.
        joined: of a pod with several cards, says how these are joined; the live page says so itself.

    Raises:
        NotFound: there is no such object; its notes suggest a similar name, or tell of a quota that is used up.
        ApiError: the user may not read the object.
    """
    if query.kind == "pod":
        return await _pod(client, clock, query, namespace, read_queue, joined=joined)
    if query.kind == "node":
        try:
            return await _node(client, clock, query.name)
        except NotFound as error:
            nodes = await client.list_allowed(NODES.metadata_only(), failed={})
            meant = _suggest_name(query.name, (node.metadata.name for node in nodes or ()))
            error.add_note(f"The cluster has no node of that name{meant}")
            raise
    if query.kind == "claim":
        return await _claim(client, clock, query, namespace, read_queue)
    from tessera.explain.queue import is_queued
    from tessera.explain.rollouts import owner_of
    from tessera.explain.workloads import explain_workload

    try:
        workload = await _workload(client, query, namespace)
    except NotFound as error:
        await _add_hints(client, query, namespace, error)
        raise
    failed: dict[str, str] = {}
    snapshot = await _read_cluster(client, clock, namespace, failed)
    if any(_waits(pod) for pod in snapshot.pods if pod.metadata.namespace == namespace):
        snapshot = replace(snapshot, page=await _read_page(client, read_queue))
    own = [each for each in snapshot.pods if (owner := owner_of(each)) and owner.uid in workload.controller_uids]
    snapshot = replace(snapshot, claims=await _read_claims(client, namespace, own, failed))
    for pod in islice((pod for pod in own if not pod.spec.node_name), 1):
        snapshot = await _add_rollout(client, snapshot, pod, failed)
    if workload.suspended or any(is_queued(pod) for pod in snapshot.pods if pod.metadata.namespace == namespace):
        snapshot = replace(snapshot, queues=await _read_queues(client, namespace, failed))
    every = {each.uid for pod in snapshot.pods for each in pod.metadata.owner_references if each.controller}
    owners = every & workload.controller_uids
    told: list[Explanation] = []
    if ask is not None and snapshot.forbidden & REQUIRED_KINDS:
        told = [each for uid in sorted(owners)[:_OWNERS] for each in await ask(uid)]
    report = explain_workload(ClusterView(snapshot), workload, told)
    return msgspec.structs.replace(report, unread=snapshot.unread)


async def _pod(
    client: Client, clock: Clock, query: Query, namespace: str, read_queue: ReadQueue | None, *, joined: bool
) -> ExplanationReport:
    try:
        pod = await client.get(PODS, query.name, namespace)
    except NotFound as error:
        from tessera.explain.workloads import exhausted_quotas

        await _add_hints(client, query, namespace, error)
        for line in exhausted_quotas(await client.list_allowed(RESOURCE_QUOTAS, namespace, failed={}) or ()):
            error.add_note(f"Its creation may have been refused: {line}")
        raise
    from tessera.explain.pods import explain_pod, may_hold_several
    from tessera.explain.queue import is_queued

    failed: dict[str, str] = {}
    snapshot = await _read_cluster(client, clock, namespace, failed, pod)
    if is_queued(pod):
        snapshot = replace(snapshot, queues=await _read_queues(client, namespace, failed))
    if _waits(pod):
        snapshot = replace(snapshot, page=await _read_page(client, read_queue))
    snapshot = await _add_rollout(client, snapshot, pod, failed)
    if joined and may_hold_several(pod):
        snapshot = replace(snapshot, pages=await _read_agent(client, clock, snapshot, pod.spec.node_name))
    view = ClusterView(replace(snapshot, claims=await _read_claims(client, namespace, [pod], failed)))
    found = (explain_pod(view, pod),)
    return ExplanationReport(kind="pod", namespace=namespace, name=query.name, answers=found, unread=snapshot.unread)


async def _read_queues(client: Client, namespace: str, failed: dict[str, str]) -> "QueueReading | None":
    """What Kueue says of a namespace; None if it could not be read."""
    from tessera.kueue.positions import read_queues

    try:
        return await read_queues(client, namespace)
    except (ApiError, OSError) as error:
        note_unanswered("Kueue's queues", error, failed)
        return None


async def _read_claims(
    client: Client, namespace: str, about: Sequence[Pod], failed: dict[str, str]
) -> "ClaimObjects | None":
    """What decides on ResourceClaims; None, without a request, if no pod has claims."""
    if not any(each.spec.resource_claims for each in about):
        return None
    from tessera.explain.claim_objects import read_all_claim_objects

    return await read_all_claim_objects(client, namespace, failed)


async def _read_agent(client: Client, clock: Clock, snapshot: Snapshot, node: str) -> Sequence[NodeUsage]:
    """The page of a node's agent; none if it does not answer, or the user may not read it."""
    agents = [each for each in snapshot.pods if each.spec.node_name == node and is_agent(each)]
    with suppress(ApiError, OSError):
        return (await read_fleet(PageReader(client, clock), agents)).nodes
    return ()


async def _claim(
    client: Client, clock: Clock, query: Query, namespace: str, read_queue: ReadQueue | None
) -> ExplanationReport:
    from tessera.dra.claims import RESOURCE_CLAIMS
    from tessera.explain.claim_objects import read_all_claim_objects
    from tessera.explain.claims import explain_claim

    try:
        claim = await client.get(RESOURCE_CLAIMS, query.name, namespace)
    except NotFound as error:
        await _add_hints(client, query, namespace, error)
        raise
    failed: dict[str, str] = {}
    snapshot = await _read_cluster(client, clock, namespace, failed)
    claims = await read_all_claim_objects(client, namespace, failed)
    found = [*(each for each in claims.claims if each.metadata.uid != claim.metadata.uid), claim]
    page = None if claim.status.allocation is not None else await _read_page(client, read_queue)
    view = ClusterView(replace(snapshot, claims=replace(claims, claims=found), page=page))
    answers = (explain_claim(view, claim),)
    return ExplanationReport(
        kind="claim", namespace=namespace, name=query.name, answers=answers, unread=snapshot.unread
    )


def _waits(pod: Pod) -> bool:
    """True if the controller may list a pod as waiting; those with claims wait without a gate too."""
    by_claims = bool(pod.spec.resource_claims) and not pod.spec.node_name
    return by_claims or any(gate.name == GATE for gate in pod.spec.scheduling_gates)


async def _read_page(client: Client, read_queue: ReadQueue | None) -> "QueuePage | None":
    """The controller's queue, read after all else, so that it is no older; None if it cannot be read."""
    try:
        found = await read_queue(client) if read_queue is not None else None
    except (ApiError, OSError):
        return None
    return None if isinstance(found, str) else found


async def _add_rollout(client: Client, snapshot: Snapshot, pod: Pod, failed: dict[str, str]) -> Snapshot:
    """Adds the pod's ReplicaSet and Deployment, where an old pod of that may be in its way and the user may read it."""
    from tessera.explain.rollouts import old_pods, owner_of

    owner, namespace = owner_of(pod), pod.metadata.namespace
    if owner is None or pod.spec.node_name or not old_pods(snapshot.pods, pod):
        return snapshot
    try:
        mine = await client.get(REPLICASETS, owner.name, namespace)
        owners = [each.name for each in mine.metadata.owner_references if each.kind == "Deployment"]
        found = [await client.get(DEPLOYMENTS, name, namespace) for name in owners]
    except (ApiError, OSError) as error:
        if not isinstance(error, Forbidden | NotFound):
            note_unanswered("its Deployment", error, failed)
        return snapshot
    return replace(snapshot, replica_sets=(mine,), deployments=found)


async def explain_queue(client: Client, clock: Clock, pod: Pod) -> Explanation | None:
    """Explains a pod that Kueue holds with the rights of one namespace; ``None`` if Kueue says nothing about it."""
    from tessera.explain.queue import count_group, explain_held_pod
    from tessera.kueue.positions import read_queues

    namespace = pod.metadata.namespace
    of_pod = f"involvedObject.uid={pod.metadata.uid}"
    pods, events = await asyncio.gather(
        client.list_allowed(PODS, namespace, failed=None),
        client.list_allowed(EVENTS, namespace, field_selector=of_pod, failed=None),
    )
    reading = await read_queues(client, namespace)
    return explain_held_pod(reading, pod, count_group(pods or (), pod), events or (), clock.now())


async def _add_hints(client: Client, query: Query, namespace: str, error: NotFound) -> None:
    """Adds notes to the error: a missing namespace, a node of that name, a similar name."""
    from tessera.dra.claims import RESOURCE_CLAIMS

    try:
        await client.get(NAMESPACES, namespace)
    except NotFound:
        every = await client.list_allowed(NAMESPACES, failed={}) or ()
        error.add_note(
            f'There is no namespace "{namespace}"{_suggest_name(namespace, (n.metadata.name for n in every))}'
        )
        return
    except ApiError:
        pass
    if query.kind == "pod":
        nodes = await client.list_allowed(NODES, field_selector=f"metadata.name={query.name}", failed={})
        if any(node.metadata.name == query.name for node in nodes or ()):
            error.add_note(f"There is a node of that name: tessera why node/{query.name}")
            return
    kinds: dict[str, Resource[Any]] = {"pod": PODS, "claim": RESOURCE_CLAIMS, **_WORKLOADS}
    plural = kinds[query.kind]
    found = await client.list_allowed(plural, namespace, failed={})
    meant = _suggest_name(query.name, (item.metadata.name for item in found or ()))
    if meant:
        error.add_note(f"Namespace {namespace} has none of that name{meant}")


def _suggest_name(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name[:253], list(known)[:NAMES_COMPARED], n=1, cutoff=0.7)
    return f"; did you mean {close[0]}?" if close else ""


async def _node(client: Client, clock: Clock, name: str) -> ExplanationReport:
    from tessera.explain.nodes import explain_node

    failed: dict[str, str] = {}
    node, history, pods, events = await asyncio.gather(
        client.get(NODES, name),
        _history(client, failed),
        client.list_allowed(PODS, field_selector=f"spec.nodeName={name}", failed=failed),
        client.list_allowed(EVENTS, NODE_EVENTS, field_selector=f"involvedObject.name={name}", failed=failed),
    )
    forbidden = {plural for plural, found in ((PODS.plural, pods), (EVENTS.plural, events)) if found is None}
    # The explanation of a node does not use the controller's state.
    forbidden.add(INSTASLICES.plural)
    snapshot = Snapshot(
        now=clock.now(),
        pods=pods or (),
        nodes=[node],
        events=events or (),
        history=history,
        forbidden=frozenset(forbidden),
        failed=failed,
        unanswered=await _ask_agent(client, clock, pods or ()),
    )
    answers = (explain_node(ClusterView(snapshot), node),)
    return ExplanationReport(kind="node", namespace="", name=name, answers=answers, unread=snapshot.unread)


async def _ask_agent(client: Client, clock: Clock, pods: Sequence[Pod]) -> Sequence[SilentNode]:
    """The node, if its agent is ready and does not answer, as during a reboot; none if the user may not ask it."""
    agents = [each for each in pods if is_agent(each) and each.status.is_ready]
    with suppress(ApiError, OSError):
        return (await read_fleet(PageReader(client, clock), agents)).failures
    return ()


async def _history(client: Client, failed: dict[str, str]) -> "Sequence[ProvisioningRecord]":
    """Records of nodes that came up; none if there are none or the user may not read them."""
    from tessera.provisioning.history import RECORDS_KEY, RECORDS_NAME, ProvisioningHistory

    try:
        found = await client.get(CONFIGMAPS, RECORDS_NAME, SYSTEM_NAMESPACE)
    except (ApiError, OSError) as error:
        if not isinstance(error, Forbidden | NotFound):
            note_unanswered("records of nodes that came up", error, failed)
        return ()
    history = ProvisioningHistory()
    history.load({RECORDS_KEY: found.data.get(RECORDS_KEY, "")})
    return history.nodes.values()


# The cluster


async def _read_cluster(
    client: Client, clock: Clock, namespace: str, failed: dict[str, str], pod: Pod | None = None
) -> Snapshot:
    """The snapshot of all that the user may read; ``pod`` is the pod in question, if there is one.

    What the API server does not answer goes to ``failed``, also what is read later.
    """
    from tessera.explain.order_objects import read_order_lists, read_order_objects

    about = None if pod is None else f"involvedObject.uid={pod.metadata.uid}"
    # What a pod on its node still meets is on that node.
    node = pod.spec.node_name if pod is not None else ""
    named = f"metadata.name={node}" if node else None
    objects, lists = await asyncio.gather(
        asyncio.gather(
            _list_pods(client, node, failed),
            client.list_allowed(NODES, field_selector=named, failed=failed),
            client.list_allowed(
                INSTASLICES, INSTASLICE_NAMESPACE, field_selector=named, failed=failed, missing=KIND_MISSING
            ),
            client.list_allowed(LEASES, field_selector=f"metadata.name={LEASE}", failed=failed),
            client.list_allowed(EVENTS, namespace, field_selector=about, failed=failed),
            client.list_allowed(RESOURCE_QUOTAS, namespace, failed=failed),
        ),
        read_order_lists(client, failed),
    )
    pods, nodes, instaslices, leases, events, quotas = objects
    if failed.get(INSTASLICES.plural) == KIND_MISSING and not any(map(has_traces, nodes or ())):
        del failed[INSTASLICES.plural]
        instaslices = ()
    kinds: Sequence[Resource[Any]] = (PODS, NODES, INSTASLICES, LEASES, EVENTS, RESOURCE_QUOTAS)
    listed = (pods, nodes, instaslices, leases, events, quotas)
    forbidden = {kind.plural for kind, found in zip(kinds, listed, strict=True) if found is None}
    if pods is None:
        pods = await client.list_allowed(PODS, namespace, failed=failed)
    listed_pods = pods or ()
    order = await read_order_objects(client, listed_pods, lists, failed)
    return Snapshot(
        now=clock.now(),
        pods=listed_pods if pod is None else _add_pod(listed_pods, pod),
        nodes=nodes or (),
        instaslices=instaslices or (),
        leases=leases or (),
        events=events or (),
        quotas=quotas or (),
        forbidden=frozenset(forbidden),
        failed=failed,
        order=order,
    )


async def _list_pods(client: Client, node: str, failed: dict[str, str]) -> Sequence[Pod] | None:
    """All pods, or those of a node and Tessera's own; None if they could not all be listed."""
    if not node:
        return await client.list_allowed(PODS, failed=failed)
    there, own = await asyncio.gather(
        client.list_allowed(PODS, field_selector=f"spec.nodeName={node}", failed=failed),
        client.list_allowed(PODS, SYSTEM_NAMESPACE, failed=failed),
    )
    if there is None or own is None:
        return None
    return list({each.metadata.uid: each for each in (*there, *own)}.values())


def _add_pod(pods: Sequence[Pod], pod: Pod) -> Sequence[Pod]:
    """The pods with this one as it was read alone, even if it came or went between the two reads."""
    return [each for each in pods if each.metadata.uid != pod.metadata.uid] + [pod]


# Workloads


async def _workload(client: Client, query: Query, namespace: str) -> "WorkloadState":
    from tessera.explain.workloads import DEFAULT_REPLICAS, WorkloadState, cron_job, daemon_set, job

    if query.kind == "job":
        return job(await client.get(JOBS, query.name, namespace))
    if query.kind == "cronjob":
        found = await client.get(CRONJOBS, query.name, namespace)
        jobs = (await client.list(JOBS, namespace)).items
        return cron_job(found, [each for each in jobs if _is_owned(each, found.metadata.uid)])
    if query.kind == "daemonset":
        return daemon_set(await client.get(DAEMONSETS, query.name, namespace))
    item = await client.get(_WORKLOADS[query.kind], query.name, namespace)
    replica_sets: list[ReplicaSet] = []
    if query.kind == "deployment":
        every = (await client.list(REPLICASETS, namespace)).items
        replica_sets = [each for each in every if _is_owned(each, item.metadata.uid)]
    replicas = item.spec.replicas
    return WorkloadState(
        kind=query.kind,
        namespace=namespace,
        name=query.name,
        controller_uids=frozenset({item.metadata.uid, *(each.metadata.uid for each in replica_sets)}),
        desired=DEFAULT_REPLICAS if replicas is None else replicas,
        keeps_old=query.kind == "deployment" and item.keeps_old_pods,
        conditions=(*_conditions(replica_sets), *item.status.conditions),
    )


def _is_owned(item: ReplicaSet | Job, uid: str) -> bool:
    return any(owner.controller and owner.uid == uid for owner in item.metadata.owner_references)


def _conditions(replica_sets: Sequence[ReplicaSet]) -> list[Condition]:
    return [condition for each in replica_sets if each.spec.replicas for condition in each.status.conditions]
