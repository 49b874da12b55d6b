"""Writes the condition ``GpuNodeReady`` of the Node: true if its cards are advertised, else the reason.

The condition has a field manager of its own. The agent writes it even while there is no driver; its other conditions
are unknown then and stay as they are, as over a restart of the agent. A replacement of the driver may begin once the
condition says ``PausedForDriver``: NVML is closed by then.
"""

import logging
from typing import Literal

from tessera.agent.base.node_objects import NodeCondition, NodeSource, conditions_manifest
from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.base.wake_ups import ChangeNotifier
from tessera.agent.driver.hardware import WaitReason
from tessera.api.nodes.driver_status import ADVERTISED_CONDITION as CONDITION
from tessera.api.nodes.driver_status import WAITING_FOR_KUBELET
from tessera.api.nodes.node_marks import ADVERTISED_MANAGER
from tessera.clock import rfc3339
from tessera.kube.backoff import Backoff
from tessera.kube.client.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, Condition, Node
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Seconds after a write before it is repeated because the Node shows another condition.
REPAIR_PAUSE = 30.0

_ADVERTISED = NodeCondition(CONDITION, "True", "Advertised", "the driver is there, and kubelet has the node's cards")
_PUBLISHING = NodeCondition(
    CONDITION,
    "False",
    WAITING_FOR_KUBELET,
    "kubelet has the node's cards, the node's allocatable does not show them yet",
)


class ReadyConditionWriter:
    """Writes the desired condition on one Node.

    Args:
        environment: the API server and the clock.
        node: the Node object as last seen.
        events: records the changes.
    """

    def __init__(self, environment: AgentEnvironment, node: NodeSource, events: EventRecorder) -> None:
        self._client = environment.client.with_field_manager(ADVERTISED_MANAGER)
        self._name = node.node_name
        self._node = node
        self._events = events
        self._changes = ChangeNotifier()
        self._clock = environment.clock
        self._backoff = Backoff(environment.rng)
        #: The desired condition; ``None`` before it was set.
        self._desired: NodeCondition | None = None
        #: The last write: UID of the Node, condition, monotonic seconds.
        self._written: tuple[str, NodeCondition, float] | None = None

    @property
    def desired_condition(self) -> NodeCondition | None:
        """The desired condition; ``None`` before it was set."""
        return self._desired

    def note_node_change(self) -> None:
        """Takes in a change of the Node."""
        self._changes.notify()

    def set_waiting(self, waits: WaitReason) -> None:
        """Sets the condition to false, with its reason."""
        self._set(NodeCondition(CONDITION, "False", waits.reason, one_line(waits.message, CONDITION_MESSAGE)))

    def set_publishing(self) -> None:
        """Sets the condition to false: kubelet has the cards, and the node's status does not show them yet.

        An agent that has just started leaves a ready node ready: kubelet counts its devices again in a moment.
        """
        node = self._node.node()
        shown = _current(node) if node is not None else None
        if self._desired is not None or shown is None or shown.status != "True":
            self._set(_PUBLISHING)

    def set_advertised(self) -> None:
        """Sets the condition to true: the node's status shows the cards."""
        self._set(_ADVERTISED)

    def stop(self) -> None:
        """Writes nothing until the condition is set again: Tessera leaves the node."""
        self._desired = None

    def _set(self, desired: NodeCondition) -> None:
        if desired != self._desired:
            self._desired = desired
            _log.info("%s: %s", desired.reason, desired.message)
            self._changes.notify()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            state = self._state()
            node, desired = self._node.node(), self._desired
            pause = None
            if node is not None and desired is not None:
                pause = self._seconds_until_write(node, desired)
            if node is not None and desired is not None and pause == 0:
                pause = await self._write(node, desired)
            await self._changes.wait_differs(self._state, state, pause)

    def _state(self) -> object:
        """What decides about a write: the Node, the condition that it shows, and the desired one."""
        node = self._node.node()
        shown = None if node is None else (node.metadata.uid, _current(node))
        return shown, self._desired

    def _seconds_until_write(self, node: Node, desired: NodeCondition) -> float | None:
        """Seconds until the next write: 0 for now, ``None`` for none before a change."""
        if (shown := _current(node)) is not None and _is_same(shown, desired):
            return None
        if self._written is None or self._written[:2] != (node.metadata.uid, desired):
            return 0.0
        return max(0.0, self._written[2] + REPAIR_PAUSE - self._clock.monotonic())

    async def _write(self, node: Node, desired: NodeCondition) -> float | None:
        """Writes the condition; returns the pause in seconds after a failure."""
        shown = _current(node)
        since: dict[str, tuple[str, str]] = {}
        if shown is not None and shown.last_transition_time is not None:
            since[CONDITION] = (shown.status, shown.last_transition_time)
        listed = conditions_manifest([desired], since, rfc3339(self._clock.now()))
        body = {"metadata": {"uid": node.metadata.uid}, "status": {"conditions": listed}}
        try:
            await self._client.apply(NODES, self._name, body, subresource="status")
        except (ApiError, ConnectionError, TimeoutError) as error:
            pause = self._backoff.next()
            _log.warning(
                "condition GpuNodeReady of node %s cannot be written, next attempt in %.1f s: %s",
                self._name,
                pause,
                error,
            )
            return pause
        self._backoff.reset()
        self._written = (node.metadata.uid, desired, self._clock.monotonic())
        if shown is not None or desired.status != "True":
            kind: Literal["Normal", "Warning"] = "Warning" if desired.reason == "NvmlFailed" else "Normal"
            about = make_reference(NODES, self._name, uid=node.metadata.uid)
            self._events.record(about, desired.reason, desired.message, type=kind)
        return None


def _current(node: Node) -> Condition | None:
    return node.status.condition(CONDITION)


def _is_same(shown: Condition, desired: NodeCondition) -> bool:
    return (shown.status, shown.reason, shown.message) == (desired.status, desired.reason, desired.message)
