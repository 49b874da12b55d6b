"""The controller's page ``/signals``: what is known of each service, for the API ``external.metrics.k8s.io``.

A service is an owner whose pods hold or want cards: a Deployment, a StatefulSet, or another controller that makes pods
anew. A value that is not known is missing, never 0.
"""

from collections.abc import Mapping

import msgspec

SIGNALS_PATH = "/signals"

#: The metrics of a service by their names. ``tessera_service_room`` is in replicas.
ROOM = "tessera_service_room"
REPLICAS = "tessera_service_replicas"
SIGNALS: Mapping[str, str] = {
    REPLICAS: "Pods of a service that have their slices.",
    ROOM: "Further replicas of a service that fit now, 64 at most.",
}


class Service(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One service.

    Attributes:
        namespace: of its pods.
        kind: of its owner.
        name: of its owner.
        values: by name of the metric, what is known.
    """

    namespace: str
    kind: str
    name: str
    values: Mapping[str, float] = {}


class SignalsPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All services.

    Attributes:
        leads: False on a replica that does not lead: it knows nothing.
        taken: when the values were taken, seconds since 1970.
        services: by namespace, kind and name.
        cut: services beyond the limit.
    """

    leads: bool = False
    taken: float = 0.0
    services: tuple[Service, ...] = ()
    cut: int = 0
