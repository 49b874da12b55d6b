"""Carries out the state machine's instructions at the API server and tells it what came of them.

One task per write. The machine never asks for two writes of one key at a time, so order per node and per pod needs no
queue here. A node's promises and states rest between two writes while the server is slow
(:mod:`tessera.kube.write_pacing`); pods never do. A write that failed is not repeated: after a pause the machine is
asked again what is due, which by then may be something else.
"""

import asyncio
import logging
import random
from collections.abc import Callable

from tessera.api.instaslice import INSTASLICES, OBJECT_CONDITION
from tessera.api.names import INSTASLICE_NAMESPACE, SLICE_CONDITION
from tessera.clock import Clock, rfc3339
from tessera.controller.base.metrics import Metrics
from tessera.controller.objects.pod_info import pod_facts
from tessera.controller.slicing.instructions import (
    DeleteObject,
    Evict,
    Instruction,
    Key,
    PatchRequests,
    PatchResults,
    ReportObject,
    ReportPod,
    Tell,
    Ungate,
    Write,
)
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, BadRequest, BrokenAnswer, Conflict, Forbidden, Invalid, NotFound
from tessera.kube.event_recorder import EventRecorder, reference_to
from tessera.kube.resources import NODES, PODS, Pod
from tessera.kube.write_pacing import STATE, WAITED_FOR, rest_after
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Field managers of two conditions: on a node about its Instaslice object, and on a pod about its slices.
CONDITION_MANAGER = "tessera-instaslices"
#: Pods patched at the same time, each over a connection of its own; nodes are few by comparison and not limited.
_PODS_AT_ONCE = 32
#: Seconds after which a pod that the server refused to ungate is tried again, for reasons that pass by themselves.
_RECONSIDER = 60.0


class Actor:
    """Does what the machine says.

    Args:
        client: who writes.
        slicer: the machine.
        events: tells about pods.
        metrics: counts writes.
        may_act: whether this replica still leads; asked before each write.
        wake: called after the machine has learnt something.
        clock: times conditions and writes.
        rng: for jitter.
    """

    def __init__(
        self,
        client: Client,
        slicer: Slicer,
        *,
        events: EventRecorder,
        metrics: Metrics,
        may_act: Callable[[], bool],
        wake: Callable[[], None],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client
        self._slicer = slicer
        self._events = events
        self._metrics = metrics
        self._may_act = may_act
        self._wake = wake
        self._clock = clock
        self._rng = rng
        self._backoffs: dict[Key, Backoff] = {}
        self._timers: set[asyncio.TimerHandle] = set()
        self._slots = asyncio.Semaphore(_PODS_AT_ONCE)

    def start(self, instruction: Instruction, group: asyncio.TaskGroup) -> None:
        """Begins an instruction; its task belongs to ``group``."""
        if isinstance(instruction, Tell):
            about = reference_to(PODS, instruction.name, instruction.namespace, instruction.uid)
            self._events.record(
                about,
                instruction.reason,
                instruction.message,
                type="Warning" if instruction.warning else "Normal",
                action="Placing",
            )
        else:
            group.create_task(self._do(instruction))

    def stop(self) -> None:
        """Forgets all pauses."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def _do(self, write: Write) -> None:
        kind = type(write).__name__
        began = self._clock.monotonic()
        try:
            await self._send(write)
        except (NotFound, BadRequest, Forbidden, Invalid) as error:
            self._metrics.failed(kind, error.reason or type(error).__name__)
            self._impossible(write, error)
        except Conflict as error:
            if isinstance(write, Evict):  # it was bound, or is another pod: nothing is to be done
                self._slicer.done(write)
            else:
                self._fail(write, error, self._slicer.refused)
        except BrokenAnswer as error:
            self._fail(write, error, self._slicer.unsure)
        except ApiError as error:
            self._fail(write, error, self._slicer.refused)
        except (ConnectionError, TimeoutError) as error:
            self._fail(write, error, self._slicer.unsure)
        else:
            self._metrics.written(kind)
            self._backoffs.pop(write.key, None)
            rest = self._rest(write, self._clock.monotonic() - began)
            if rest:
                self._later(rest, lambda: self._slicer.done(write))
            else:
                self._slicer.done(write)
        self._wake()

    @staticmethod
    def _rest(write: Write, took: float) -> float:
        """Seconds until the machine may ask for the next write of the same key."""
        if isinstance(write, PatchRequests):
            return rest_after(took, WAITED_FOR)
        return rest_after(took, STATE) if isinstance(write, PatchResults) else 0.0

    def _impossible(self, write: Write, error: ApiError) -> None:
        if isinstance(write, DeleteObject) and isinstance(error, NotFound):
            self._slicer.done(write)
        elif isinstance(write, Evict):
            _log.info("pod %s/%s is not evicted: %s", write.namespace, write.name, error)
            self._slicer.done(write)
        elif isinstance(write, Ungate) and not isinstance(error, NotFound):
            _log.warning("pod %s/%s cannot be ungated: %s", write.namespace, write.name, error)
            self._slicer.deny(write, error.message)
            self._later(_RECONSIDER, lambda: self._slicer.reconsider(write.uid))
        else:
            self._fail(write, error, self._slicer.refused)

    def _fail(self, write: Write, error: Exception, tell: Callable[[Write], None]) -> None:
        self._metrics.failed(type(write).__name__, type(error).__name__)
        tell(write)
        pause = self._backoffs.setdefault(write.key, Backoff(self._rng)).next()
        _log.info("%s %s: %s; again in %.1f s", type(write).__name__, write.key[1], error, pause)
        self._later(pause, lambda: self._slicer.retry(write))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        def fire() -> None:
            self._timers.discard(timer)
            act()
            self._wake()

        timer = asyncio.get_running_loop().call_later(seconds, fire)
        self._timers.add(timer)

    async def _send(self, write: Write) -> None:
        match write:
            case PatchRequests() | PatchResults():
                self._check()
                item = await self._client.merge_patch(
                    INSTASLICES,
                    write.node,
                    write.body(),
                    INSTASLICE_NAMESPACE,
                    subresource="status" if isinstance(write, PatchResults) else None,
                )
                if write.node in self._slicer.objects:  # else its deletion was seen before this answer
                    self._slicer.see_object(item)
            case Ungate():
                async with self._slots:
                    self._check()
                    pod = await self._client.merge_patch(PODS, write.name, write.body(), write.namespace, uid=write.uid)
                if write.uid in self._slicer.pods:  # else its deletion was seen before this answer
                    self._slicer.see_pod(pod_facts(pod))
            case ReportObject():
                await self._report(write)
            case ReportPod():
                async with self._slots:
                    pod = await self._report_pod(write)
                if write.uid in self._slicer.pods:
                    self._slicer.see_pod(pod_facts(pod))
            case Evict():
                self._check()
                version = str(write.version) if write.version else None
                await self._client.evict(write.name, write.namespace, uid=write.uid, resource_version=version)
            case DeleteObject():
                self._check()
                await self._client.delete(INSTASLICES, write.node, INSTASLICE_NAMESPACE, uid=write.uid)

    async def _report(self, write: ReportObject) -> None:
        """Applies the condition under a field manager of its own: other conditions of the node are other parts'."""
        self._check()
        reason = "InstasliceRefused" if write.text else "InstasliceFollowed"
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
        node = await self._client.under(CONDITION_MANAGER).apply(NODES, write.node, body, subresource="status")
        about = reference_to(NODES, write.node, uid=node.metadata.uid)
        self._events.record(about, reason, message, type="Warning" if write.text else "Normal", action="Placing")

    async def _report_pod(self, write: ReportPod) -> Pod:
        """Applies the condition to that life of the pod: kubelet and the scheduler own the others."""
        self._check()
        condition = {
            "type": SLICE_CONDITION,
            "status": "False" if write.text else "True",
            "reason": write.reason,
            "message": one_line(write.text, CONDITION_MESSAGE) or "the pod is promised slices again",
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        body = {"metadata": {"uid": write.uid}, "status": {"conditions": [condition]}}
        client = self._client.under(CONDITION_MANAGER)
        return await client.apply(PODS, write.name, body, write.namespace, subresource="status")

    def _check(self) -> None:
        if not self._may_act():
            raise ConnectionError("this replica does not lead any more; nothing was sent")
