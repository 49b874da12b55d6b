"""Removes Tessera's gate and the agents' condition from pods, and tells those that wait for slices that none come.

A gated pod is told before its gate goes: first by an Event of a fixed name, then by a condition. So a removal that was
interrupted tells everybody, and nobody twice. Without the gate kube-scheduler decides about the pod. By then no node
offers slices any more, so it stays Pending with the scheduler's own reason, as in a cluster that never had Tessera. A
pod that has a place already keeps its node selector, which Kubernetes lets nobody change then.
"""

import hashlib
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from tessera.api.names import (
    GATE,
    GPU_CONDITION,
    MIG_RESOURCE_PREFIX,
    POD_HEALTH_MANAGER,
    QUOTA_RESOURCE,
    SLICE_CONDITION,
)
from tessera.cli.uninstall.results import Done, Result
from tessera.clock import Clock, rfc3339
from tessera.kube.client.client import Client
from tessera.kube.client.errors import AlreadyExists, Conflict, NotFound
from tessera.kube.resources import EVENTS, PODS, Pod

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
    return any(each.startswith(MIG_RESOURCE_PREFIX) for each in _resources(pod))


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
