"""The objects of the API ``view.tessera.dev/v1alpha1``, as the page's process writes and the commands read them.

All are in a namespace. What they tell of is the whole cluster, with the names that the user may see; RBAC decides by
the namespace who may ask. ``usages``, ``maps`` and ``waitingpods`` have one object each, with the name ``cluster``;
``explanations`` have one for each pod of the namespace. They can be read, not written or watched.
"""

from typing import TypeVar

from tessera.dashboard.view.cluster_map import ClusterMap
from tessera.explain.explanation import ExplanationReport
from tessera.forecast.queue_page import QueuePage
from tessera.kube.client.client import Client
from tessera.kube.resources.meta import ObjectMeta, Resource, Wire
from tessera.usage.agent_pages import FleetUsage

GROUP, VERSION = "view.tessera.dev", "v1alpha1"
#: Name of the only object of all kinds but ``explanations``.
CLUSTER = "cluster"


class Usage(Wire, frozen=True, kw_only=True):
    """The use of the cluster's cards, as on the agents' pages."""

    metadata: ObjectMeta = ObjectMeta()
    fleet: FleetUsage = FleetUsage()


class Map(Wire, frozen=True, kw_only=True):
    """The cards with what is on them and what has room, as ``tessera map`` shows them."""

    metadata: ObjectMeta = ObjectMeta()
    map: ClusterMap


class Explanation(Wire, frozen=True, kw_only=True):
    """Why a pod does not run, as ``tessera why`` says it; its name is the pod's."""

    metadata: ObjectMeta = ObjectMeta()
    report: ExplanationReport


class WaitingPods(Wire, frozen=True, kw_only=True):
    """The queue, as ``tessera queue`` shows it, with the pods of the namespaces that the user may see."""

    metadata: ObjectMeta = ObjectMeta()
    queue: QueuePage = QueuePage()


T = TypeVar("T", Usage, Map, Explanation, WaitingPods)

USAGES = Resource(GROUP, VERSION, "usages", "Usage", True, Usage)
MAPS = Resource(GROUP, VERSION, "maps", "Map", True, Map)
EXPLANATIONS = Resource(GROUP, VERSION, "explanations", "Explanation", True, Explanation)
WAITING_PODS = Resource(GROUP, VERSION, "waitingpods", "WaitingPods", True, WaitingPods)
RESOURCES = (USAGES, MAPS, EXPLANATIONS, WAITING_PODS)


async def read_view(client: Client, resource: Resource[T], namespace: str, name: str = CLUSTER) -> T:
    """Reads an object with the rights that the user has in a namespace.

    Raises:
        ApiError: the user lacks the right, the API is not installed, or it does not answer.
    """
    return await client.get(resource, name, namespace)
