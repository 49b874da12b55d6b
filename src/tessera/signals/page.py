"""The controller's page ``/signals``: what is known of each service, for the API ``external.metrics.k8s.io``.

A service is an owner whose pods hold or want cards: a Deployment, a StatefulSet, or another controller that makes pods
anew. A value that is not known is missing, never 0.
"""

from collections.abc import Mapping

import msgspec

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
