"""Binds pods to nodes: reads events, writes bindings, conditions and events.

The scheduler does not poll. A change of a node or pod updates :mod:`state.node_cache` and wakes the loop, which decides
every waiting pod in one round; a decided pod counts on its node at once, and the scheduler writes its binding during
the next decisions. If a binding fails, it undoes the decision and decides the pod again after a pause.

A :class:`SchedulingQueue` has the pods to schedule: the highest priority first, among equals the oldest.

The queue sets aside a pod that no node can take, and retries it after an event that may help: a node appears or
changes, a pod leaves, the pod itself changes. Time alone retries nothing. No I/O.
"""

import asyncio
import heapq
import logging
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tessera.clock import Clock, parse_rfc3339, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import EventKind, WatchEvent
from tessera.kube.resources import NAMESPACES, NODES, PODS
from tessera.kube.resources.meta import key_of, split_key, uid_of
from tessera.kube.retries import Backoff
from tessera_lab.scheduler.claim_binding import ClaimBinder, ClaimBindingError, VolumeBinder
from tessera_lab.scheduler.decision import NodeChoice, Unschedulable, decide
from tessera_lab.scheduler.filters.claims import AllocatorError, AllocatorTimeoutError, concerns_claims, missing_claims
from tessera_lab.scheduler.preemption import Preemption, Victims, preempt
from tessera_lab.scheduler.state.claim_cache import claim_names
from tessera_lab.scheduler.state.node_cache import CachedPod, NodeCache, build_pod_info
from tessera_lab.simulation.supervision import LabInformer, describe_error


class SchedulingQueue:
    """Pods to decide and pods set aside, by UID. A pod is in at most one of the two sets."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str, str]] = []
        self._active: dict[str, CachedPod] = {}
        self._aside: dict[str, CachedPod] = {}

    def __len__(self) -> int:
        """Number of pods that wait for a decision."""
        return len(self._active)

    @property
    def set_aside(self) -> int:
        """Number of pods that wait for a change of the cluster."""
        return len(self._aside)

    def add(self, pod: CachedPod) -> None:
        """Queues the pod, in its present form, for a decision."""
        self._aside.pop(pod.uid, None)
        self._active[pod.uid] = pod
        heapq.heappush(self._heap, (-pod.priority, pod.created, pod.key, pod.uid))

    def put_back(self, pod: CachedPod) -> None:
        """Sets aside a pod that no node can take now."""
        self._aside[pod.uid] = pod

    def remove(self, uid: str) -> None:
        """Removes a pod that is gone or placed."""
        self._active.pop(uid, None)
        self._aside.pop(uid, None)

    def retry_all(self, chosen: Callable[[CachedPod], bool] = lambda _: True) -> None:
        """Queues the pods set aside again, after a change that may help those that are chosen."""
        for pod in [each for each in self._aside.values() if chosen(each)]:
            self.add(pod)

    def pop(self) -> CachedPod | None:
        """Removes and returns the next pod to decide, or None."""
        while self._heap:
            uid = heapq.heappop(self._heap)[3]
            pod = self._active.pop(uid, None)
            if pod is not None:
                return pod
        return None


Json = dict[str, Any]

_log = logging.getLogger(__name__)

#: The ``schedulerName`` of this scheduler.
NAME = "default-scheduler"


#: Why a pod with scheduling gates waits, in Kubernetes' words.
GATED = "Scheduling is blocked due to non-empty scheduling gates"

#: In one search of devices, in which no other pod is decided: the default ``filterTimeout`` of DynamicResourcesArgs.
FILTER_TIMEOUT_SECONDS = 10.0

#: Bindings and conditions written at the same time.
_WRITERS = 32


class Scheduler:
    """kube-scheduler's part of the lab.

    Args:
        client: who binds.
        clock: for conditions and pauses.
        rng: for jitter.
        name: the ``schedulerName`` of the pods that are its business.
        taint_rules: the server has DeviceTaintRules.

    Attributes:
        cluster: what it knows of nodes and placed pods; read only.
    """

    def __init__(
        self, client: Client, *, clock: Clock, rng: random.Random, name: str = NAME, taint_rules: bool = False
    ) -> None:
        self.cluster = NodeCache()
        self._client = client
        self._clock = clock
        self._rng = rng
        self._name = name
        self._queue = SchedulingQueue()
        self._wake = asyncio.Event()
        self._tasks: asyncio.TaskGroup | None = None
        self._backoffs: dict[str, Backoff] = {}
        self._writers = asyncio.Semaphore(_WRITERS)
        self._events = EventRecorder(client, component=name, clock=clock, rng=rng, capacity=10_000)
        self._pods = LabInformer(client, PODS.as_dicts(), clock=clock, rng=rng)
        self._nodes = LabInformer(client, NODES.as_dicts(), clock=clock, rng=rng)
        self._namespaces = LabInformer(client, NAMESPACES.as_dicts(), clock=clock, rng=rng)
        self._victims = Victims(client, self._events, clock=clock, rng=rng, name=name)
        self._binder = VolumeBinder(client, self.cluster.storage, self._request_retry, clock=clock, rng=rng)
        self._claims = ClaimBinder(
            client, self.cluster.claims, self._retry_claiming, clock=clock, taint_rules=taint_rules
        )
        self._pods.add_handler(self._on_pod)
        self._nodes.add_handler(self._on_node)
        self._namespaces.add_handler(self._on_namespace)

    async def run(self) -> None:
        """Schedules until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._tasks = group
            own = (self._pods, self._nodes, self._namespaces)
            informers = (*own, *self._binder.informers, *self._claims.informers, *self._victims.informers)
            for part in (self._events.run(), *(each.run() for each in informers)):
                group.create_task(part)
            for informer in informers:
                await informer.wait_synced()
            self._wake.set()
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._decide_all(group)

    # Events in

    def _on_node(self, event: WatchEvent[Json]) -> None:
        node = event.object
        name = node["metadata"]["name"]
        if event.kind is EventKind.DELETED:
            self.cluster.remove_node(name)
            return
        status = node.get("status") or {}
        labels = node["metadata"].get("labels") or {}
        if self.cluster.set_node(name, labels, node.get("spec") or {}, status.get("allocatable") or {}):
            self._request_retry()
        self.cluster.set_images(name, status.get("images") or ())

    def _on_namespace(self, event: WatchEvent[Json]) -> None:
        metadata = event.object["metadata"]
        if event.kind is EventKind.DELETED:
            self.cluster.namespaces.pop(metadata["name"], None)
        elif self.cluster.namespaces.get(metadata["name"]) != (labels := metadata.get("labels") or {}):
            self.cluster.namespaces[metadata["name"]] = labels
            self._request_retry()

    def _on_pod(self, event: WatchEvent[Json]) -> None:
        pod = event.object
        spec, uid = pod["spec"], uid_of(pod)
        phase = (pod.get("status") or {}).get("phase")
        if event.kind is EventKind.DELETED or phase in {"Succeeded", "Failed"}:
            self._queue.remove(uid)
            self._backoffs.pop(uid, None)
            self._nominate(uid, "")
            if self.cluster.remove_pod(uid):
                self._request_retry()
        elif spec.get("nodeName"):
            self._queue.remove(uid)
            self._nominate(uid, "")
            self._on_placed(pod)
        elif self._is_ours(pod) and not self.cluster.is_placed(uid):
            self._on_waiting(event)

    def _on_placed(self, pod: Json) -> None:
        """A pod has its node; later its labels may change, and it may be deleted."""
        known = self.cluster.find_placed(uid_of(pod))
        metadata = pod["metadata"]
        facts = (metadata.get("labels") or {}, bool(metadata.get("deletionTimestamp")))
        if known is None or (known.labels, known.terminating) != facts:
            self.cluster.place(_needs(pod), pod["spec"]["nodeName"])
            self._request_retry()

    def _nominate(self, uid: str, node: str) -> None:
        if self.cluster.nomination(uid) is not None and not node:
            self.cluster.nominate(uid, None)
            self._request_retry()

    def _on_waiting(self, event: WatchEvent[Json]) -> None:
        """A pod without a node was made or changed; its status alone is no reason to decide again."""
        pod = event.object
        if pod["spec"].get("schedulingGates"):
            self._queue.remove(uid_of(pod))
            self._note_gate(pod)
        elif event.old is None or event.old["spec"] != pod["spec"] or claim_names(event.old) != claim_names(pod):
            self._queue.add(_needs(pod))
            self._wake.set()

    def _note_gate(self, pod: Json) -> None:
        """Says why a gated pod waits, where the API server has not said so when the pod was made."""
        conditions = (pod.get("status") or {}).get("conditions") or ()
        if self._tasks is not None and not any(each["type"] == "PodScheduled" for each in conditions):
            self._tasks.create_task(self._write_condition(_needs(pod), "SchedulingGated", GATED))

    def _is_ours(self, pod: Json) -> bool:
        scheduler = pod["spec"].get("schedulerName") or NAME
        return scheduler == self._name and not pod["metadata"].get("deletionTimestamp")

    def _request_retry(self) -> None:
        if self._queue.set_aside:
            self._queue.retry_all()
            self._wake.set()

    def _retry_claiming(self) -> None:
        """An object of ``resource.k8s.io`` changed."""
        if self._queue.set_aside:
            self._queue.retry_all(lambda pod: concerns_claims(pod, self.cluster.claims))
            self._wake.set()

    # Decisions

    async def _decide_all(self, group: asyncio.TaskGroup) -> None:
        while (pod := self._queue.pop()) is not None:
            if missing_claims(pod, self.cluster.claims):
                self._queue.put_back(pod)  # as in Kubernetes it does not enter the queue, and nothing says so
                continue
            try:
                answer = decide(pod, self.cluster)
            except AllocatorError as error:
                self._queue.put_back(pod)
                self._record_event(pod, str(error))
                group.create_task(self._write_condition(pod, "SchedulerError", str(error)))
                if isinstance(error, AllocatorTimeoutError):
                    group.create_task(self._retry_after_pause(pod))
                    await self._clock.sleep(FILTER_TIMEOUT_SECONDS)
                continue
            except Exception as error:  # noqa: BLE001 - one pod's error, whatever it is, must not stop the others
                _log.exception("pod %s cannot be decided", pod.key)
                self._queue.put_back(pod)
                group.create_task(self._write_condition(pod, "SchedulerError", describe_error(error)))
                continue
            match answer:
                case NodeChoice():
                    self.cluster.place(pod, answer.node)
                    self._claims.assume(answer.claims)
                    group.create_task(self._bind(pod, answer))
                case Unschedulable():
                    self._queue.put_back(pod)
                    self._refuse(pod, answer, group)

    def _refuse(self, pod: CachedPod, answer: Unschedulable, group: asyncio.TaskGroup) -> None:
        """No node can take the pod; perhaps one can once less important pods have ended."""
        budgets = self._victims.budgets
        found = preempt(pod, self.cluster, answer, budgets) if answer.total else ""
        if answer.elsewhere:
            group.create_task(self._claims.clear(answer.elsewhere, pod))
        node, message = "", f"{answer.reasons} {found}".rstrip()
        if isinstance(found, Preemption):
            node, message = found.node, f"{answer.reasons} preemption: {len(found.victims)} pod(s) end on {found.node}."
            for victim in found.victims:
                self.cluster.place(msgspec.structs.replace(victim, terminating=True), node)
                group.create_task(self._victims.end(victim, pod, node))
            self.cluster.nominate(pod.uid, (pod, node))
        self._record_event(pod, message)
        group.create_task(self._write_condition(pod, "Unschedulable", message, node))

    # Writes out

    async def _bind(self, pod: CachedPod, placed: NodeChoice) -> None:
        namespace, name = split_key(pod.key)
        node = placed.node
        try:
            await self._binder.bind(placed)
            await self._claims.bind(pod, placed.claims)
            async with self._writers:
                await self._client.bind(name, namespace, node, uid=pod.uid)
        except NotFound:
            self._take_back(pod)
            await self._claims.undo(pod, placed.claims)
        except (ApiError, ClaimBindingError, ConnectionError, TimeoutError) as error:
            self._take_back(pod)
            if isinstance(error, ClaimBindingError):
                self._record_event(pod, str(error))
                await self._write_condition(pod, "SchedulerError", str(error))
            else:
                self._record_event(pod, f"binding rejected: {error}")
                await self._claims.undo(pod, placed.claims)
            await self._retry_after_pause(pod)
        else:
            self._backoffs.pop(pod.uid, None)
            self._claims.forget(pod.uid)
            about = make_reference(PODS, name, namespace, pod.uid)
            self._events.record(about, "Scheduled", f"Successfully assigned {pod.key} to {node}", action="Binding")

    def _take_back(self, pod: CachedPod) -> None:
        current = self._pods.cache.get(pod.key)
        if current is None or uid_of(current) != pod.uid or not current["spec"].get("nodeName"):
            self.cluster.remove_pod(pod.uid)
            self._request_retry()

    async def _retry_after_pause(self, pod: CachedPod) -> None:
        """Decides the pod again, later after each failure, if it still has no node."""
        await self._clock.sleep(self._backoffs.setdefault(pod.uid, Backoff(self._rng, shortest=1.0)).next())
        current = self._pods.cache.get(pod.key)
        if current is not None and uid_of(current) == pod.uid and not current["spec"].get("nodeName"):
            self._queue.add(_needs(current))
            self._wake.set()

    def _record_event(self, pod: CachedPod, message: str) -> None:
        namespace, name = split_key(pod.key)
        about = make_reference(PODS, name, namespace, pod.uid)
        self._events.record(about, "FailedScheduling", message, type="Warning", action="Scheduling")

    async def _write_condition(self, pod: CachedPod, reason: str, message: str, nominated: str = "") -> None:
        """Writes the condition PodScheduled=False and the nominated node, if the pod does not say so already."""
        current = self._pods.cache.get(pod.key)
        if current is None or uid_of(current) != pod.uid:
            return
        status = current.get("status") or {}
        changed = not_scheduled_conditions(status.get("conditions") or [], reason, message, self._clock.now())
        patch: Json = {"status": {} if changed is None else {"conditions": changed}}
        if nominated and status.get("nominatedNodeName") != nominated:
            patch["status"]["nominatedNodeName"] = nominated
        if not patch["status"]:
            return
        namespace, name = split_key(pod.key)
        try:
            async with self._writers:
                await self._client.merge_patch(PODS, name, patch, namespace, subresource="status", uid=pod.uid)
        except (ApiError, ConnectionError, TimeoutError):
            return  # the pod is gone, or its next decision writes the condition


def not_scheduled_conditions(conditions: list[Json], reason: str, message: str, now: float) -> list[Json] | None:
    """The conditions with PodScheduled=False for this reason; None if they say so already."""
    before = next((each for each in conditions if each["type"] == "PodScheduled"), None)
    same = before is not None and before["status"] == "False"
    if before is not None and same and before.get("reason") == reason and before.get("message") == message:
        return None
    since = before["lastTransitionTime"] if before is not None and same else rfc3339(now)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": reason,
        "message": message,
        "lastProbeTime": None,
        "lastTransitionTime": since,
    }
    return [each for each in conditions if each["type"] != "PodScheduled"] + [condition]


def _needs(pod: Mapping[str, Any]) -> CachedPod:
    metadata = pod["metadata"]
    created = metadata.get("creationTimestamp")
    return build_pod_info(
        key_of(pod),
        uid_of(pod),
        parse_rfc3339(created) if created else 0.0,
        pod["spec"],
        metadata.get("labels"),
        terminating=bool(metadata.get("deletionTimestamp")),
        owner=next((each["uid"] for each in metadata.get("ownerReferences") or () if _makes_replicas(each)), ""),
        claims=[name for entry, name in claim_names(pod).items() if entry],
    )


def _makes_replicas(owner: Json) -> bool:
    return bool(owner.get("controller")) and owner["kind"] in {"ReplicaSet", "StatefulSet"}
