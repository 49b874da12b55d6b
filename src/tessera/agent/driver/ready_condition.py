"""Tells on the Node whether its cards are advertised, and if not, what is waited for.

The condition ``GpuNodeReady`` has an owner of its own: it is written while no driver is there and nobody knows what the
agent's other conditions would say; those stay as they are meanwhile, as over a restart of the agent. A replacement of
the driver may begin once it says ``PausedForDriver``: NVML is closed by then.
"""

import logging
import random
from collections.abc import Callable
from typing import Literal

from tessera.agent.base.change_notifier import ChangeNotifier
from tessera.agent.base.node_conditions import NodeCondition, conditions_manifest
from tessera.agent.driver.driver_state import WaitReason
from tessera.api.driver.node_status import ADVERTISED_CONDITION as CONDITION
from tessera.api.driver.node_status import WAITING_FOR_KUBELET
from tessera.clock import Clock, rfc3339
from tessera.kube.backoff import Backoff
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, Condition, Node
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Who owns the condition.
FIELD_MANAGER = "tessera-agent-driver"
#: Seconds after a write in which it is not repeated because the Node shows something else.
REPAIR_PAUSE = 30.0

_WELL = NodeCondition(CONDITION, "True", "Advertised", "the driver is there, and kubelet has the node's cards")
_TAKEN = NodeCondition(
    CONDITION,
    "False",
    WAITING_FOR_KUBELET,
    "kubelet has the node's cards, the node's allocatable does not show them yet",
)


class ReadyConditionWriter:
    """Keeps one condition true.

    Args:
        client: the API server.
        node_name: the Node.
        node: the Node as last seen; ``None`` while there is none.
        events: where changes are told.
        clock: the time.
        rng: for jitter.
    """

    def __init__(
        self,
        client: Client,
        *,
        node_name: str,
        node: Callable[[], Node | None],
        events: EventRecorder,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._client = client.with_field_manager(FIELD_MANAGER)
        self._name = node_name
        self._node = node
        self._events = events
        self._changes = ChangeNotifier()
        self._clock = clock
        self._backoff = Backoff(rng)
        self._wanted: NodeCondition | None = None
        self._written: tuple[str, NodeCondition, float] | None = None

    @property
    def desired(self) -> NodeCondition | None:
        """What the condition shall be; ``None`` before anything was said."""
        return self._wanted

    def node_changed(self) -> None:
        """The Node changed."""
        self._changes.notify()

    def set_waiting(self, waits: WaitReason) -> None:
        """Something is waited for."""
        self._want(NodeCondition(CONDITION, "False", waits.reason, one_line(waits.message, CONDITION_MESSAGE)))

    def set_publishing(self) -> None:
        """Kubelet has the cards, and the node's status does not show them yet.

        An agent that has just started leaves a node ready that is: kubelet counts its devices again in a moment.
        """
        node = self._node()
        shown = _shown(node) if node is not None else None
        if self._wanted is not None or shown is None or shown.status != "True":
            self._want(_TAKEN)

    def set_advertised(self) -> None:
        """The node's status shows the cards."""
        self._want(_WELL)

    def _want(self, wanted: NodeCondition) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            _log.info("%s: %s", wanted.reason, wanted.message)
            self._changes.notify()

    async def run(self) -> None:
        """Tells until cancelled."""
        while True:
            seen = self._changes.count
            node, wanted = self._node(), self._wanted
            pause = None
            if node is not None and wanted is not None:
                pause = self._due(node, wanted)
            if node is not None and wanted is not None and pause == 0:
                pause = await self._tell(node, wanted)
            await self._changes.wait(seen, pause)

    def _due(self, node: Node, wanted: NodeCondition) -> float | None:
        """In how many seconds to write: 0 for now, ``None`` for never while nothing changes."""
        if (shown := _shown(node)) is not None and _says(shown, wanted):
            return None
        if self._written is None or self._written[:2] != (node.metadata.uid, wanted):
            return 0.0
        return max(0.0, self._written[2] + REPAIR_PAUSE - self._clock.monotonic())

    async def _tell(self, node: Node, wanted: NodeCondition) -> float | None:
        """Writes; returns the pause after a failure."""
        shown = _shown(node)
        since: dict[str, tuple[str, str]] = {}
        if shown is not None and shown.last_transition_time is not None:
            since[CONDITION] = (shown.status, shown.last_transition_time)
        listed = conditions_manifest([wanted], since, rfc3339(self._clock.now()))
        body = {"metadata": {"uid": node.metadata.uid}, "status": {"conditions": listed}}
        try:
            await self._client.apply(NODES, self._name, body, subresource="status")
        except (ApiError, ConnectionError, TimeoutError) as error:
            pause = self._backoff.next()
            _log.warning("node %s cannot be told of its driver, again in %.1f s: %s", self._name, pause, error)
            return pause
        self._backoff.reset()
        self._written = (node.metadata.uid, wanted, self._clock.monotonic())
        if shown is not None or wanted.status != "True":
            kind: Literal["Normal", "Warning"] = "Warning" if wanted.reason == "NvmlFailed" else "Normal"
            about = make_reference(NODES, self._name, uid=node.metadata.uid)
            self._events.record(about, wanted.reason, wanted.message, type=kind)
        return None


def _shown(node: Node) -> Condition | None:
    return next((each for each in node.status.conditions if each.type == CONDITION), None)


def _says(shown: Condition, wanted: NodeCondition) -> bool:
    return (shown.status, shown.reason, shown.message) == (wanted.status, wanted.reason, wanted.message)
