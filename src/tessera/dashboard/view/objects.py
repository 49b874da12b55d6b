"""The objects of the API ``view.tessera.dev/v1alpha1``, as the page's process writes and the commands read them.

All are in a namespace. What they tell of is the whole cluster, with the names that the user may see; RBAC decides by
the namespace who may ask. ``usages``, ``maps``, ``waitingpods``, ``gpuhours`` and ``pasts`` have one object
each, with the name ``cluster``; ``explanations`` have one for each pod of the namespace. They can be read, not written
or watched.
"""

from tessera.access.agent_pages import FleetUsage
from tessera.dashboard.view.cluster_map import MAPS
from tessera.dashboard.view.explanations import EXPLANATIONS, GROUP, VERSION
from tessera.forecast.queue_page import QueuePage
from tessera.kube.resources.meta import ObjectMeta, Resource, Wire
from tessera.observe.service_rows import ServiceRow


class Usage(Wire, frozen=True, kw_only=True):
    """The use of the cluster's cards, as on the agents' pages, and the services of the user's namespaces."""

    metadata: ObjectMeta = ObjectMeta()
    fleet: FleetUsage = FleetUsage()
    services: tuple[ServiceRow, ...] = ()
    services_note: str = ""


class WaitingPods(Wire, frozen=True, kw_only=True):
    """The queue, as ``tessera queue`` shows it, with the pods of the namespaces that the user may see."""

    metadata: ObjectMeta = ObjectMeta()
    queue: QueuePage = QueuePage()


class GpuHours(Wire, frozen=True, kw_only=True):
    """The record of GPU-hours, as ``tessera usage`` reads it, with the pods of the namespaces that the user may see."""

    metadata: ObjectMeta = ObjectMeta()
    record: str = ""


class Past(Wire, frozen=True, kw_only=True):
    """Whether the page's Prometheus has the past of its curves, as ``tessera doctor`` says it.

    Attributes:
        metadata: the namespace of the request.
        problem: why it answers no queries; empty if it does.
        empty: the queries of the cluster's curves that found nothing in the last minutes.
    """

    metadata: ObjectMeta = ObjectMeta()
    problem: str = ""
    empty: tuple[str, ...] = ()


USAGES = Resource(GROUP, VERSION, "usages", "Usage", True, Usage)
WAITING_PODS = Resource(GROUP, VERSION, "waitingpods", "WaitingPods", True, WaitingPods)
GPU_HOURS = Resource(GROUP, VERSION, "gpuhours", "GpuHours", True, GpuHours)
PASTS = Resource(GROUP, VERSION, "pasts", "Past", True, Past)
RESOURCES = (USAGES, MAPS, EXPLANATIONS, WAITING_PODS, GPU_HOURS, PASTS)
