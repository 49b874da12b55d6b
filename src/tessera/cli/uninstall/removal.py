"""Removes Tessera from a cluster, in an order in which an interruption at any point does no harm.

1. The webhook's configuration: no pod is gated any more, and pods are created as if Tessera had never been there. And
   the policy that lets only the controller remove gates; it names the account of Helm's Job, which may.
2. The controller: nothing is promised any more.
3. Each agent leaves its node: pods get no device any more, unused slices go, files go. Running pods keep theirs.
4. Gates of pods, now that no node offers slices.
5. Drivers that Tessera installed, from nodes on which no pod uses cards.
6. Agents, MPS hosts and webhook.
7. Tessera's labels, annotations, conditions and amounts on Nodes. The request of step 3 is one of them; until then an
   agent that starts again knows that it must not begin.
8. What an installation took over from NVIDIA's programs goes back to them.
9. All other objects, namespaces, and definitions last.

Each step looks at the cluster and does what is left to do. So the same command continues after an interruption, and a
second one has nothing to do.

A driver container that ends unloads its modules, and its files vanish from running pods. So a node with pods that use
cards keeps its driver, with the DaemonSet, the account and the namespace of its pod, until the command runs again. A
node's driver pod ends when the node loses its label of the driver set.

Pods lose Tessera's gate and the agents' condition, and those that wait for slices are told that none come. A gated pod
is told before its gate goes: first by an Event of a fixed name, then by a condition. So a removal that was interrupted
tells everybody, and nobody twice. Without the gate kube-scheduler decides about the pod. By then no node offers slices
any more, so it stays Pending with the scheduler's own reason, as in a cluster that never had Tessera. A pod that has a
place already keeps its node selector, which Kubernetes lets nobody change then.
"""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tessera.api.names import (
    GATE,
    GPU_CONDITION,
    INSTASLICE_NAMESPACE,
    MIG_RESOURCE_PREFIX,
    POD_HEALTH_MANAGER,
    QUOTA_RESOURCE,
    SLICE_CONDITION,
    SYSTEM_NAMESPACE,
)
from tessera.api.nodes.node_marks import DRIVER_APP, DRIVER_SET_LABEL, TOOLKIT_APP, RemovalRequest
from tessera.cli.install.adoption import STOPPED_KEY, restore_patch
from tessera.cli.install.manifests import AGENT, CONTROLLER, MPS_HOST, WEBHOOK
from tessera.cli.install.ownership import get_object, list_objects
from tessera.cli.uninstall.nodes import Done, Left, Result, ask_agents, clean_nodes, wait_for_agents
from tessera.cli.uninstall.objects import (
    InstalledObject,
    delete_definitions,
    delete_namespaces,
    delete_object,
    delete_objects,
)
from tessera.clock import Clock, rfc3339
from tessera.gpu_operator.assignment import CLUSTER_POLICIES
from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, Conflict, NotFound
from tessera.kube.resources import DAEMONSETS, DEPLOYMENTS, EVENTS, MUTATING_WEBHOOKS, NAMESPACES, NODES, PODS, Pod
from tessera.kube.resources.meta import Resource, resource_for

REASON = "TesseraRemoved"
_GATED = (
    "Tessera is removed from this cluster: nobody makes slices for this pod any more. Its scheduling gate is removed."
    " It starts if another provider offers its resources; else delete it."
)
_GATED_CARDS = (
    "Tessera is removed from this cluster. Its scheduling gate is removed: kube-scheduler places this pod now, in its"
    " own order."
)
_PINNED = (
    "Tessera is removed from this cluster before this pod had started: its slices may not exist. If it does not start,"
    " delete it; its owner makes another one."
)
#: Field manager of the condition: the controller's, so that the condition of an earlier promise is replaced.
_CONDITION_MANAGER = "tessera-instaslices"


async def release_pods(client: Client, clock: Clock, *, dry: bool) -> AsyncIterator[Result]:
    """Tells the pods that wait for slices, and removes the gate from those that have it."""
    for pod in (await client.list(PODS)).items:
        where = f"pod/{pod.metadata.name} in {pod.metadata.namespace}"
        if any(each.name == GATE for each in pod.spec.scheduling_gates):
            if not dry:
                if not _is_told(pod):
                    await _tell(client, clock, pod, _GATED if _asks_for_slices(pod) else _GATED_CARDS)
                await _ungate(client, pod)
            yield Done(where, "ungated")
        elif _waits_for_slices(pod) and not _is_told(pod):
            if not dry:
                await _tell(client, clock, pod, _PINNED)
            yield Done(where, "told")
        if pod.status.condition(GPU_CONDITION) is not None:
            if not dry:
                await _forget_health(client, pod)
            yield Done(where, "cleaned")


def _waits_for_slices(pod: Pod) -> bool:
    """True for a pod that was given a place and has not started."""
    if pod.status.phase != "Pending" or not _asks_for_slices(pod):
        return False
    return QUOTA_RESOURCE in _resources(pod) and pod.metadata.deletion_timestamp is None


def _asks_for_slices(pod: Pod) -> bool:
    return bool(pod.spec.resource_claims) or any(each.startswith(MIG_RESOURCE_PREFIX) for each in _resources(pod))


def _is_told(pod: Pod) -> bool:
    return any(each.type == SLICE_CONDITION and each.reason == REASON for each in pod.status.conditions)


def _resources(pod: Pod) -> set[str]:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return {name for each in containers for name in each.resources.limits}


async def _tell(client: Client, clock: Clock, pod: Pod, text: str) -> None:
    meta = pod.metadata
    now = rfc3339(clock.now())
    condition = {
        "type": SLICE_CONDITION,
        "status": "False",
        "reason": REASON,
        "message": text,
        "lastTransitionTime": now,
    }
    body = {"metadata": {"uid": meta.uid}, "status": {"conditions": [condition]}}
    event: dict[str, Any] = {
        "metadata": {"name": f"{meta.name[:200]}.{hashlib.sha256(f'{meta.uid} {text}'.encode()).hexdigest()[:16]}"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": meta.namespace,
            "name": meta.name,
            "uid": meta.uid,
        },
        "reason": REASON,
        "message": text,
        "type": "Warning",
        "source": {"component": client.field_manager},
        "reportingComponent": client.field_manager,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
    try:
        await client.get(EVENTS.as_dicts(), event["metadata"]["name"], meta.namespace)
    except NotFound:
        with suppress(AlreadyExists, NotFound):
            await client.create(EVENTS.as_dicts(), event, meta.namespace)
    with suppress(NotFound, Conflict):
        await client.with_field_manager(_CONDITION_MANAGER).apply(
            PODS, meta.name, body, meta.namespace, subresource="status"
        )


async def _forget_health(client: Client, pod: Pod) -> None:
    """Removes what the node's agent said of the pod's card: nobody would take it back."""
    meta = pod.metadata
    body = {"metadata": {"uid": meta.uid}, "status": {"conditions": []}}
    with suppress(NotFound, Conflict):
        await client.with_field_manager(POD_HEALTH_MANAGER).apply(
            PODS, meta.name, body, meta.namespace, subresource="status"
        )


async def _ungate(client: Client, pod: Pod) -> None:
    """Removes our gate and no other; tries again if others change the pod."""
    meta = pod.metadata
    with suppress(NotFound):
        while True:
            gates: list[dict[str, Any]] = [
                {"name": each.name} for each in pod.spec.scheduling_gates if each.name != GATE
            ]
            if len(gates) == len(pod.spec.scheduling_gates):
                return
            patch = {"spec": {"schedulingGates": gates or None}}
            try:
                await client.merge_patch(
                    PODS, meta.name, patch, meta.namespace, uid=meta.uid, resource_version=meta.resource_version
                )
            except Conflict:
                pod = await client.get(PODS, meta.name, meta.namespace)
                if pod.metadata.uid != meta.uid:
                    return
                meta = pod.metadata
            else:
                return


#: Pods that a reason names.
_SHOWN = 3


async def remove_drivers(client: Client, *, dry: bool) -> AsyncIterator[Result]:
    """Removes the drivers from unused nodes, and the DaemonSets that no node needs any more."""
    labelled = [each for each in (await client.list(NODES)).items if each.metadata.labels.get(DRIVER_SET_LABEL)]
    users = await _users(client) if labelled else {}
    needed: set[str] = set()
    for node in labelled:
        meta = node.metadata
        if pods := users.get(meta.name):
            needed.add(meta.labels[DRIVER_SET_LABEL])
            named = ", ".join(pods[:_SHOWN]) + (f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else "")
            yield Left(
                f"node/{meta.name}",
                f"keeps its driver while pods use its cards: {named}; when they have ended, run the command again",
            )
            continue
        if not dry:
            try:
                await client.merge_patch(
                    NODES, meta.name, {"metadata": {"labels": {DRIVER_SET_LABEL: None}}}, uid=meta.uid
                )
            except (NotFound, Conflict):
                continue
        yield Done(f"node/{meta.name}", "driver removed")
    for each in (await client.list(DAEMONSETS, SYSTEM_NAMESPACE)).items:
        app = each.metadata.labels.get("app.kubernetes.io/name")
        unused = app == DRIVER_APP and each.metadata.labels.get(DRIVER_SET_LABEL) not in needed
        if unused or (app == TOOLKIT_APP and not needed):
            if not dry:
                try:
                    await client.delete(DAEMONSETS, each.metadata.name, SYSTEM_NAMESPACE, propagation="Background")
                except NotFound:
                    continue
            yield Done(f"daemonset.apps/{each.metadata.name} in {SYSTEM_NAMESPACE}", "deleted")


async def _users(client: Client) -> Mapping[str, list[str]]:
    """The pods that have cards, by node."""
    found: dict[str, list[str]] = {}
    for pod in (await client.list(PODS)).items:
        if pod.spec.node_name and pod.status.phase not in {"Succeeded", "Failed"} and _has_cards(pod):
            found.setdefault(pod.spec.node_name, []).append(f"{pod.metadata.namespace}/{pod.metadata.name}")
    return found


def _has_cards(pod: Pod) -> bool:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return any(name.startswith("nvidia.com/") for each in containers for name in each.resources.limits)


async def give_back(client: Client, *, dry: bool) -> AsyncIterator[Result]:
    """Gives nodes back to NVIDIA's programs that ``tessera install --adopt`` stopped; yields what changes.

    The labels ``nvidia.com/gpu.deploy.*`` are Tessera's fields of the Node, so they go with the others. NVIDIA's
    operator sets missing ones to true, and its pods come back. This does the rest: the ClusterPolicy and DaemonSets.
    """
    for policy in await list_objects(client, CLUSTER_POLICIES):
        metadata = policy["metadata"]
        if patch := restore_patch(policy):
            if not dry:
                with suppress(NotFound):
                    version = metadata["resourceVersion"]
                    await client.merge_patch(CLUSTER_POLICIES, metadata["name"], patch, resource_version=version)
            yield Done(f"clusterpolicy.nvidia.com/{metadata['name']}", "given back")
    for item in (await client.list(DAEMONSETS.as_dicts())).items:
        metadata = item["metadata"]
        if STOPPED_KEY in (item["spec"]["template"]["spec"].get("nodeSelector") or {}):
            if not dry:
                patch = {"spec": {"template": {"spec": {"nodeSelector": {STOPPED_KEY: None}}}}}
                with suppress(NotFound):
                    await client.merge_patch(DAEMONSETS, metadata["name"], patch, metadata["namespace"])
            yield Done(f"daemonset.apps/{metadata['name']} in {metadata['namespace']}", "given back")


#: Of admission policies.
_BINDINGS = resource_for(
    {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {}}
)
#: Seconds between two looks at pods or namespaces that end.
_PAUSE = 1.0
#: Seconds that pods and namespaces may take to end.
_END_TIMEOUT = 120.0


class RemovalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of a removal.

    Attributes:
        keep_slices: unused GPU instances that Tessera made stay on the cards.
        keep_crds: definitions of kinds stay.
        force: go on without agents that do not leave in time.
        timeout: seconds for the agents.
        from_hook: Helm deletes the objects of the manifests, and keeps the definitions.
        dry: change nothing, and wait for nothing.
    """

    keep_slices: bool = False
    keep_crds: bool = False
    force: bool = False
    timeout: float = 300.0
    from_hook: bool = False
    dry: bool = False


async def remove_all(client: Client, clock: Clock, options: RemovalOptions) -> AsyncIterator[Result]:
    """Removes everything; yields what was done, or what a dry run would do, and what stays.

    Raises:
        Unfinished: an agent has not left its node in time.
        ApiError: the server refused a request; what was yielded is done.
    """
    deleted: set[str] = set()
    async for each in _steps(client, clock, options):
        if isinstance(each, Done) and each.result == "deleted":
            if each.name in deleted:  # in a dry run a later step finds it again
                continue
            deleted.add(each.name)
        yield each


async def _steps(client: Client, clock: Clock, options: RemovalOptions) -> AsyncIterator[Result]:
    dry = options.dry
    if done := await delete_object(client, InstalledObject(MUTATING_WEBHOOKS.as_dicts(), WEBHOOK), dry=dry):
        yield done
    if not options.from_hook and (
        done := await delete_object(client, InstalledObject(_BINDINGS, "tessera-pins"), dry=dry)
    ):
        yield done
    async for each in _end_workloads(client, clock, [(DEPLOYMENTS, CONTROLLER)], dry=dry):
        yield each
    request = RemovalRequest.KEEP if options.keep_slices else RemovalRequest.DESTROY
    async for each in ask_agents(client, request, dry=dry):
        yield each
    if not dry:
        async for each in wait_for_agents(client, clock, seconds=options.timeout, force=options.force):
            yield each
    async for each in release_pods(client, clock, dry=dry):
        yield each
    drivers_stay = False
    async for each in remove_drivers(client, dry=dry):
        drivers_stay |= isinstance(each, Left)
        yield each
    workloads: list[tuple[Resource[Any], str]] = [(DAEMONSETS, AGENT), (DAEMONSETS, MPS_HOST), (DEPLOYMENTS, WEBHOOK)]
    async for each in _end_workloads(client, clock, workloads, dry=dry):
        yield each
    async for each in clean_nodes(client, keep=(DRIVER_SET_LABEL,) if drivers_stay else (), dry=dry):
        yield each
    if not dry:  # pods that were gated by a review that was under way
        async for each in release_pods(client, clock, dry=dry):
            yield each
    if not options.from_hook:  # a chart takes nothing over
        async for each in give_back(client, dry=dry):
            yield each
    async for each in _delete_rest(client, clock, options, drivers_stay=drivers_stay):
        yield each


async def _delete_rest(
    client: Client, clock: Clock, options: RemovalOptions, *, drivers_stay: bool
) -> AsyncIterator[Result]:
    dry, own = options.dry, not options.from_hook
    async for each in delete_objects(client, drivers_stay=drivers_stay, own=own, dry=dry):
        yield each
    async for each in delete_namespaces(client, drivers_stay=drivers_stay, own=own, dry=dry):
        yield each
    if own and not dry:
        gone = [INSTASLICE_NAMESPACE] if drivers_stay else [SYSTEM_NAMESPACE, INSTASLICE_NAMESPACE]
        async for each in _wait_for_namespaces(client, clock, gone):
            yield each
    if own and not options.keep_crds:
        async for each in delete_definitions(client, dry=dry):
            yield each


async def _end_workloads(
    client: Client, clock: Clock, workloads: Sequence[tuple[Resource[Any], str]], *, dry: bool
) -> AsyncIterator[Result]:
    """Deletes workloads, and waits until their pods on nodes that work are gone."""
    for resource, name in workloads:
        found = InstalledObject(resource.as_dicts(), name, SYSTEM_NAMESPACE)
        if done := await delete_object(client, found, dry=dry):
            yield done
    if dry:
        return
    for _, name in workloads:
        deadline = clock.monotonic() + _END_TIMEOUT
        while pods := await _end_lost_pods(client, name):
            if clock.monotonic() >= deadline:
                yield Left(f"pod/{pods[0]} in {SYSTEM_NAMESPACE}", "has not ended; look at it with kubectl describe")
                break
            await clock.sleep(_PAUSE)


async def _end_lost_pods(client: Client, app: str) -> list[str]:
    """Deletes a workload's pods on nodes that do not work, where no kubelet would; returns the others."""
    pods = (await client.list(PODS, SYSTEM_NAMESPACE, label_selector=f"app.kubernetes.io/name={app}")).items
    if not pods:
        return []
    working = {each.metadata.name for each in (await client.list(NODES)).items if each.status.is_ready}
    ending: list[str] = []
    for each in pods:
        if not each.spec.node_name or each.spec.node_name in working:
            ending.append(each.metadata.name)
        else:
            with suppress(NotFound, Conflict):
                await client.delete(PODS, each.metadata.name, SYSTEM_NAMESPACE, uid=each.metadata.uid, grace_seconds=0)
    return ending


async def _wait_for_namespaces(client: Client, clock: Clock, names: Sequence[str]) -> AsyncIterator[Result]:
    """Waits until namespaces that are being deleted are gone."""
    deadline = clock.monotonic() + _END_TIMEOUT
    for name in names:
        while True:
            found = await get_object(client, NAMESPACES.as_dicts(), name, None)
            if found is None or not found["metadata"].get("deletionTimestamp"):
                break
            if clock.monotonic() >= deadline:
                yield Left(
                    f"namespace/{name}", "is being deleted; kubectl get namespace -o yaml says what is in its way"
                )
                break
            await clock.sleep(_PAUSE)
