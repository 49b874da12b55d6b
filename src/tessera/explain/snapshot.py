"""What of the cluster an answer is made from: objects as they were read, and the controller's own state from them.

Somebody who asks may not be allowed to read everything. What was refused is named in :attr:`Sight.unseen`; without
pods, nodes or Instaslice objects of the whole cluster there is no state of the controller, and answers rest on what the
pod itself and its events say.
"""

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tessera.api.agents import AGENT_DAEMON_SET, is_agent, is_ready
from tessera.api.instaslice import Instaslice, Slice
from tessera.api.names import NodeName
from tessera.api.operator.settings import SYSTEM_NAMESPACE
from tessera.clock import parse_rfc3339
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.stored import state_of
from tessera.explain.explanation import age
from tessera.kube.resources import CoreEvent, Lease, Node, Pod, ResourceQuota
from tessera.limits import EVENT_SHOWN, LEASE_DURATION
from tessera.provisioning.milestones import Record

#: Label of the agents' pods and name of the controller's Lease, as deploy/ has them.
AGENT_LABEL = ("app.kubernetes.io/name", "tessera-agent")
LEASE = "tessera-controller"

#: Without these the controller's state cannot be made.
NEEDED = frozenset({"pods", "nodes", "instaslices"})

#: Times the Lease's duration that it may be old: two clocks are compared, and the holder may be slow.
_LEASE_SLACK = 2.0
_LEASE_SECONDS = 15
#: Seconds by which clocks that are set at all may differ; a renewal that lies further ahead is forged.
_CLOCKS_APART = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What was read.

    Attributes:
        now: when, seconds since 1970.
        pods: of the cluster, or of the namespace if only that is allowed.
        nodes: all nodes.
        instaslices: the nodes' objects.
        leases: those named like the controller's.
        events: of the namespace, or of the pod that is asked about.
        quotas: of the namespace.
        history: records of nodes that came up, for what is to be expected of one that is on its way.
        unseen: plural names of what may not be read.
    """

    now: float
    pods: Sequence[Pod] = ()
    nodes: Sequence[Node] = ()
    instaslices: Sequence[Instaslice] = ()
    leases: Sequence[Lease] = ()
    events: Sequence[CoreEvent] = ()
    quotas: Sequence[ResourceQuota] = ()
    history: Sequence[Record] = ()
    unseen: frozenset[str] = frozenset()


class View:
    """What follows from a sight, for all rooms that answer.

    Attributes:
        sight: what was read.
        slicer: the controller's state, with everything that waits planned once; None if too little may be read.
    """

    def __init__(self, sight: Sight) -> None:
        self.sight = sight
        self.slicer: Slicer | None = None
        if not sight.unseen & NEEDED:
            self.slicer = state_of(sight.pods, sight.nodes, sight.instaslices)
        self._indexes = {
            gpu.gpu_uuid: index
            for item in sight.instaslices
            for index, gpu in enumerate(item.status.node_resources.node_gpus)
        }

    def position(self, profile: str, gpu: str, start: int, size: int) -> str:
        """``3g.20gb on GPU 0, memory slots 4-7``."""
        card = f"GPU {self._indexes[gpu]}" if gpu in self._indexes else gpu
        slots = f"slot {start}" if size == 1 else f"slots {start}-{start + size - 1}"
        return f"{profile or 'a slice'} on {card}, memory {slots}"

    def slices(self, slices: Iterable[Slice]) -> str:
        """Positions of a pod's slices."""
        return "; ".join(self.position(each.profile, each.gpu_uuid, each.start, each.size) for each in slices)

    def node(self, name: str) -> Node | None:
        """A node, if it is there and may be seen."""
        return next((each for each in self.sight.nodes if each.metadata.name == name), None)

    def pod(self, key: str) -> Pod | None:
        """A pod by ``namespace/name``."""
        namespace, _, name = key.partition("/")
        found = (each for each in self.sight.pods if each.metadata.name == name)
        return next((each for each in found if each.metadata.namespace == namespace), None)

    # Tessera's own processes

    def controller_fault(self) -> str:
        """Why no controller seems to run; empty if one does, or if that cannot be seen."""
        if "leases" in self.sight.unseen:
            return ""
        if not self.sight.leases:
            return f"there is no Lease {LEASE}, which a running controller holds"
        faults = [self._lease_fault(lease) for lease in self.sight.leases]
        return "" if not all(faults) else faults[0]

    def _lease_fault(self, lease: Lease) -> str:
        where = f"Lease {lease.metadata.namespace}/{lease.metadata.name}"
        if not lease.spec.holder_identity:
            return f"nobody holds {where}"
        try:
            since = self.sight.now - parse_rfc3339(lease.spec.renew_time or "")
        except ValueError:
            return f"{where} was never renewed"
        if since < -_CLOCKS_APART:
            return (
                f"{where} says {lease.spec.renew_time} as its renewTime, a day or more from now: if its holder"
                f" {lease.spec.holder_identity} is no pod of Tessera, delete the Lease"
            )
        duration = min(lease.spec.lease_duration_seconds or 0, LEASE_DURATION)
        if since <= _LEASE_SLACK * (duration if duration > 0 else _LEASE_SECONDS):
            return ""
        return f"{where} was last renewed {age(since)} ago by {lease.spec.holder_identity}"

    def agent_fault(self, node: NodeName | str) -> str:
        """What is wrong with a node's agent as far as its pod shows; empty if it is ready or cannot be seen."""
        if "pods" in self.sight.unseen:
            return ""
        agent = self.agent(node)
        if agent is None:
            return f"no pod of DaemonSet {SYSTEM_NAMESPACE}/{AGENT_DAEMON_SET[-1]} is on node {node}"
        return "" if is_ready(agent) else f"the agent's pod {_state(agent)}"

    def agent(self, node: NodeName | str) -> Pod | None:
        """A node's agent, if its pod is there and may be seen; of several, as in an upgrade, one that is ready."""
        agents = (pod for pod in self.sight.pods if pod.spec.node_name == node and is_agent(pod))
        return max(agents, key=is_ready, default=None)

    # Events

    def events_about(self, uid: str, *, warnings: bool = False) -> list[CoreEvent]:
        """An object's events, newest last."""
        found = (event for event in self.sight.events if event.involved_object.uid == uid)
        return sorted((each for each in found if not warnings or each.type == "Warning"), key=when)

    def events_on(self, kind: str, name: str, *, warnings: bool = False) -> list[CoreEvent]:
        """Events about an object by its name, newest last: kubelet names the Node without the UID that others see."""
        about = [(event, event.involved_object) for event in self.sight.events]
        found = (event for event, item in about if (item.kind, item.name) == (kind, name))
        return sorted((each for each in found if not warnings or each.type == "Warning"), key=when)

    def told(self, event: CoreEvent) -> str:
        """An event in a line."""
        ago = f" {age(self.sight.now - when(event))} ago" if when(event) else ""
        return f"event {event.reason}{ago}: {textwrap.shorten(event.message, EVENT_SHOWN, placeholder=' ...')}"


def _state(pod: Pod) -> str:
    """``tessera-system/tessera-agent-x is not ready (CrashLoopBackOff)``."""
    waiting = [each.state.waiting for each in pod.status.container_statuses if each.state and each.state.waiting]
    why = waiting[0].reason if waiting else pod.status.phase
    return f"{pod.metadata.namespace}/{pod.metadata.name} is not ready ({why or 'unknown'})"


def when(event: CoreEvent) -> float:
    """When an event was seen last, seconds since 1970; 0 if it does not say."""
    last = event.series.last_observed_time if event.series is not None else None
    for text in (last, event.last_timestamp, event.event_time, event.metadata.creation_timestamp):
        if text:
            try:
                return parse_rfc3339(text)
            except ValueError:
                continue
    return 0.0
