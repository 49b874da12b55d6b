"""Carries out the slicer's instructions at the API server and reports their results to the slicer.

The slicer never returns two writes of one key at a time, so order per node and per pod needs no queue. The executor
does not repeat a failed write: after a pause the slicer returns the write that is due then, which may be another one.
:mod:`tessera.kube.retries` handles starts, pauses and wake-ups; this module maps each instruction to its request, and
each error to an event for the slicer.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tessera.api.instaslice import INSTASLICES, OBJECT_CONDITION
from tessera.api.names import INSTASLICE_NAMESPACE, SLICE_CONDITION
from tessera.api.queues import QUEUES
from tessera.clock import Clock, parse_time_or_zero, rfc3339
from tessera.controller.base import ControllerMetrics
from tessera.controller.objects.pod_info import read_pod
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import (
    DenialExpired,
    InstasliceObserved,
    PodObserved,
    RecordObserved,
    RetryDue,
    UngateDenied,
    WriteDone,
    WriteOutcomeUnknown,
    WriteRefused,
)
from tessera.controller.slicing.state.instructions import (
    DeleteObject,
    Evict,
    Instruction,
    PatchRecord,
    PatchRequests,
    PatchResults,
    RecordEvent,
    ReportNodeCondition,
    ReportPodCondition,
    ReportQueue,
    Ungate,
    Write,
)
from tessera.kube.client import Client
from tessera.kube.errors import (
    ApiError,
    BadRequest,
    BrokenAnswer,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    TooManyRequests,
)
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, PODS, Pod, Resource
from tessera.kube.retries import FREE, Executor, Hold, OutageLog, RequestError, hold_for, pause_after_write
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Field managers of two conditions: on a node about its Instaslice object, and on a pod about its slices.
CONDITION_MANAGER = "tessera-instaslices"
#: Field manager of the status of Queue objects.
QUEUE_MANAGER = "tessera-queues"
#: Most writes at the same time, by what they write to: pods, Instaslice objects, objects of other kinds of request, and
#: the rest. Each has a connection of its own meanwhile, of the client's 200. A webhook that hangs hangs those of one
#: kind, which keep none of the others waiting. With 64, a server that takes half a second for each answers for a
#: hundred pods a second.
_AT_ONCE: Sequence[tuple[tuple[type[Write], ...], int]] = (
    ((Ungate, ReportPodCondition), 64),
    ((PatchRequests, PatchResults, DeleteObject), 32),
    ((PatchRecord,), 16),
    ((Evict, ReportNodeCondition, ReportQueue), 16),
)
#: Seconds after which a refused ungating is tried again, if the reason can pass by itself.
_RECONSIDER = 60.0


class SliceExecutor:
    """Carries out the slicer's instructions.

    Args:
        client: sends the writes; a fenced client, so that a replica that lost the Lease sends nothing.
        slicer: the state machine.
        events: records Events on pods and nodes.
        metrics: counts writes.
        wake: called after the slicer has taken in a result.
        clock: gives the time of conditions and writes.
        rng: for jitter.
    """

    def __init__(
        self,
        client: Client,
        slicer: Slicer,
        *,
        events: EventRecorder,
        metrics: ControllerMetrics,
        wake: Callable[[], None],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._slicer = slicer
        self._events = events
        self._metrics = metrics
        self._clock = clock
        self._executor: Executor[Write] = Executor(self, wake=wake, rng=rng)
        self._outages = OutageLog(_log, "writes of slices and pods", clock)
        #: By type of write.
        self._slots: dict[type[Write], asyncio.Semaphore] = {}
        for kinds, most in _AT_ONCE:
            self._slots |= dict.fromkeys(kinds, asyncio.Semaphore(most))

    def start(self, instruction: Instruction, group: asyncio.TaskGroup) -> None:
        """Begins an instruction in a task of ``group``."""
        if isinstance(instruction, RecordEvent):
            resource = self._resource_of(instruction.kind) if instruction.kind else PODS
            about = make_reference(resource, instruction.name, instruction.namespace, instruction.uid)
            self._events.record(
                about,
                instruction.reason,
                instruction.message,
                type="Warning" if instruction.warning else "Normal",
                action="Placing",
            )
        else:
            started = self._executor.start(instruction.key, instruction, group)
            assert started, f"the slicer asked for a second write of {instruction.key}"

    def stop(self) -> None:
        """Forgets all pauses."""
        self._executor.stop()

    # Called by the executor

    async def perform(self, write: Write) -> Hold:
        """Sends a write. While the server is slow, a node's key pauses after a write of states."""
        async with self._slots[type(write)]:
            began = self._clock.monotonic()
            await self._send(write)
        self._outages.note_answer()
        self._metrics.writes.labels(type(write).__name__).inc()
        pause = _pause_seconds(write, self._clock.monotonic() - began)
        if not pause:
            self._slicer.handle(WriteDone(write))
        return hold_for(pause)

    def handle_failure(self, write: Write, error: RequestError) -> Hold:
        """Reports a refused write to the slicer; returns the pause before the next try."""
        kind = type(write).__name__
        final = isinstance(error, NotFound | BadRequest | Forbidden | Invalid)
        if isinstance(error, Conflict) and isinstance(write, Evict):  # it was bound, or is another pod
            self._slicer.handle(WriteDone(write))
            return FREE
        label = error.reason if final and isinstance(error, ApiError) else ""
        self._metrics.failures.labels(kind, label or type(error).__name__).inc()
        if isinstance(error, NotFound) and isinstance(write, DeleteObject | ReportQueue):
            self._slicer.handle(WriteDone(write))
            return FREE
        if final and isinstance(write, Evict):
            _log.info("pod %s/%s is not evicted: %s", write.namespace, write.name, error)
            if isinstance(error, BadRequest | Forbidden | Invalid):
                self._slicer.handle(WriteRefused(write, error.message))
            self._slicer.handle(WriteDone(write))
            return FREE
        if isinstance(error, BadRequest | Forbidden | Invalid) and isinstance(write, Ungate):
            _log.warning("pod %s/%s cannot be ungated: %s", write.namespace, write.name, error)
            self._slicer.handle(UngateDenied(write, error.message))
            self._executor.call_later(_RECONSIDER, partial(self._slicer.handle, DenialExpired(write.uid)))
            return FREE
        postponed = isinstance(write, Evict) and isinstance(error, ApiError) and error.retry_after is not None
        if isinstance(error, ApiError) and not isinstance(error, BrokenAnswer) and not postponed:
            self._slicer.handle(WriteRefused(write, error.message))
        else:
            self._slicer.handle(WriteOutcomeUnknown(write))
        hold = self._executor.back_off(write.key)
        by_budget = isinstance(write, Evict) and isinstance(error, TooManyRequests) and not postponed
        if by_budget or not self._outages.note_failure(error):
            _log.info("%s %s: %s; again in %.1f s", kind, write.key[1], error, hold.seconds)
        return hold

    def handle_release(self, write: Write, hold: Hold) -> None:
        """Tells the slicer that the pause after a write is over."""
        if hold.failed:
            self._slicer.handle(RetryDue(write))
        else:
            self._slicer.handle(WriteDone(write))

    async def _send(self, write: Write) -> None:
        match write:
            case PatchRequests() | PatchResults():
                item = await self._client.merge_patch(
                    INSTASLICES,
                    write.node,
                    write.body(),
                    INSTASLICE_NAMESPACE,
                    subresource="status" if isinstance(write, PatchResults) else None,
                )
                if self._slicer.intake.knows_object(write.node):  # else its deletion was seen before this answer
                    self._slicer.handle(InstasliceObserved(item))
            case Ungate():
                body = write.body()
                pod = await self._client.merge_patch(PODS, write.name, body, write.namespace, uid=write.uid)
                if created := parse_time_or_zero(pod.metadata.creation_timestamp):
                    self._metrics.waits.observe(max(0.0, self._clock.now() - created))
                if self._slicer.intake.knows_pod(write.uid):  # else its deletion was seen before this answer
                    self._slicer.handle(PodObserved(read_pod(pod)))
            case PatchRecord():
                await self._patch_record(write)
            case ReportNodeCondition():
                await self._report_node(write)
            case ReportPodCondition():
                pod = await self._report_pod(write)
                if self._slicer.intake.knows_pod(write.uid):
                    self._slicer.handle(PodObserved(read_pod(pod)))
            case Evict():
                version = str(write.version) if write.version else None
                await self._client.evict(
                    write.name, write.namespace, uid=write.uid, resource_version=version, grace_seconds=write.grace
                )
            case ReportQueue():
                client = self._client.with_field_manager(QUEUE_MANAGER)
                await client.apply(QUEUES, write.name, {"status": write.status}, subresource="status")
            case DeleteObject():
                await self._client.delete(INSTASLICES, write.node, INSTASLICE_NAMESPACE, uid=write.uid)

    def _resource_of(self, kind: str) -> Resource[Any]:
        resource = self._slicer.kinds.by_name[kind].records
        assert resource is not None, f"{kind} have no records"
        return resource

    async def _patch_record(self, write: PatchRecord) -> None:
        item = await self._client.merge_patch(
            self._resource_of(write.kind),
            write.name,
            write.patch,
            write.namespace,
            subresource=write.subresource,
            resource_version=write.version or None,
            uid=write.object_uid,
        )
        self._slicer.handle(RecordObserved(write.kind, item))

    async def _report_node(self, write: ReportNodeCondition) -> None:
        """Applies the condition under its own field manager, since other components own the node's other conditions."""
        reason = "InstasliceInvalid" if write.text else "InstasliceValid"
        message = write.text or "the node's Instaslice object can be followed"
        condition = {
            "type": OBJECT_CONDITION,
            "status": "False" if write.text else "True",
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": rfc3339(self._clock.now()),
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        body = {"status": {"conditions": [condition]}}
        node = await self._client.with_field_manager(CONDITION_MANAGER).apply(
            NODES, write.node, body, subresource="status"
        )
        about = make_reference(NODES, write.node, uid=node.metadata.uid)
        self._events.record(about, reason, message, type="Warning" if write.text else "Normal", action="Placing")

    async def _report_pod(self, write: ReportPodCondition) -> Pod:
        """Applies the condition to the pod with this UID: kubelet and the scheduler own the other conditions."""
        condition = {
            "type": SLICE_CONDITION,
            "status": "False" if write.text else "True",
            "reason": write.reason,
            "message": one_line(write.text, CONDITION_MESSAGE) or "the pod is promised slices again",
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        body = {"metadata": {"uid": write.uid}, "status": {"conditions": [condition]}}
        client = self._client.with_field_manager(CONDITION_MANAGER)
        return await client.apply(PODS, write.name, body, write.namespace, subresource="status")


def _pause_seconds(write: Write, took: float) -> float:
    """Returns the seconds until the slicer may ask for the next write of the same key."""
    return pause_after_write(took) if isinstance(write, PatchResults) else 0.0
