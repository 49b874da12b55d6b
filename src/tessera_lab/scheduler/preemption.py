"""Preemption: ends less important pods so that a pod finds room, as kube-scheduler's DefaultPreemption.

:func:`preempt` chooses. On each node whose reason could go away if other pods ended, it removes all less important
pods. If the pod fits then, it puts back as many as possible, most important first, those whose disruption budget would
be violated before the rest. The best node has the fewest violations, then the least important highest victim, then the
smallest sum of priorities, the fewest victims, the youngest highest victim. It undoes its changes of the cache before
it returns.

:class:`Victims` ends the chosen pods: a condition with the reason, the deletion, an event.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.clock import Clock, rfc3339
from tessera.kube.client import Client
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import Informer
from tessera.kube.resources import POD_DISRUPTION_BUDGETS, PODS
from tessera.kube.resources.meta import split_key
from tessera_lab.apiserver.pods.binding_and_eviction import label_selector_matches
from tessera_lab.scheduler.decision import PodFilters, Unschedulable
from tessera_lab.scheduler.state.node_cache import CachedNode, CachedPod, NodeCache
from tessera_lab.simulation.supervision import LabInformer

Json = Mapping[str, Any]

#: Added to a priority in sums, so that those below zero count too (``math.MaxInt32 + 1``).
_OFFSET = 2**31


class Preemption(msgspec.Struct, frozen=True):
    """The pods of one node to end for another pod."""

    node: str
    victims: tuple[CachedPod, ...]
    violations: int

    @property
    def rank(self) -> tuple[Any, ...]:
        """Returns the sort key; the smallest is the best."""
        highest = max(each.priority for each in self.victims)
        youngest = min(each.created for each in self.victims if each.priority == highest)
        total = sum(each.priority + _OFFSET for each in self.victims)
        return (self.violations, highest, total, len(self.victims), -youngest, self.node)


def preempt(pod: CachedPod, cluster: NodeCache, refused: Unschedulable, budgets: Sequence[Json]) -> Preemption | str:
    """Returns the pods to end for the pod, or the text that says why ending pods does not help.

    Args:
        pod: the pod that no node can take.
        cluster: the cache; unchanged afterwards.
        refused: why no node can take the pod.
        budgets: PodDisruptionBudgets of the whole cluster.
    """
    if pod.spec.get("preemptionPolicy") == "Never":
        return "preemption: not eligible due to preemptionPolicy=Never."
    nominated = cluster.nodes.get(cluster.nomination(pod.uid) or "")
    if nominated is not None and any(
        each.terminating and each.priority < pod.priority for each in nominated.pods.values()
    ):
        return "preemption: not eligible due to a terminating pod on the nominated node."
    found: list[Preemption] = []
    if cluster.has_below(pod.priority):
        for name in refused.curable:
            one = _on_node(pod, cluster, cluster.nodes[name], budgets)
            if one is not None:
                found.append(one)
    if found:
        return min(found, key=lambda each: each.rank)
    helpless = refused.total - len(refused.curable)
    counts = [f"{len(refused.curable)} No preemption victims found for incoming pod"] if refused.curable else []
    counts += [f"{helpless} Preemption is not helpful for scheduling"] if helpless else []
    return f"preemption: 0/{refused.total} nodes are available: {', '.join(sorted(counts))}."


def _on_node(pod: CachedPod, cluster: NodeCache, node: CachedNode, budgets: Sequence[Json]) -> Preemption | None:
    lower = [each for each in node.pods.values() if each.priority < pod.priority]
    if not lower:
        return None
    taken: dict[str, CachedPod] = {}
    try:
        for each in lower:
            cluster.remove_pod(each.uid)
            taken[each.uid] = each
        if PodFilters(pod, cluster).rejections(node):
            return None
        violating, rest = _by_budget(sorted(lower, key=lambda each: (-each.priority, each.created)), budgets)
        victims: list[CachedPod] = []
        violations = 0
        for each in (*violating, *rest):
            cluster.place(each, node.name)
            if PodFilters(pod, cluster).rejections(node):
                cluster.remove_pod(each.uid)
                victims.append(each)
                violations += each in violating
            else:
                del taken[each.uid]
        return Preemption(node.name, tuple(victims), violations) if victims else None
    finally:
        for each in taken.values():
            cluster.place(each, node.name)


def _by_budget(pods: Iterable[CachedPod], budgets: Sequence[Json]) -> tuple[list[CachedPod], list[CachedPod]]:
    """Splits pods into those whose end, one after the other, would violate a disruption budget, and the others."""
    allowed = [int((each.get("status") or {}).get("disruptionsAllowed") or 0) for each in budgets]
    violating: list[CachedPod] = []
    rest: list[CachedPod] = []
    for pod in pods:
        violates = False
        for index, budget in enumerate(budgets):
            selector = budget["spec"].get("selector")
            if (
                budget["metadata"]["namespace"] != pod.namespace
                or not pod.labels
                or not label_selector_matches(selector, pod.labels)
            ):
                continue
            if pod.key.partition("/")[2] in ((budget.get("status") or {}).get("disruptedPods") or {}):
                continue
            allowed[index] -= 1
            violates |= allowed[index] < 0
        (violating if violates else rest).append(pod)
    return violating, rest


Object = dict[str, Any]


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
        self._budgets = LabInformer(client, POD_DISRUPTION_BUDGETS.as_dicts(), clock=clock, rng=rng)

    @property
    def informers(self) -> Sequence[Informer[Object]]:
        """Informers that must run and be synced first."""
        return (self._budgets,)

    @property
    def budgets(self) -> Sequence[Object]:
        """PodDisruptionBudgets of the whole cluster."""
        return list(self._budgets.cache.values())

    async def end(self, victim: CachedPod, preemptor: CachedPod, node: str) -> None:
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
            pod = await self._client.get(PODS.as_dicts(), name, namespace)
            conditions = (pod.get("status") or {}).get("conditions") or []
            patch = {"status": {"conditions": [*conditions, condition]}}
            await self._client.merge_patch(PODS, name, patch, namespace, subresource="status", uid=victim.uid)
            await self._client.delete(PODS, name, namespace, uid=victim.uid)
        except (ApiError, ConnectionError, TimeoutError):
            return
        about = make_reference(PODS, name, namespace, victim.uid)
        self._events.record(about, "Preempted", f"Preempted by pod {preemptor.uid} on node {node}", action="Preempting")
