"""Events that came while a snapshot of the cluster is taken in, in their order.

The slicer takes them in after it has planned. It may: a slow watch delays events in the same way.

Their number has no limit of its own. It is bounded by what comes in a few steps: events are held only while the changes
that were divided last are taken in, :data:`~tessera.limits.planning.ABSORBED_CHANGES` a step. No held event adds to
them, so with 5,000 nodes and 20,000 pods that are 100 steps at most, and then all events are taken in at once. Each
event is an object that the informers keep anyway, or the outcome of a write, of which each key has one in flight.
"""

from collections.abc import Sequence

from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.state.events import InstasliceDeleted, InstasliceObserved, PodDeleted, SlicerEvent


class EventBacklog:
    """The events, the oldest first."""

    def __init__(self) -> None:
        self._events: list[SlicerEvent] = []
        #: Pods, and nodes of Instaslice objects, whose deletion is among the events, if nothing follows on it.
        self._gone_pods: set[PodUid] = set()
        self._gone_objects: set[NodeName] = set()

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, event: SlicerEvent) -> None:
        """Adds an event."""
        self._events.append(event)
        match event:
            case PodDeleted(uid):
                self._gone_pods.add(uid)
            case InstasliceDeleted(node):
                self._gone_objects.add(node)
            case InstasliceObserved(item):
                self._gone_objects.discard(NodeName(item.metadata.name))
            case _:
                pass

    def pop(self) -> Sequence[SlicerEvent]:
        """Returns all events, and forgets them."""
        found, self._events = self._events, []
        self._gone_pods.clear()
        self._gone_objects.clear()
        return found

    def deletes_pod(self, uid: PodUid) -> bool:
        """True if the deletion of a pod is among the events."""
        return uid in self._gone_pods

    def deletes_object(self, node: NodeName) -> bool:
        """True if the deletion of a node's Instaslice object is among the events, and no newer object."""
        return node in self._gone_objects
