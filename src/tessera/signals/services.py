"""The services of the cluster with their signals: which there are, and how many further replicas fit now. Pure.

Room is counted with copies of a service's newest pod, planned as if they had just come, together and beside the
reservations of others. So the number is what a scaler would get at this moment: cards, other resources of nodes,
constraints, rules about other pods and the maximum of the queue count. It promises nothing: whoever comes first gets
the room. Rules:

- Owners are written by the authors of pods, so a pod may name one that is not its own. It can only change the numbers
  of its own namespace: signals are asked for by namespace.
- At most :data:`SERVICES` are shown. Each namespace gets a first one before any gets a second, so no tenant hides
  others.
- A service has no more room than the ResourceQuotas of its namespace admit: requests, limits and the number of pods.
  Quotas of a scope count if the pods of services are in it: they have no deadline (``NotTerminating``), and are
  ``BestEffort`` without CPU and memory. Of another scope, such as a priority class, it is not known here, so such a
  quota bounds nothing.
- One round counts rooms until :data:`ROUND_STEPS` are spent: of each namespace the one counted the longest ago before
  a second one, so a tenant who makes services again and again only delays its own. One room answers for all services
  whose pods are of its kind. A room that was not counted for :data:`ROOM_AGE` seconds is not known.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tessera.api.names import GATE, PodUid
from tessera.controller.objects.pod_info import SLICES, PodInfo
from tessera.controller.objects.resource_amounts import Amounts, parse_amounts
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.cycle.order import FairOrder
from tessera.controller.slicing.lasting_refusals import PodKind, kind_of
from tessera.controller.slicing.proposers.move_finder import unpinned
from tessera.controller.slicing.slicer import Slicer
from tessera.placement.demand import StepBudget
from tessera.signals.page import REPLICAS, ROOM, ROOM_COUNTED, Service, SignalsPage

#: Most steps of planning for one service, a step being one node asked about one pod.
SERVICE_STEPS = 10_000
#: Names of a quota for the number of pods, and for resources that it may name without ``requests.``.
_PODS = frozenset({"pods", "count/pods"})
_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage"})
_REQUESTS, _LIMITS = "requests.", "limits."
#: Services with signals: some ten series each in the controller's metrics.
SERVICES = 1_000
#: Steps of planning that one round may take: as many as one decision, some 0.3 s of CPU. Each service costs some.
ROUND_STEPS, _LEAST_STEPS = 40_000, 200
#: Seconds.
ROOM_AGE = 120.0
#: Waiting pods of a service that are named: one of the oldest starts next.
WAITING_NAMED = 8


def has_room_number(pod: PodInfo) -> bool:
    """True if the room for more pods like this one can be counted: it asks for slices, and starts by itself."""
    return bool(pod.profiles) and pod.kind is SLICES and pod.gang is None and not pod.fault


def count_room(slicer: Slicer, pod: PodInfo) -> tuple[int, int]:
    """Returns how many further pods like this one fit now, :data:`ROOM_COUNTED` at most, and the steps that it took.

    Args:
        slicer: the state machine, caught up; nothing in it changes.
        pod: a pod of the service, waiting or not.
    """
    copies = [_copy(pod, number) for number in range(ROOM_COUNTED)]
    allowed, _ = FairOrder(slicer.state).first(copies, ROOM_COUNTED)
    work = StepBudget(SERVICE_STEPS)
    found = slicer.planner.plan_alone(allowed, work) if allowed else ()
    return sum(isinstance(each, Placed) for each in found), SERVICE_STEPS - work.remaining


def room_kind(slicer: Slicer, pod: PodInfo) -> PodKind | None:
    """What pods with the same room have in common; None if another pod's room says nothing of this one's."""
    return kind_of(slicer.state, _copy(pod, 0))


def _copy(pod: PodInfo, number: int) -> PodInfo:
    """A pod as its owner would make one more: it has no place, and nothing has happened to it.

    A host that the author of a placed pod names cannot be told from Tessera's pin, and does not count.
    """
    return replace(
        pod if pod.is_held else unpinned(pod),
        uid=PodUid(f"room-{number}"),
        name=f"room-{number}",
        gates=pod.gates if pod.is_held else (GATE,),
        started=0.0,
        unstarted=False,
        finished=False,
        terminating=False,
        version=0,
    )


def newest(pods: Sequence[PodInfo]) -> PodInfo:
    """The pod that the next ones of its service are like: the one that was created last."""
    return max(pods, key=lambda pod: (pod.created, pod.key))


def quota_room(quotas: Iterable[Mapping[str, Any]], amounts: Amounts, limits: Amounts | None = None) -> int | None:
    """Returns how many more pods of these amounts the quotas of a namespace admit; None if they bound none.

    Args:
        quotas: the ResourceQuotas, as the server sends them.
        amounts: what one pod requests.
        limits: the limits of one pod.
    """
    asked = {_REQUESTS + name: value for name, value in amounts.items()}
    asked |= {name: value for name, value in amounts.items() if name in _PLAIN or name.startswith("hugepages-")}
    asked |= {_LIMITS + name: value for name, value in (limits or {}).items()}
    asked |= dict.fromkeys(_PODS, 1)
    is_best_effort = not {"cpu", "memory"} & (amounts.keys() | (limits or {}).keys())
    scopes = {"NotTerminating", "BestEffort" if is_best_effort else "NotBestEffort"}
    return min((room for quota in quotas if _is_for(quota, scopes) for room in _rooms(quota, asked)), default=None)


def _is_for(quota: Mapping[str, Any], scopes: set[str]) -> bool:
    spec = quota.get("spec") or {}
    return not spec.get("scopeSelector") and set(spec.get("scopes") or ()) <= scopes


def _rooms(quota: Mapping[str, Any], asked: Amounts) -> Iterator[int]:
    status = quota.get("status") or {}
    used = status.get("used") or {}
    for name, most in (status.get("hard") or {}).items():
        wanted, resource = asked.get(name, 0), name.removeprefix(_REQUESTS).removeprefix(_LIMITS)
        try:
            left = parse_amounts({resource: most})[resource] - parse_amounts({resource: used.get(name, "0")})[resource]
        except ValueError:
            continue
        if wanted > 0:
            yield max(0, left // wanted)


class ServiceKey(NamedTuple):
    """Names a service."""

    namespace: str
    kind: str
    name: str


NO_LOADS: Mapping[ServiceKey, Mapping[str, float]] = {}


class ServiceTable:
    """Keeps the signals of services.

    Args:
        slicer: the state machine, which is only read while it is caught up.
    """

    def __init__(self, slicer: Slicer) -> None:
        self._slicer = slicer
        #: When a room was counted, and the room, by service.
        self._rooms: dict[ServiceKey, tuple[float, int]] = {}

    def refresh(
        self,
        owners: Mapping[PodUid, ServiceKey],
        now: float,
        loads: Mapping[ServiceKey, Mapping[str, float]] = NO_LOADS,
        ready: Collection[PodUid] = (),
        admitted: Callable[[PodInfo], int | None] = lambda _: None,
    ) -> SignalsPage:
        """Counts rooms, and returns what is known.

        Args:
            owners: by pod that holds or wants cards, its service.
            now: seconds since 1970.
            loads: by service, what is known of its load.
            ready: the pods that are ready.
            admitted: returns how many more pods like one quotas admit; None if they bound none.
        """
        services = self._group(owners)
        shown = first_of_each(services, SERVICES)
        for gone in self._rooms.keys() - set(shown):
            del self._rooms[gone]
        self._count_rooms({key: services[key] for key in shown}, now)
        known = {key: {**loads.get(key, {}), **self._room(key, services[key], now, admitted)} for key in sorted(shown)}
        made = tuple(self._service(key, services[key], values, ready) for key, values in known.items())
        return SignalsPage(leads=True, taken=now, services=made, cut=len(services) - len(shown))

    def _group(self, owners: Mapping[PodUid, ServiceKey]) -> dict[ServiceKey, list[PodInfo]]:
        found: dict[ServiceKey, list[PodInfo]] = {}
        for uid, key in owners.items():
            pod = self._slicer.state.cluster.pods.get(uid)
            if pod is not None and not pod.finished and not pod.terminating:
                found.setdefault(key, []).append(pod)
        return found

    def _count_rooms(self, services: Mapping[ServiceKey, Sequence[PodInfo]], now: float) -> None:
        left = ROUND_STEPS
        counted: dict[PodKind, int] = {}
        for key in first_of_each(services, len(services), self._counted_at):
            pod = newest(services[key])
            if not has_room_number(pod):
                self._rooms.pop(key, None)
                continue
            kind = room_kind(self._slicer, pod)
            if kind is not None and kind in counted:
                self._rooms[key] = (now, counted[kind])
            elif left > 0:
                room, steps = count_room(self._slicer, pod)
                left -= max(_LEAST_STEPS, steps)
                self._rooms[key] = (now, room)
                if kind is not None:
                    counted[kind] = room

    def _counted_at(self, key: ServiceKey) -> float:
        return self._rooms[key][0] if key in self._rooms else -1.0

    def _room(
        self, key: ServiceKey, pods: Sequence[PodInfo], now: float, admitted: Callable[[PodInfo], int | None]
    ) -> Mapping[str, float]:
        counted = self._rooms.get(key)
        if counted is None or now - counted[0] > ROOM_AGE:
            return {}
        most = admitted(newest(pods))
        return {ROOM: float(counted[1] if most is None else min(counted[1], most))}

    def _service(
        self, key: ServiceKey, pods: Sequence[PodInfo], known: Mapping[str, float], ready: Collection[PodUid]
    ) -> Service:
        allocations = self._slicer.state.allocations
        values = {**known, REPLICAS: float(sum(allocations.current_of(pod.uid) is not None for pod in pods))}
        waiting = heapq.nsmallest(WAITING_NAMED, (each for each in pods if not each.node), lambda each: each.created)
        return Service(
            namespace=key.namespace,
            kind=key.kind,
            name=key.name,
            values=values,
            wanted=len(pods),
            placed=sum(bool(each.node) for each in pods),
            nodes=dict(Counter(each.node for each in pods if each.node)),
            ready=sum(each.uid in ready for each in pods),
            waiting=tuple(each.name for each in waiting),
        )


def first_of_each(
    keys: Iterable[ServiceKey], most: int, age: Callable[[ServiceKey], float] = lambda _: 0.0
) -> list[ServiceKey]:
    """As many of these as may be chosen: the first of each namespace, then the second of each, and so on.

    Args:
        keys: the services.
        most: how many.
        age: the least goes first, then the name.
    """
    by_namespace: dict[str, list[tuple[float, ServiceKey]]] = defaultdict(list)
    for each in sorted((age(key), key) for key in keys):
        by_namespace[each[1].namespace].append(each)
    ranked = [(rank, *each) for found in by_namespace.values() for rank, each in enumerate(found)]
    return [key for *_, key in sorted(ranked)[:most]]
