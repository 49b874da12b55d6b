"""Opens the driver as soon as it may be used, closes it again, and says so: by markers, and by a condition of the Node.

:mod:`tessera.agent.driver.hardware` decides. The gate checks after every event on the node or the Node object, with
two exceptions by time. First, if a driver reports that it is ready and NVML fails, the gate tries again with growing
pauses. A pause ends early only when a fact changes that others decide (:class:`_Outside`): the gate's own markers are
events too, and must not end it. Second, a module of the host that an administrator loads by hand makes no device node
before its first use, so no event shows it: the gate tries to open a driver every :data:`HOST_RECHECK`.

Many parts of the agent call NVML, and each treats an error as one of its own call. :class:`.NvmlWithLossDetection`
notices when the driver itself is gone: then everything must be released before another driver can come.

The condition ``GpuNodeReady`` is true if the cards are advertised, else it has the reason. It has a field manager of
its own. The agent writes it even while there is no driver; its other conditions are unknown then and stay as they are,
as over a restart of the agent. A replacement of the driver may begin once the condition says ``PausedForDriver``: NVML
is closed by then.
"""

import logging
from contextlib import AsyncExitStack
from typing import Literal, NamedTuple

import msgspec

from tessera.agent.base.node_files import MarkerFiles
from tessera.agent.base.node_objects import NodeCondition, NodeSource, conditions_manifest
from tessera.agent.base.runtime import AgentEnvironment
from tessera.agent.base.settings import ValidationMode
from tessera.agent.base.wake_ups import ChangeNotifier, Fact
from tessera.agent.driver.hardware import (
    DriverBackend,
    DriverFacts,
    DriverFound,
    DriverHome,
    WaitReason,
    check_validation,
    find_driver,
    is_still_usable,
)
from tessera.api.nodes.node_marks import ADVERTISED_CONDITION as CONDITION
from tessera.api.nodes.node_marks import (
    ADVERTISED_MANAGER,
    CUDA_READY,
    DRIVER_CONTAINER_READY,
    DRIVER_READY,
    DRIVER_SET_LABEL,
    PAUSE_LABEL,
    PAUSED,
    PLUGIN_READY,
    TOOLKIT_READY,
    WAITING_FOR_KUBELET,
    RemovalRequest,
    read_request,
)
from tessera.clock import rfc3339
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.resources import NODES, Condition, Node
from tessera.kube.retries import Backoff
from tessera.limits import CONDITION_MESSAGE
from tessera.nvml.asynchronous import NvmlWithLossDetection
from tessera.nvml.errors import DriverNotLoaded, NvmlError
from tessera.text import one_line

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

    Attributes:
        desired_condition: the desired condition; ``None`` before it was set.
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
        self.desired_condition: NodeCondition | None = None
        #: The last write: UID of the Node, condition, monotonic seconds.
        self._written: tuple[str, NodeCondition, float] | None = None

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
        if self.desired_condition is not None or shown is None or shown.status != "True":
            self._set(_PUBLISHING)

    def set_advertised(self) -> None:
        """Sets the condition to true: the node's status shows the cards."""
        self._set(_ADVERTISED)

    def stop(self) -> None:
        """Writes nothing until the condition is set again: Tessera leaves the node."""
        self.desired_condition = None

    def _set(self, desired: NodeCondition) -> None:
        if desired != self.desired_condition:
            self.desired_condition = desired
            _log.info("%s: %s", desired.reason, desired.message)
            self._changes.notify()

    async def run(self) -> None:
        """Writes until cancelled."""
        while True:
            state = self._state()
            node, desired = self._node.node(), self.desired_condition
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
        return shown, self.desired_condition

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


_log = logging.getLogger(__name__)

#: Seconds after which the gate tries to open a driver of the host again without any event.
HOST_RECHECK = 60.0
#: Shortest pause in seconds after NVML failed; the pauses double up to :data:`~tessera.kube.retries.LONGEST`.
FIRST_PAUSE = 0.5


class OpenDriver(msgspec.Struct, frozen=True):
    """An open driver."""

    found: DriverFound
    hardware: NvmlWithLossDetection


class _Outside(NamedTuple):
    """What others decide about the driver; the agent writes none of it.

    Attributes:
        facts: the markers, files and labels that decide which driver may be used.
        removal: the request that Tessera leaves the node.
        module: the kernel module that is loaded, see :meth:`.DriverBackend.module`.
    """

    facts: DriverFacts
    removal: RemovalRequest | None
    module: str


class DriverGate:
    """Waits for the driver of one node.

    Args:
        environment: the node, its folders, and whether a validation is required.
        driver: finds the driver and opens it.
        markers: the node's marker files.
        condition: reports why the cards cannot be used yet.
        changes: notified when a marker, a device or the node's labels changed.
    """

    def __init__(
        self,
        environment: AgentEnvironment,
        *,
        driver: DriverBackend,
        markers: MarkerFiles,
        condition: ReadyConditionWriter,
        changes: ChangeNotifier,
    ) -> None:
        self._mode: ValidationMode = environment.options.validation
        self._root = environment.options.driver_root
        self._driver = driver
        self._markers = markers
        self._condition = condition
        self._changes = changes.about(Fact.DRIVER)
        self._backoff = Backoff(environment.rng, shortest=FIRST_PAUSE)
        #: True if the Node's labels ask for a pause, and true if they name a driver set.
        self._labels = (False, False)
        #: The request that Tessera leaves this node; ``None`` without one.
        self.removal: RemovalRequest | None = None

    def note_node_change(self, node: Node | None) -> None:
        """Takes in a change of the Node object."""
        labels = node.metadata.labels if node is not None else {}
        now = (labels.get(PAUSE_LABEL) == PAUSED, bool(labels.get(DRIVER_SET_LABEL)))
        removal = read_request(node.metadata.annotations) if node is not None else None
        if (now, removal) != (self._labels, self.removal):
            self._labels, self.removal = now, removal
            self._changes.notify(Fact.DRIVER)

    async def open_driver(self, stack: AsyncExitStack) -> OpenDriver | None:
        """Opens NVML as soon as there is a driver; ``stack`` closes it.

        Returns:
            The driver; ``None`` if there is none that works and Tessera must leave the node.

        Raises:
            NvmlError: only a new process can open the host's driver.
        """
        while True:
            outside = self._outside()
            found = find_driver(outside.facts)
            pause: float | None = None
            if isinstance(found, DriverFound):
                try:
                    return await self._open(found, stack)
                except NvmlError as error:
                    if found.home is DriverHome.HOST and self._driver.needs_new_process(error):
                        raise
                    found, pause = self._explain_refusal(found, error)
            self._remove_markers(DRIVER_READY, PLUGIN_READY)
            if self.removal is not None:
                return None
            self._condition.set_waiting(found)
            await self._changes.wait_differs(self._outside, outside, pause)

    async def _open(self, found: DriverFound, stack: AsyncExitStack) -> OpenDriver:
        watched = NvmlWithLossDetection(self._driver.nvml(found.home), lambda: self._changes.notify(Fact.DRIVER))
        hardware = await stack.enter_async_context(watched)
        self._remove_markers(PLUGIN_READY)
        self._write_marker(DRIVER_READY, self._driver_text(found))
        return OpenDriver(found, hardware)

    def _explain_refusal(self, found: DriverFound, error: NvmlError) -> tuple[WaitReason, float]:
        if found.home is DriverHome.HOST and isinstance(error, DriverNotLoaded):
            return WaitReason("WaitingForDriver", f"no driver is loaded on this node: {error}"), HOST_RECHECK
        return WaitReason("NvmlFailed", f"the driver is there, but NVML fails: {error}"), self._backoff.next()

    async def report_nvml_failure(self, text: str) -> None:
        """Reports that NVML failed after it was opened; returns when to open it again."""
        self._condition.set_waiting(WaitReason("NvmlFailed", f"the driver is there, but NVML fails: {text}"))
        await self._changes.wait_differs(self._outside, self._outside(), self._backoff.next())

    async def wait_validated(self, opened: OpenDriver) -> bool:
        """Waits until the cards may be advertised; ``False`` if the driver must be released first."""
        while self.is_usable(opened):
            count = self._changes.count
            waits = check_validation(opened.found, self._facts(), self._mode)
            if waits is None:
                return True
            self._condition.set_waiting(waits)
            await self._changes.wait(count)
        return False

    def is_usable(self, opened: OpenDriver) -> bool:
        """True if an open driver may still be used; writes the marker anew if it is gone."""
        if self.removal is not None:
            return False
        facts = DriverFacts(paused=self._labels[0], container=self._markers.identity(DRIVER_CONTAINER_READY))
        if opened.hardware.gone or not is_still_usable(opened.found, facts):
            return False
        if not self._markers.present(DRIVER_READY):
            self._write_marker(DRIVER_READY, self._driver_text(opened.found))
        return True

    def note_advertised(self, *, published: bool) -> None:
        """Notes that kubelet has the cards; ``published`` is true if the node's status shows them."""
        self._backoff.reset()
        if not published:
            self._condition.set_publishing()
            return
        self._condition.set_advertised()
        if not self._markers.present(PLUGIN_READY):
            self._write_marker(PLUGIN_READY, self._markers.about_driver())

    def note_released(self) -> None:
        """Notes that the driver was released: removes the markers."""
        self._remove_markers(PLUGIN_READY, DRIVER_READY)

    def _outside(self) -> "_Outside":
        return _Outside(self._facts(), self.removal, self._driver.module())

    def _facts(self) -> DriverFacts:
        paused, managed = self._labels
        return DriverFacts(
            paused=paused,
            # Without a folder of markers no driver container could ever report that it is ready (simulated cards).
            managed=managed and self._markers.folder is not None,
            container=self._markers.identity(DRIVER_CONTAINER_READY),
            library=self._driver.has_library(),
            toolkit=self._markers.mark(TOOLKIT_READY),
            validated=self._markers.mark(CUDA_READY),
            driver_root=str(self._root),
        )

    def _driver_text(self, found: DriverFound) -> str:
        """The content of the marker in the form of NVIDIA's operator; its other parts source it as a shell script."""
        host = found.home is DriverHome.HOST
        root, mounted = ("/", "/host") if host else (self._root, self._root)
        lines = [
            f"IS_HOST_DRIVER={str(host).lower()}",
            f"NVIDIA_DRIVER_ROOT={root}",
            f"DRIVER_ROOT_CTR_PATH={mounted}",
            f"NVIDIA_DEV_ROOT={root}",
            f"DEV_ROOT_CTR_PATH={mounted}",
        ]
        return "\n".join(lines) + "\n" + self._markers.about_driver()

    def _write_marker(self, name: str, text: str) -> None:
        try:
            self._markers.write(name, text)
        except OSError as error:
            _log.warning("marker %s cannot be written, so others go on waiting for it: %s", name, error)

    def _remove_markers(self, *names: str) -> None:
        try:
            self._markers.remove(*(name for name in names if self._markers.present(name)))
        except OSError as error:
            _log.warning("markers %s cannot be removed: %s", ", ".join(names), error)
