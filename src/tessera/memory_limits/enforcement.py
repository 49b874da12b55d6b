"""Reads the memory of pods, and carries out decisions about it after reading again every value that led to them.

Between a sample and the action time passes: the process may have ended and its PID may belong to another one, it may
have freed memory, NVML may report wrong numbers. So the module first opens a pidfd, then reads start time, pod and
memory anew, and sends the signal through the pidfd only if the decision still holds. It does not try again: the next
sample decides anew.

Each decision is counted with its outcome. Events name the card, the pod's use, its limit, its processes there and the
action.
"""

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum

from tessera.agent.base.host import ProcessId, ProcessTable
from tessera.agent.base.node_objects import EventType
from tessera.agent.base.runtime import Metrics
from tessera.agent.base.settings import EnforcementMode
from tessera.api.names import PodUid
from tessera.kube.eviction import Blocked, Evicted, Evictor
from tessera.kube.resources import Pod
from tessera.memory_limits.policy import CardUse, MemoryAction, MemoryDecision, ProcessUse, is_plausible, sum_by_pod
from tessera.nvml.asynchronous import AsyncNvml
from tessera.nvml.errors import NvmlError
from tessera.nvml.interface import GpuProcess, GpuUuid, MigUuid
from tessera.text import list_names

_SIGNALS = {MemoryAction.TERMINATE: signal.SIGTERM, MemoryAction.KILL: signal.SIGKILL}


#: Reads the present state of a card or MIG device; ``None`` if it cannot be read.
ReadCard = Callable[[str], Awaitable[CardUse | None]]
#: Records an event of a pod: reason in CamelCase, text for people, type.
RecordOnPod = Callable[[Pod, str, str, EventType], None]


class EnforcementOutcome(Enum):
    """The outcome of a decision."""

    SENT = "sent"
    #: The process has ended.
    ENDED = "ended"
    #: The kernel does not prove that the process belongs to the pod.
    NOT_OF_POD = "not-of-pod"
    #: The process no longer holds memory on the card.
    NOT_ON_CARD = "not-on-card"
    #: The pod is within its limit again.
    WITHIN_LIMIT = "within-limit"
    #: The card cannot be read, or its numbers cannot be true.
    UNREADABLE = "unreadable"
    #: The kernel refused, or has no pidfds.
    NOT_PERMITTED = "not-permitted"


async def signal_process(
    decision: MemoryDecision, *, processes: ProcessTable, read_card: ReadCard
) -> EnforcementOutcome:
    """Sends the signal of a decision if it still holds.

    Args:
        decision: ``TERMINATE`` or ``KILL``.
        processes: the machine's processes.
        read_card: reads the card of the decision.

    Raises:
        ValueError: the decision is of another kind.
    """
    number = _SIGNALS.get(decision.action)
    process = decision.process
    if number is None or process is None:
        raise ValueError(f"decision {decision.action.value} on pod {decision.pod}: only a process can be signalled")
    try:
        with processes.open(process) as held:
            if held is None:
                return EnforcementOutcome.ENDED
            against = await find_objection(decision, process, processes=processes, read_card=read_card)
            if against is not None:
                return against
            return EnforcementOutcome.SENT if held.send(number) else EnforcementOutcome.ENDED
    except OSError:
        return EnforcementOutcome.NOT_PERMITTED


async def find_objection(
    decision: MemoryDecision, process: ProcessId | None, *, processes: ProcessTable, read_card: ReadCard
) -> EnforcementOutcome | None:
    """Returns why a decision no longer holds; ``None`` if it holds. Without a process only the pod's use is checked."""
    if process is not None:
        residence = processes.pod_of(process)
        if residence is None or residence.pod != decision.pod:
            return EnforcementOutcome.NOT_OF_POD
    card = await read_card(decision.device)
    if card is None or not is_plausible(card):
        return EnforcementOutcome.UNREADABLE
    if process is not None and not any((use.process, use.pod) == (process, decision.pod) for use in card.uses):
        return EnforcementOutcome.NOT_ON_CARD
    return None if sum_by_pod(card.uses).get(decision.pod, 0) > decision.limit else EnforcementOutcome.WITHIN_LIMIT


class ProcessMemoryReader:
    """Reads the memory of each process on a card: NVML's processes, each with the pod that the kernel proves for it.

    The reader never guesses: a card that cannot be read has no reading, and a process that ended between NVML's answer
    and the kernel's is left out.

    Args:
        hardware: the node's cards.
        processes: the machine's processes, in the PID namespace that NVML reports (the host's).
    """

    def __init__(self, hardware: AsyncNvml, processes: ProcessTable) -> None:
        self._hardware = hardware
        self._processes = processes

    def own_pod(self) -> PodUid | None:
        """The pod that the agent runs in; an MPS server may be a part of it."""
        process = self._processes.identify(os.getpid())
        found = None if process is None else self._processes.pod_of(process)
        return None if found is None else found.pod

    async def read(self, device: str) -> CardUse | None:
        """Reads the present state of a card or MIG device; ``None`` if it cannot be read.

        Args:
            device: UUID, ``GPU-`` or ``MIG-``.
        """
        name = MigUuid(device) if device.startswith("MIG-") else GpuUuid(device)
        try:
            processes = await self._hardware.processes(name)
            memory = await self._hardware.memory(name)
        except NvmlError:
            return None
        uses = tuple(use for each in processes if (use := self._use(each)) is not None)
        return CardUse(device=device, total=memory.total, used=memory.used + (memory.reserved or 0), uses=uses)

    def _use(self, listed: GpuProcess) -> ProcessUse | None:
        process = self._processes.identify(listed.pid)
        if process is None or listed.memory_bytes is None:  # nobody acts on memory that nobody knows
            return None
        found = self._processes.pod_of(process)
        return ProcessUse(process=process, bytes=listed.memory_bytes, pod=None if found is None else found.pod)


_GIB = 2**30
#: Largest number of processes in a text; events are short.
_MOST_SHOWN = 5


class MemoryEnforcement:
    """Carries out decisions.

    Args:
        mode: selects the decisions that are carried out.
        processes: the machine's processes.
        read_card: reads the present state of a card.
        evictor: evicts pods.
        record: records events of pods.
        metrics: counts decisions.
    """

    def __init__(
        self,
        *,
        mode: EnforcementMode,
        processes: ProcessTable,
        read_card: ReadCard,
        evictor: Evictor,
        record: RecordOnPod,
        metrics: Metrics,
    ) -> None:
        self._mode = mode
        self._processes = processes
        self._read_card = read_card
        self._evictor = evictor
        self._record_on_pod = record
        self._metrics = metrics

    def report_rejected_limit(self, pod: Pod, text: str) -> None:
        """Records an event that a pod's annotation is rejected."""
        self._record_on_pod(pod, "GpuMemoryLimitRefused", text, "Warning")

    async def enforce(self, decision: MemoryDecision, card: CardUse, pods: Mapping[PodUid, Pod]) -> None:
        """Carries out one decision.

        Args:
            decision: the decision.
            card: the reading that led to it.
            pods: the node's pods by the UID that their cgroups carry.
        """
        pod = pods.get(decision.pod)
        match decision.action:
            case MemoryAction.NEAR | MemoryAction.EXCEEDED | MemoryAction.STRANGER:
                outcome = self._record(decision, card, pod)
            case MemoryAction.EVICT:
                outcome = await self._evict(decision, pod)
            case MemoryAction.TERMINATE | MemoryAction.KILL:
                outcome = await self._signal(decision, pod)
        self._metrics.memory.labels(decision.action.value, outcome).inc()

    def _record(self, decision: MemoryDecision, card: CardUse, pod: Pod | None) -> str:
        if pod is None or (decision.action is MemoryAction.NEAR and self._mode is EnforcementMode.OBSERVE):
            return "counted"
        processes = _describe_processes(decision, card)
        if decision.action is MemoryAction.STRANGER:
            text = f"uses {_gib(decision.used)} of {decision.device}, of which it was given no part{processes}"
            self._record_on_pod(pod, "GpuUsedWithoutAllocation", text, "Warning")
        else:
            near = decision.action is MemoryAction.NEAR
            reason = "GpuMemoryNearLimit" if near else "GpuMemoryLimitExceeded"
            self._record_on_pod(pod, reason, f"{_describe_use(decision)}{processes}", "Warning")
        return "reported"

    async def _evict(self, decision: MemoryDecision, pod: Pod | None) -> str:
        against = await find_objection(decision, None, processes=self._processes, read_card=self._read_card)
        if against is not None or pod is None:
            return EnforcementOutcome.ENDED.value if against is None else against.value
        meta = pod.metadata
        result = await self._evictor.evict(meta.namespace, meta.name, PodUid(meta.uid))
        if isinstance(result, Evicted):
            self._record_on_pod(pod, "GpuMemoryEvicted", f"evicted: {_describe_use(decision)}", "Warning")
            return "evicted"
        if isinstance(result, Blocked):
            self._record_on_pod(
                pod,
                "GpuMemoryEvictionBlocked",
                f"{_describe_use(decision)}; it is not evicted: {result.text}",
                "Warning",
            )
            return "blocked"
        return EnforcementOutcome.ENDED.value

    async def _signal(self, decision: MemoryDecision, pod: Pod | None) -> str:
        outcome = await signal_process(decision, processes=self._processes, read_card=self._read_card)
        if pod is not None and decision.process is not None:
            pid = decision.process.pid
            if outcome is EnforcementOutcome.SENT:
                done = (
                    "was asked to end (SIGTERM)" if decision.action is MemoryAction.TERMINATE else "was ended (SIGKILL)"
                )
                self._record_on_pod(
                    pod, "GpuMemoryProcessTerminated", f"{_describe_use(decision)}; its process {pid} {done}", "Warning"
                )
            elif outcome is EnforcementOutcome.NOT_PERMITTED:
                text = f"{_describe_use(decision)}; the kernel does not let the agent end its process {pid}"
                self._record_on_pod(pod, "GpuMemoryTerminationFailed", text, "Warning")
        return outcome.value


def _describe_use(decision: MemoryDecision) -> str:
    return f"uses {_gib(decision.used)} of {decision.device}, its limit there is {_gib(decision.limit)}"


def _describe_processes(decision: MemoryDecision, card: CardUse) -> str:
    """The pod's processes on the card, the largest first."""
    own = sorted((use for use in card.uses if use.pod == decision.pod), key=lambda use: -use.bytes)
    return f"; processes {list_names([f'{use.process.pid} ({_gib(use.bytes)})' for use in own], _MOST_SHOWN)}"


def _gib(amount: int) -> str:
    return f"{amount / _GIB:.2f} GiB"
