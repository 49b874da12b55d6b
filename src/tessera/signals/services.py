"""The services of the cluster with their signals: which there are, and which of their rooms is counted next. Pure.

Rules:

- Owners are written by the authors of pods, so a pod may name one that is not its own. It can only change the numbers
  of its own namespace: signals are asked for by namespace.
- At most :data:`SERVICES` are shown. Each namespace gets a first one before any gets a second, so no tenant hides
  others.
- A service has no more room than the ResourceQuotas of its namespace admit.
- One round counts rooms until :data:`ROUND_STEPS` are spent: of each namespace the one counted the longest ago before
  a second one, so a tenant who makes services again and again only delays its own. One room answers for all services
  whose pods are of its kind. A room that was not counted for :data:`ROOM_AGE` seconds is not known.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.pod_kinds import PodKind
from tessera.controller.slicing.slicer import Slicer
from tessera.signals.page import REPLICAS, ROOM, Service, SignalsPage
from tessera.signals.room import count_room, has_room_number, newest, room_kind

#: Services with signals: some ten series each in the controller's metrics.
SERVICES = 1_000
#: Steps of planning that one round may take: as many as one decision, some 0.3 s of CPU. Each service costs some.
ROUND_STEPS, _LEAST_STEPS = 40_000, 200
#: Seconds.
ROOM_AGE = 120.0


class ServiceKey(NamedTuple):
    """Names a service."""

    namespace: str
    kind: str
    name: str


#: Waiting pods of a service that are named: one of the oldest starts next.
WAITING_NAMED = 8
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
