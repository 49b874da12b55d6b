"""Opens the driver as soon as it may be used, and closes it again: waits for events, and writes markers.

:mod:`tessera.agent.driver.hardware` decides. The gate checks after every event on the node or the Node object, with
two exceptions by time. First, if a driver reports that it is ready and NVML fails, the gate tries again with growing
pauses. A pause ends early only when a fact changes that others decide (:class:`_Outside`): the gate's own markers are
events too, and must not end it. Second, a module of the host that an administrator loads by hand makes no device node
before its first use, so no event shows it: the gate tries to open a driver every :data:`HOST_RECHECK`.

Many parts of the agent call NVML, and each treats an error as one of its own call. :class:`NvmlWithLossDetection`
notices when the driver itself is gone: then everything must be released before another driver can come.
"""

import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import NamedTuple, Self, TypeVar

import msgspec

from tessera.agent.base.node_files import MarkerFiles
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
from tessera.agent.driver.ready_condition import ReadyConditionWriter
from tessera.api.nodes.driver_status import (
    CUDA_READY,
    DRIVER_CONTAINER_READY,
    DRIVER_READY,
    DRIVER_SET_LABEL,
    PAUSE_LABEL,
    PAUSED,
    PLUGIN_READY,
    TOOLKIT_READY,
)
from tessera.api.nodes.node_marks import RemovalRequest, read_request
from tessera.kube.backoff import Backoff
from tessera.kube.resources import Node
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import DriverMismatch, DriverNotLoaded, NvmlError
from tessera.nvml.interface import GpuEvent, GpuProcess, Nvml

_log = logging.getLogger(__name__)

T = TypeVar("T")


#: Calls that concern no card; the list of cards fails only when the driver does.
_NODE_CALLS = frozenset({"devices", "driver_version", "cuda_version"})


class NvmlWithLossDetection(AsyncNvml):
    """Passes all calls on, and notices when the driver is gone.

    Args:
        inner: makes the calls.
        changes: notified when the driver is gone.

    Attributes:
        gone: NVML's error when the driver went; empty while it is there.
    """

    def __init__(self, inner: AsyncNvml, changes: ChangeNotifier) -> None:
        self.simulated = inner.simulated
        self.gone = ""
        self._inner = inner
        self._changes = changes

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        try:
            await self._inner.__aexit__(*exc_info)
        except NvmlError as error:  # a driver that is gone has nothing left to close
            _log.warning("NVML was not closed in order: %s", error)

    async def call(self, operation: str, call: Callable[[Nvml], T], *, card: str = "") -> T:
        """Makes one call."""
        try:
            return await self._inner.call(operation, call, card=card)
        except (DriverNotLoaded, DriverMismatch) as error:
            if operation in _NODE_CALLS or not await self._answers():
                self._record_loss(error)
            raise

    async def wait_event(self, seconds: float) -> GpuEvent | None:
        """The next hardware event."""
        try:
            return await self._inner.wait_event(seconds)
        except (DriverNotLoaded, DriverMismatch) as error:
            self._record_loss(error)
            raise

    async def _process_exit(self, processes: list[GpuProcess], /) -> None:
        await self._inner._process_exit(processes)  # noqa: SLF001 - the same interface, one object further

    async def _answers(self) -> bool:
        """True if the driver still answers; then an error is that of one card."""
        try:
            await self._inner.driver_version()
        except NvmlError:
            return False
        return True

    def _record_loss(self, error: Exception) -> None:
        if not self.gone:
            self.gone = str(error)
            self._changes.notify(Fact.DRIVER)


#: Seconds after which the gate tries to open a driver of the host again without any event.
HOST_RECHECK = 60.0
#: Shortest pause in seconds after NVML failed; the pauses double up to :data:`~tessera.kube.backoff.LONGEST`.
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
        watched = NvmlWithLossDetection(self._driver.nvml(found.home), self._changes)
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
