"""Tells the slicer which nodes have which models of KServe's LocalModelCaches, for the preferences of pods.

KServe downloads a model to each node of the cache's groups, one by one, and says in the LocalModelNode of each node how
far that is. The pods of a service mount a local volume, whose affinity admits the whole group: a pod on a node that
still downloads finds no model. So of its group a pod prefers the nodes that have the model
(:func:`~tessera.controller.objects.pod_preferences.model_preferences`).

A LocalModelNode speaks for the node of its name only.
"""

from itertools import islice
from typing import Any

import msgspec

from tessera.controller.cluster.volumes import NodeModels
from tessera.controller.informers import ClusterInput
from tessera.controller.satellite import Term
from tessera.controller.slicing.state.events import StorageObserved
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.errors import ApiError
from tessera.kube.informer import wait_served
from tessera.kube.resources import Resource

#: KServe's (``pkg/apis/serving/v1alpha1/local_model_node_types.go``), and what one says of a model that is there.
LOCAL_MODEL_NODES: Resource[dict[str, Any]] = Resource(
    "serving.kserve.io", "v1alpha1", "localmodelnodes", "LocalModelNode", False, dict
)
_DOWNLOADED = "ModelDownloaded"
#: Most models of a node that are looked at: a disk of 30 TB has fewer of 100 GB.
MODELS = 1_000


class _Kind(msgspec.Struct, frozen=True):
    name: str = ""


class _Kinds(msgspec.Struct, frozen=True):
    """``metav1.APIResourceList``."""

    resources: tuple[_Kind, ...] = ()


class LocalModels(ClusterInput):
    """Passes the models of nodes to the slicer.

    Args:
        term: the term of leadership.
    """

    def __init__(self, term: Term) -> None:
        super().__init__(term.runtime, term.slicer, term.wake)
        self._informer = self._watch(LOCAL_MODEL_NODES)
        self._informer.add_handler(self._observe)

    async def run(self) -> None:
        """Watches until cancelled, once the cluster has the kind."""
        await wait_served(self._is_served, self._clock)
        await self._informer.run()

    async def _is_served(self) -> bool:
        """True if the cluster has the kind: KServe serves others of this group's version, also without local models."""
        try:
            answer = await self._client.request("GET", f"/apis/{LOCAL_MODEL_NODES.api_version}")
            kinds = msgspec.json.decode(answer.body, type=_Kinds).resources
        except (ApiError, ConnectionError, TimeoutError, msgspec.DecodeError):
            return False
        return any(each.name == LOCAL_MODEL_NODES.plural for each in kinds)

    def _observe(self, event: WatchEvent[dict[str, Any]]) -> None:
        found = read_models(event.object)
        if found is not None:
            self._pass_on(StorageObserved(found, deleted=event.kind is EventKind.DELETED))


def read_models(item: dict[str, Any]) -> NodeModels | None:
    """Reads a LocalModelNode; a status that is none counts as empty, and an object without a name is None."""
    status = item.get("status")
    told = status.get("modelStatus") if isinstance(status, dict) else None
    states = islice(told.items(), MODELS) if isinstance(told, dict) else ()
    name = item.get("metadata", {}).get("name")
    return NodeModels(name, frozenset(model for model, state in states if state == _DOWNLOADED)) if name else None
