"""Tells the pods of the node about the health of their cards: the Event first, then the condition.

:mod:`tessera.agent.health.pod_conditions` decides. The name of the Event follows from the condition that it announces
and from the one before, so an agent that was killed between the two writes sends the Event again under the same name,
and the API server has it once. Kubelet is asked only while a fault lasts, or while a pod was not yet told of its end.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Collection, Sequence

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.health.holders import PartHolders
from tessera.agent.health.monitor import HealthMonitor
from tessera.agent.health.pod_conditions import PodConditions, PodNotice, has_open_condition
from tessera.agent.inventory.device_users import PodSource
from tessera.api.names import GPU_CONDITION, POD_HEALTH_MANAGER
from tessera.clock import Clock, rfc3339
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, Conflict, Forbidden, NotFound, TooManyRequests
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import PODS, Pod

_log = logging.getLogger(__name__)

#: Seconds in which a watch shows a write; after that it counts as undone by somebody.
_SHOWN = 10.0
#: Pods that are told at a time; a card has up to 48 shares.
_AT_A_TIME = 8
#: Seconds until a pod that the API server refused is tried again: rights may come with an upgrade.
_REFUSED = 600.0
#: Least seconds between two readings of the holders, however much changes.
_GATHER = 0.2


class PodReporter:
    """Writes the condition of pods and their Events.

    Args:
        client: the API server; its identity needs ``patch`` on ``pods/status`` for the pods of its node.
        events: sends Events.
        pods: the pods of the node.
        health: the faults of the cards.
        holders: reads which pods hold which parts.
        changes: wakes the reporter.
        clock: the time.
        rng: for jitter.
    """

    def __init__(
        self,
        client: Client,
        *,
        events: EventRecorder,
        pods: PodSource,
        health: HealthMonitor,
        holders: PartHolders,
        changes: ChangeNotifier,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client.with_field_manager(POD_HEALTH_MANAGER)
        self._events = events
        self._pods = pods
        self._health = health
        self._holders = holders
        self._changes = changes
        self._clock = clock
        self._backoff = Backoff(rng)
        self._conditions = PodConditions()
        #: Notices that the API server has and the watch may not show yet, with their time.
        self._written: dict[str, tuple[PodNotice, float]] = {}
        #: By UID, pods whose status the API server did not let this agent write, and the time of the next attempt.
        self._forbidden: dict[str, float] = {}

    async def run(self) -> None:
        """Reports until cancelled."""
        while True:
            count = self._changes.count
            try:
                pause = await self._report()
            except (ApiError, ConnectionError, TimeoutError) as error:
                pause = self._backoff.next()
                _log.warning("pods are not told of their cards' health, next attempt in %.1f s: %s", pause, error)
                await self._clock.sleep(pause)
                continue
            self._backoff.reset()
            await self._changes.wait(count, pause)

    async def _report(self) -> float | None:
        """Tells pods what they do not know; returns the seconds until there is more to tell, if nothing changes."""
        live = self._pods.live_pods()
        self._forget_others({pod.metadata.uid for pod in live})
        pods = [pod for pod in live if not self._is_refused(pod) and not self._is_on_its_way(pod)]
        machine = self._health.state_machine
        faults = machine.faults()
        if not any(fault.of_hardware for fault in faults) and not any(has_open_condition(pod) for pod in pods):
            return None
        holdings = await self._holders.read()
        spared = [fault for fault in faults if machine.spares(fault)]
        now = self._clock.monotonic()
        due, pause = self._conditions.decide(
            pods,
            holdings,
            faults,
            spared=spared,
            indexes=self._health.indexes(),
            repairs=machine.repairs,
            now=now,
            past=machine.past,
        )
        await self._tell_all(due)
        await self._clock.sleep(_GATHER)
        pauses = [pause, _SHOWN if self._written else None, _REFUSED if self._forbidden else None]
        return min((each for each in pauses if each is not None), default=None)

    def _forget_others(self, live: Collection[str]) -> None:
        self._written = {uid: each for uid, each in self._written.items() if uid in live}
        self._forbidden = {uid: at for uid, at in self._forbidden.items() if uid in live}

    def _is_refused(self, pod: Pod) -> bool:
        return self._forbidden.get(pod.metadata.uid, 0.0) > self._clock.monotonic()

    def _is_on_its_way(self, pod: Pod) -> bool:
        """True if the pod was told something that the watch does not show yet."""
        written = self._written.get(pod.metadata.uid)
        if written is None:
            return False
        notice, at = written
        shown = pod.status.condition(GPU_CONDITION)
        if (shown is not None and shown.message == notice.message) or self._clock.monotonic() - at >= _SHOWN:
            del self._written[pod.metadata.uid]
            return False
        return True

    async def _tell_all(self, notices: Sequence[PodNotice]) -> None:
        """Tells all pods, also if it fails for one; then raises what failed first."""
        slots = asyncio.Semaphore(_AT_A_TIME)

        async def tell(notice: PodNotice) -> None:
            async with slots:
                await self._tell(notice)

        for outcome in await asyncio.gather(*map(tell, notices), return_exceptions=True):
            if outcome is not None:
                raise outcome

    async def _tell(self, notice: PodNotice) -> None:
        pod = notice.pod.metadata
        about = make_reference(PODS, pod.name, pod.namespace, pod.uid)
        try:
            await self._events.send_once(about, notice.reason, notice.message, type=notice.kind, key=_key(notice))
            await self._apply(notice)
        except (NotFound, Conflict):
            return  # the pod is gone, or another one has its name
        except TooManyRequests:
            raise
        except Forbidden as error:
            self._forbidden[pod.uid] = self._clock.monotonic() + _REFUSED
            _log.warning("pod %s/%s is not told of its card's health: %s", pod.namespace, pod.name, error)
            return
        now = self._clock.monotonic()
        self._written[pod.uid] = notice, now
        self._conditions.note_told(notice, now)

    async def _apply(self, notice: PodNotice) -> None:
        before = notice.before
        kept = before.last_transition_time if before is not None and before.status == notice.status else None
        condition = {
            "type": GPU_CONDITION,
            "status": notice.status,
            "reason": notice.reason,
            "message": notice.message,
            "lastTransitionTime": kept or rfc3339(self._clock.now()),
        }
        pod = notice.pod.metadata
        body = {"metadata": {"uid": pod.uid}, "status": {"conditions": [condition]}}
        await self._client.apply(PODS, pod.name, body, pod.namespace, subresource="status")


def _key(notice: PodNotice) -> str:
    """Names the change from one condition to the next."""
    old = notice.before
    before = () if old is None else (old.status, old.reason, old.message, old.last_transition_time or "")
    text = repr((notice.pod.metadata.uid, before, notice.reason, notice.message))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
