"""Ends the pods that preemption chose: a condition that says why, the deletion, an event."""

import random
from collections.abc import Sequence
from typing import Any

from tessera.clock import Clock, rfc3339
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from tessera.kube.resources.meta import split_key
from tessera.kube.watch.informer import Informer
from tessera_lab.scheduler.state.node_cache import PodInfo
from tessera_lab.simulation.supervision import LabInformer

Json = dict[str, Any]


class Victims:
    """Carries out preemption's decisions.

    Args:
        client: deletes the pods.
        events: records events about the victims.
        clock: for the condition's time.
        rng: for the mirror's jitter.
        name: the scheduler's name.
    """

    def __init__(self, client: Client, events: EventRecorder, *, clock: Clock, rng: random.Random, name: str) -> None:
        self._client = client
        self._events = events
        self._clock = clock
        self._name = name
        self._budgets = LabInformer(client, POD_DISRUPTION_BUDGETS.untyped(), clock=clock, rng=rng)

    @property
    def informers(self) -> Sequence[Informer[Json]]:
        """Informers that must run and be synced first."""
        return (self._budgets,)

    @property
    def budgets(self) -> Sequence[Json]:
        """PodDisruptionBudgets of the whole cluster."""
        return list(self._budgets.cache.values())

    async def end(self, victim: PodInfo, preemptor: PodInfo, node: str) -> None:
        """Ends one pod. If that fails, the preemptor's next decision tries again."""
        namespace, name = split_key(victim.key)
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "PreemptionByScheduler",
            "message": f"{self._name}: preempting to accommodate a higher priority pod",
            "lastTransitionTime": rfc3339(self._clock.now()),
        }
        try:
            pod = await self._client.get(PODS.untyped(), name, namespace)
            conditions = (pod.get("status") or {}).get("conditions") or []
            patch = {"status": {"conditions": [*conditions, condition]}}
            await self._client.merge_patch(PODS, name, patch, namespace, subresource="status", uid=victim.uid)
            await self._client.delete(PODS, name, namespace, uid=victim.uid)
        except (ApiError, ConnectionError, TimeoutError):
            return
        about = make_reference(PODS, name, namespace, victim.uid)
        self._events.record(about, "Preempted", f"Preempted by pod {preemptor.uid} on node {node}", action="Preempting")
