"""The controller's page ``/signals``: what is known of each service, for the API ``external.metrics.k8s.io``.

A service is an owner whose pods hold or want cards: a Deployment, a StatefulSet, or another controller that makes pods
anew. A value that is not known is missing, never 0. All is pure.

A pod that is ready and whose own page is not known makes the load of its service unknown: a sum without it is too
small, and a scaler would take pods away. A pod that is not ready serves nobody, and is no part of it.

Times to Ready are by image: pull, initialization and loading, without waiting. Only changes that this process has seen
count, since the condition of a pod that was listed as ready may be of a later moment than its first. So a new leader
knows nothing until pods start. Times are whole seconds, as kubelet writes them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING

import msgspec

from tessera.clock import parse_time_or_zero

if TYPE_CHECKING:  # commands that only read the page need neither
    from tessera.api.nodes.usage import ServiceUsage
    from tessera.kube.resources import Pod

SIGNALS_PATH = "/signals"

#: The metrics of a service by their names.
ROOM = "tessera_service_room"
POWER = "tessera_service_power_watts"
JOULES = "tessera_service_joules_per_thousand_requests"
REPLICAS = "tessera_service_replicas"
LOAD = "tessera_service_load"
REQUESTS = "tessera_service_requests_per_second"
RUNNING = "tessera_service_running_requests"
WAITING = "tessera_service_waiting_requests"
KV_CACHE = "tessera_service_kv_cache_ratio"
TTFT_P50 = "tessera_service_first_token_p50_seconds"
TTFT_P90 = "tessera_service_first_token_p90_seconds"
#: Most replicas that are counted: a scaler that adds more in one round asks again 15 seconds later.
ROOM_COUNTED = 64
SIGNALS: Mapping[str, str] = {
    REPLICAS: "Pods of a service that have their slices.",
    LOAD: "Requests that the pods of a service compute or that wait in them.",
    REQUESTS: "Requests of a service that ended well, per second, over a minute.",
    RUNNING: "Requests that the pods of a service compute.",
    WAITING: "Requests that wait in the pods of a service.",
    KV_CACHE: "Part of the KV cache in use, mean of the pods of a service.",
    TTFT_P50: "Time to the first token, median over a minute.",
    TTFT_P90: "Time to the first token, nine tenths of the requests of a minute.",
    POWER: "Power of the ready pods of a service, mean of a minute.",
    JOULES: "Energy for 1,000 requests of a service, over a minute.",
    ROOM: "Further replicas of a service that fit now, 64 at most.",
}


class Service(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One service.

    Attributes:
        namespace: of its pods.
        kind: of its owner.
        name: of its owner.
        values: by name of the metric, what is known.
        wanted: its pods that have not ended, and are not being deleted.
        stated: the pods that its owner states; None if that is not known.
        placed: of them, those on a node.
        nodes: of those, how many are on each node; empty of a controller of an earlier version.
        ready: of them, those that are ready.
        waiting: names of the first of them without a node, the oldest first.
    """

    namespace: str
    kind: str
    name: str
    values: Mapping[str, float] = {}
    wanted: int = 0
    stated: int | None = None
    placed: int = 0
    nodes: Mapping[str, int] = {}
    ready: int = 0
    waiting: tuple[str, ...] = ()


class SignalsPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All services.

    Attributes:
        leads: False on a replica that does not lead: it knows nothing.
        taken: when the values were taken, seconds since 1970.
        age: seconds from then until the controller answered, by its clock.
        services: by namespace, kind and name.
        cut: services beyond the limit.
    """

    leads: bool = False
    taken: float = 0.0
    age: float = 0.0
    services: tuple[Service, ...] = ()
    cut: int = 0


#: Most images with times of their own; of more, that of the start the longest ago is forgotten.
IMAGES = 200
#: Starts of an image that count, the last ones.
_STARTS = 50
#: Most characters of an image that name it (RFC 3986 sets no bound; registries have shorter ones).
_NAME = 255
_PREFIX = "nvidia.com/"


def sum_load(usages: Sequence[ServiceUsage | None], powers: Sequence[float | None] = ()) -> dict[str, float]:
    """What is known of a service, by name of the metric.

    Args:
        usages: of each ready pod, what its page says; None if that is not known.
        powers: watts of each of these pods; None if they are not known.
    """
    known = [each for each in usages if each is not None and not each.error]
    if not known or len(known) < len(usages):
        return {}
    values: dict[str, float | None] = {
        REQUESTS: _sum(known, lambda each: each.requests),
        RUNNING: _sum(known, lambda each: each.running),
        WAITING: _sum(known, lambda each: each.waiting),
    }
    waiting, running = values[WAITING], values[RUNNING]
    values[LOAD] = None if waiting is None else waiting + (running or 0.0)
    caches = _sum(known, lambda each: each.kv_cache)
    values[KV_CACHE] = None if caches is None else caches / len(known)
    for name, share in ((TTFT_P50, 0.5), (TTFT_P90, 0.9)):
        values[name] = quantile(_merge(known), share)
    power = values[POWER] = sum_power(powers)
    requests = values[REQUESTS]
    values[JOULES] = 1000 * power / requests if power is not None and requests else None
    # Pages are written by tenants and nodes: a rate of next to nothing makes the quotient infinite, which JSON has not.
    return {name: value for name, value in values.items() if value is not None and isfinite(value)}


def sum_power(powers: Sequence[float | None]) -> float | None:
    """Watts of pods together; None if those of one are not known, or less than nothing, or there is none."""
    known = [each for each in powers if each is not None and each >= 0]
    return sum(known) if known and len(known) == len(powers) else None


def _sum(usages: Sequence[ServiceUsage], value: Callable[[ServiceUsage], float | None]) -> float | None:
    """The sum over all; None if one does not say it, or says less than nothing."""
    found = [number for each in usages if (number := value(each)) is not None and number >= 0]
    return sum(found) if len(found) == len(usages) else None


def _merge(usages: Sequence[ServiceUsage]) -> Mapping[float, float]:
    buckets: dict[float, float] = {}
    for each in usages:
        for bucket in each.first_token:
            bound = float("inf") if bucket.bound is None else bucket.bound
            buckets[bound] = buckets.get(bound, 0.0) + max(0.0, bucket.count)
    return dict(sorted(buckets.items()))


def quantile(buckets: Mapping[float, float], share: float) -> float | None:
    """A quantile of cumulative buckets, as ``histogram_quantile`` of Prometheus gives it; None without values."""
    total = buckets.get(float("inf"), 0.0)
    if total <= 0:
        return None
    lower = below = 0.0
    for bound, count in buckets.items():
        if count >= share * total:
            if bound == float("inf") or count <= below:
                return lower
            return lower + (bound - lower) * (share * total - below) / (count - below)
        lower, below = bound, count
    return lower


class ReadyTimes:
    """Takes in pods."""

    def __init__(self) -> None:
        #: Pods with cards that are on a node and have not been ready, by UID, with their image. No other pod is here.
        self._starting: dict[str, str] = {}
        self._seconds: OrderedDict[str, deque[float]] = OrderedDict()

    def observe(self, pod: Pod) -> None:
        """Takes in a pod that came or changed."""
        uid, ready = pod.metadata.uid, pod.status.condition("Ready")
        if ready is None or ready.status != "True":
            if pod.spec.node_name and uid not in self._starting and (image := image_of(pod)):
                self._starting[uid] = image
            return
        image = self._starting.pop(uid, "")
        scheduled = pod.status.condition("PodScheduled")
        if not image or scheduled is None:
            return
        seconds = parse_time_or_zero(ready.last_transition_time) - parse_time_or_zero(scheduled.last_transition_time)
        self._seconds.setdefault(image, deque(maxlen=_STARTS)).append(max(0.0, seconds))
        self._seconds.move_to_end(image)
        while len(self._seconds) > IMAGES:
            self._seconds.popitem(last=False)

    def drop(self, pod: Pod) -> None:
        """Takes in that a pod is gone."""
        self._starting.pop(pod.metadata.uid, None)

    def quantiles(self) -> Mapping[str, tuple[float, float]]:
        """By image, the seconds within which half and nine tenths of its last starts were ready."""
        return {image: (_quantile(each, 0.5), _quantile(each, 0.9)) for image, each in self._seconds.items()}


def image_of(pod: Pod) -> str:
    """The image of the container that asks for cards; empty for a pod without one, or one too long to name."""
    found = next((each for each in pod.spec.containers if any(map(_is_card, each.resources.limits))), None)
    if found is None and pod.spec.resource_claims and pod.spec.containers:
        found = pod.spec.containers[0]
    return "" if found is None or len(found.image) > _NAME else found.image


def _is_card(resource: str) -> bool:
    return resource.startswith(_PREFIX)


def _quantile(values: deque[float], share: float) -> float:
    """The smallest value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
