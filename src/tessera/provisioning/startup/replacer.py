"""Replaces a node by deleting the Machine, NodeClaim or Node behind it; the autoscaler then creates another.

The controller of a Machine or NodeClaim drains the node first. A bare Node is not drained, so it is deleted only while
no pods run on it except those of DaemonSets, static pods and Tessera's own. The history entry that counts the
replacement is stored first: a controller that dies in between has replaced one node less than it counts, never more.
"""

from collections.abc import Callable, Iterable

from tessera.api.driver.assignment import CLUSTER_POLICIES, NVIDIA_DRIVERS
from tessera.api.driver.policy_status import ERROR
from tessera.kube.client.errors import NotFound
from tessera.kube.resources import CAPI_MACHINES, NODECLAIMS, NODES, OPENSHIFT_MACHINES, Machine, Node, Pod, Resource
from tessera.kube.runtime import KubeRuntime
from tessera.kube.watch.cache import Cache
from tessera.provisioning.recording import HistoryStore
from tessera.provisioning.tracking.machines import MachineRequest
from tessera.provisioning.tracking.timestamps import tessera_app
from tessera.provisioning.tracking.tracker import Tracker
from tessera.text import list_names

_MIRROR = "kubernetes.io/config.mirror"
#: Type, status and reason of the condition of a policy with mistakes.
_REFUSED = (ERROR, "True", "ReconcileFailed")


class Replacer:
    """Deletes the object that a node was made from.

    Args:
        runtime: see :class:`~tessera.kube.runtime.KubeRuntime`.
        pods: all pods.
        tracker: the nodes' records.
        store: the history, which counts replacements.
        served: returns a kind of machine at its served version; see
            :class:`~tessera.provisioning.tracking.machines.OptionalKind`.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        *,
        pods: Cache[Pod],
        tracker: Tracker,
        store: HistoryStore,
        served: Callable[[Resource[Machine]], Resource[Machine]],
    ) -> None:
        self._client = runtime.client
        self._clock = runtime.clock
        self._pods = pods
        self._tracker = tracker
        self._store = store
        self._served = served

    def obstacle(self, node: Node, request: MachineRequest | None) -> str:
        """Reason that a node must not be deleted now; empty if it may be."""
        if request is not None:
            return ""
        found = sorted(
            f"{pod.metadata.namespace}/{pod.metadata.name}" for pod in self._blocking_pods(node.metadata.name)
        )
        return f"no Machine or NodeClaim is known, and pods run on it: {list_names(found, 3)}" if found else ""

    async def invalid_policy(self) -> str:
        """The policy with mistakes because of which no node gets a driver; empty if there is none.

        Raises:
            ApiError: the policies cannot be read.
            ConnectionError: the server gave no answer.
        """
        for resource in (CLUSTER_POLICIES, NVIDIA_DRIVERS):
            try:
                found = (await self._client.list(resource)).items
            except NotFound:
                continue  # the cluster has no such kind
            for each in found:
                conditions = (each.get("status") or {}).get("conditions") or ()
                if any((one.get("type"), one.get("status"), one.get("reason")) == _REFUSED for one in conditions):
                    name = f"{resource.kind} {each['metadata']['name']}"
                    return f"{name} has mistakes, so that another node in its place would be given no driver either"
        return ""

    async def replace(self, node: Node, request: MachineRequest | None, now: float) -> str:
        """Counts the replacement and requests it.

        Returns:
            The deleted object.

        Raises:
            ApiError: the replacement could not be counted, or the object not deleted.
            ConnectionError: the server gave no answer.
        """
        name = node.metadata.name
        record = self._tracker.mark_replaced(name, now)
        if record is not None:  # else it is counted already
            self._store.history.nodes.put(record)
            await self._store.flush()
        try:
            return await self._delete(node, request)
        except NotFound:
            return f"Node {name}, which is gone already"

    async def _delete(self, node: Node, request: MachineRequest | None) -> str:
        if request is None:
            await self._client.delete(NODES, node.metadata.name, uid=node.metadata.uid)
            return f"Node {node.metadata.name}"
        if request.resource == NODECLAIMS.label:
            await self._client.delete(self._served(NODECLAIMS), request.name, uid=request.uid)
        elif request.resource == OPENSHIFT_MACHINES.label:
            await self._client.delete(
                self._served(OPENSHIFT_MACHINES), request.name, request.namespace, uid=request.uid
            )
        else:
            await self._client.delete(self._served(CAPI_MACHINES), request.name, request.namespace, uid=request.uid)
        return f"{request.resource} {request.namespace}/{request.name}".replace(" /", " ")

    def _blocking_pods(self, node: str) -> Iterable[Pod]:
        for pod in self._pods.values():
            daemon = any(owner.kind == "DaemonSet" for owner in pod.metadata.owner_references)
            own = tessera_app(pod).startswith("tessera-")
            over = pod.status.phase in {"Succeeded", "Failed"}
            if pod.spec.node_name == node and not (daemon or own or over or _MIRROR in pod.metadata.annotations):
                yield pod
