"""Makes the calls on one GPU that the slice state machine instructs, one at a time.

After every call, done or refused, the executor reads the GPU again and passes the reading to the machine as an event.
So a call whose answer was lost is no special case. The journal is on disk before every call. The executor destroys a
compute instance only if NVML lists no process on it; NVML refuses as well, but a new process would lose its device.

:class:`SliceFollowUps` carries out the instructions outside the GPUs: Events, CDI files, the journal.

A card that ResourceClaims get whole counts as a card with one place, one that they get in shares has a place for each.
Nothing is made on such a card, so the slice state machine gets a stand-in for the GPU instance: it exists from the
machine's call to create it until the call to destroy it. Both fail as long as a process uses the card, of whomever: a
container that was started by hand, or one that another driver gave the card. Nobody can tell whose process uses a card
that is shared, so its shares come and go whatever computes there. Promise, owner, journal, retries and the order of
users are those of slices.
"""

import asyncio
import logging
import signal
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from tessera.agent.base.device_plugin import CdiFolder
from tessera.agent.base.host import ProcessId
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.base.wake_ups import CallFailure, Fact
from tessera.agent.inventory.gpu_inventory import InventoryReader
from tessera.agent.inventory.sliceable_gpus import SkippedGpu, SliceableGpu, SlicePosition
from tessera.agent.slices.events import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    ExecutorReady,
    FollowUpsDue,
    GpuCall,
    GpuCallFailed,
    GpuRead,
    GpuUnreachable,
    ObservedInstance,
    RemoveCdiFiles,
    ReportProblem,
    SaveJournal,
    SliceIdle,
    WaitUntil,
)
from tessera.agent.slices.further_ways import running_with_slices
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.api.names import PodUid
from tessera.kube.event_recorder import make_reference
from tessera.kube.resources import NODES, PODS, Node
from tessera.mig.names import resource_spelling
from tessera.nvml.errors import GpuLost, InUse, NvmlError, NvmlNotFound, ResetRequired
from tessera.nvml.interface import GpuInstance
from tessera.text import list_names

_log = logging.getLogger(__name__)

#: Seconds after which a card that did not answer is read again.
LOST_RECHECK = 30.0
#: Seconds that a borrower's processes have to end by themselves, and for which a container that is not said to run may
#: run all the same: kubelet writes a pod's status each 10 s at the latest.
LOAN_GRACE, LOAN_END = 10.0, 30.0


class GpuSliceExecutor:
    """Executes the instructions for one GPU.

    Args:
        gpu: the GPU, and its table of profiles.
        runtime: the GPUs, clock, metrics and change notifier of this agent.
        machine: decides; gets an event after every call.
        journal: written before every call. No call is made if that fails.
        inventory: reads the GPU.
        exclusive_gpus: UUIDs of the cards that an MPS daemon has, or has left in its compute mode; always of now.
    """

    def __init__(
        self,
        gpu: SliceableGpu,
        runtime: AgentRuntime,
        *,
        machine: SliceStateMachine,
        journal: SliceJournalFile,
        inventory: InventoryReader,
        exclusive_gpus: AbstractSet[str],
    ) -> None:
        self._card = gpu
        self._exclusive_gpus = exclusive_gpus
        self._machine = machine
        self._journal = journal
        self._hardware = runtime.hardware
        self._inventory = inventory
        self._changes = runtime.changes.about(Fact.SLICES)
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._processes = runtime.processes
        self._mirror = runtime.mirror
        #: True if something other than this executor may have changed the GPU since it was read.
        self._stale = False
        #: Tasks that wait for the last process on a slice, by position; only while one uses the slice.
        self._idle_watches: dict[SlicePosition, asyncio.Task[None]] = {}
        #: When the borrowers of slices were first asked to end, monotonic seconds.
        self._ended_loans: dict[SlicePosition, float] = {}

    def suspect(self) -> None:
        """Has the GPU read again, since something other than this executor may have changed it."""
        self._stale = True
        self._changes.notify(Fact.SLICES)

    async def run(self) -> None:
        """Runs until cancelled."""
        try:
            while True:
                count = self._changes.count
                if self._stale:
                    await self.read()
                    continue
                (step,) = self._machine.handle(ExecutorReady(self._card.uuid, self._clock.monotonic()))
                match step:
                    case WaitUntil():
                        await self._rest(step, count)
                    case (
                        CreateGpuInstance() | CreateComputeInstance() | DestroyComputeInstance() | DestroyGpuInstance()
                    ):
                        await self._attempt(step)
                    case _:
                        raise AssertionError(f"{step!r} is no instruction for a GPU")
        finally:
            for watch in self._idle_watches.values():
                watch.cancel()

    async def read(self) -> None:
        """Reads the GPU and passes the reading to the machine."""
        self._stale = False
        try:
            instances = await self._inventory.read_instances(self._card.info.uuid)
        except NvmlError as error:
            _log.warning("card %s cannot be read, next attempt in %.0f s: %s", self._card.uuid, LOST_RECHECK, error)
            self._take_in(GpuUnreachable(self._card.uuid, self._clock.monotonic() + LOST_RECHECK))
        else:
            observed = tuple(observe_instance(self._card.uuid, instance) for instance in instances)
            self._take_in(GpuRead(self._card.uuid, self._card.starts(), observed))

    def _take_in(self, reading: GpuRead | GpuUnreachable) -> None:
        """Passes a reading to the machine; the lists of devices change only if the card's answers begin or end."""
        before = self._machine.table.is_unreachable(self._card.uuid)
        self._machine.handle(reading)
        lists = Fact.SLICE_RESOURCES if self._machine.table.is_unreachable(self._card.uuid) != before else Fact(0)
        self._changes.notify(Fact.SLICES | lists)

    async def _rest(self, rest: WaitUntil, count: int) -> None:
        if rest.until is None:
            await self._changes.wait(count)
            return
        await self._changes.wait(count, max(0.0, rest.until - self._clock.monotonic()))
        if self._clock.monotonic() >= rest.until:
            self._stale = True

    async def _attempt(self, call: GpuCall) -> None:
        began = self._clock.monotonic()
        try:
            self._journal.save(self._machine.table.journal())
            await self._do(call)
        except (GpuLost, ResetRequired) as error:
            self._report_failure(call, CallFailure.REFUSED, error)
        except InUse as error:
            self._report_failure(call, CallFailure.BUSY, error)
            self._watch_for_idle(call)
        except NvmlNotFound as error:
            if isinstance(call, CreateGpuInstance | CreateComputeInstance):
                self._report_failure(call, CallFailure.REFUSED, error)
        except (NvmlError, OSError) as error:
            self._report_failure(call, CallFailure.REFUSED, error)
        else:
            self._metrics.calls.labels(type(call).__name__).observe(self._clock.monotonic() - began)
        await self.read()

    async def _do(self, call: GpuCall) -> None:
        gpu = self._card.info.uuid
        match call:
            case CreateGpuInstance():
                profile = self._card.geometry.profile(call.position.profile)
                await self._hardware.create_gpu_instance(gpu, profile.name, call.position.start)
            case CreateComputeInstance():
                profile = self._card.geometry.profile(call.position.profile)
                await self._hardware.create_compute_instance(gpu, call.gi_id, profile.ci_profile_index)
            case DestroyComputeInstance():
                await self._check_idle(call)
                await self._hardware.destroy_compute_instance(gpu, call.gi_id, call.ci_id)
            case DestroyGpuInstance():
                await self._hardware.destroy_gpu_instance(gpu, call.gi_id)

    async def _check_idle(self, call: DestroyComputeInstance) -> None:
        users = await self._users(call)
        borrower = self._machine.table.borrower_of(call.position)
        is_over = borrower is None or self._end_loan(call.position, borrower, users)
        if users:
            named = ", ".join(map(str, users))
            raise InUse(f"slice {call.position.device_id} must be destroyed, but is used by process {named}")
        if not is_over:
            raise InUse(f"slice {call.position.device_id} must be destroyed, but its borrower's container may run")
        self._ended_loans.pop(call.position, None)

    def _end_loan(self, position: SlicePosition, borrower: PodUid, users: Sequence[int]) -> bool:
        """Ends the container of a pod on a slice whose lender has ended: asks first, and kills after a while.

        As long as it runs it may open the slice's device files, which are those of the next slice there. So it ends
        whether or not it uses the slice.

        Returns:
            True if it does not run. Kubelet's word on a start may be late, so nobody is believed at once; the next
            start of the container ends the loan, too.
        """
        now = self._clock.monotonic()
        asked = self._ended_loans.setdefault(position, now)
        number = signal.SIGTERM if now < asked + LOAN_GRACE else signal.SIGKILL
        pod = next((each for each in self._mirror.live_pods() if PodUid(each.metadata.uid) == borrower), None)
        running = running_with_slices(pod) if pod is not None else []
        named = [process for pid in users if (process := self._processes.identify(pid)) is not None]
        for process in dict.fromkeys((*named, *self._processes.list_of(borrower, running))):
            self._end_process(process, borrower, number, position)
        return not running and now >= asked + LOAN_END

    def _end_process(
        self, process: ProcessId, borrower: PodUid, number: signal.Signals, position: SlicePosition
    ) -> None:
        found = self._processes.pod_of(process)
        if found is None or found.pod != borrower:
            return
        try:
            with self._processes.open(process) as held:
                sent = held is not None and held.send(number)
        except OSError as error:
            _log.warning("process %s of pod %s cannot be ended: %s", process.pid, borrower, error)
            return
        if sent:
            _log.info("slice %s: the lender has ended; %s to process %s", position.device_id, number.name, process.pid)

    async def _users(self, call: GpuCall) -> list[int]:
        """The PIDs of the processes for whose end a call waits."""
        instance, found = self._instance_of(call), await self._hardware.processes(self._card.info.uuid)
        return [each.pid for each in found if each.gi_id == instance]

    def _instance_of(self, call: GpuCall) -> int | None:
        """The GPU instance whose processes use the slice; ``None`` for the whole card."""
        return call.gi_id if isinstance(call, DestroyComputeInstance) else None

    def _is_of_users(self, call: GpuCall) -> bool:
        """True for a call that waits until no process uses its slice."""
        return isinstance(call, DestroyComputeInstance)

    def _report_failure(self, call: GpuCall, failure: CallFailure, error: Exception) -> None:
        level = logging.INFO if failure is CallFailure.BUSY else logging.WARNING
        _log.log(level, "%s of %s failed: %s", type(call).__name__, call.position.device_id, error)
        self._metrics.failures.labels(type(call).__name__, type(error).__name__).inc()
        self._machine.handle(GpuCallFailed(call, failure, str(error), self._clock.monotonic()))

    def _watch_for_idle(self, call: GpuCall) -> None:
        """Repeats the call when the last process has ended, sooner than the next attempt.

        NVML may report "in use" and list no process. Then only the next try can tell.
        """
        if self._is_of_users(call) and call.position not in self._idle_watches:
            watch = asyncio.create_task(self._retry_when_idle(call), name=f"idle {call.position.device_id}")
            self._idle_watches[call.position] = watch

    async def _retry_when_idle(self, call: GpuCall) -> None:
        try:
            if await self._users(call):
                await self._hardware.wait_idle(self._card.info.uuid, self._instance_of(call))
                self._machine.handle(SliceIdle(call.position))
        except NvmlError as error:
            _log.info("slice %s cannot be watched, it is tried again in a while: %s", call.position.device_id, error)
        finally:
            self._idle_watches.pop(call.position, None)
            self._changes.notify(Fact.SLICES)


def observe_instance(gpu: str, instance: GpuInstance) -> ObservedInstance:
    """Returns an instance in the form of the machine's events."""
    return ObservedInstance(
        gi_id=instance.gi_id,
        position=SlicePosition(gpu, resource_spelling(instance.profile), instance.start),
        size=instance.size,
        computes=tuple((each.ci_id, each.mig_uuid) for each in instance.compute_instances),
    )


class SliceFollowUps:
    """Carries out the effects that must come before the status of the Instaslice object is written.

    Args:
        runtime: records Events; the node.
        machine: gives the instructions.
        cdi: the folder of the CDI files.
        journal: the journal's file.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        machine: SliceStateMachine,
        cdi: CdiFolder,
        journal: SliceJournalFile,
    ) -> None:
        self._events = runtime.events
        self._mirror = runtime.mirror
        self._machine = machine
        self._cdi = cdi
        self._journal = journal
        self._clock = runtime.clock
        self._node_name = runtime.options.node_name
        #: Pods whose promised slices do not all exist yet, with the time of the promise, monotonic seconds.
        self._promised: dict[PodUid, float] = {}
        #: Indexes of the node's cards by UUID, as last listed.
        self.indexes: Mapping[str, int] = {}
        #: UUIDs and reasons of the skipped GPUs that an Event has reported.
        self._reported_skips: set[tuple[str, str]] = set()

    def carry_out(self) -> None:
        """Carries out all instructions that are due.

        Raises:
            OSError: the journal or the CDI folder cannot be written.
        """
        self._report_ready()
        for instruction in self._machine.handle(FollowUpsDue()):
            match instruction:
                case ReportProblem():
                    self._report(instruction)
                case RemoveCdiFiles():
                    self._cdi.remove(instruction.devices)
                case SaveJournal():
                    self._journal.save(instruction.journal)

    def note_promises(self) -> None:
        """Notes the time of new promises whose slices do not exist yet."""
        table, now = self._machine.table, self._clock.monotonic()
        new = (pod for pod in table.promises if pod not in self._promised and not table.is_ready(pod))
        self._promised = {pod: at for pod, at in self._promised.items() if pod in table.promises}
        self._promised |= dict.fromkeys(new, now)

    def _report_ready(self) -> None:
        """Records an Event on each pod whose slices all exist now: where they are, and how long they took."""
        table, now = self._machine.table, self._clock.monotonic()
        for pod in [pod for pod in self._promised if pod in table.promises and table.is_ready(pod)]:
            promise, seconds = table.promises[pod], now - self._promised.pop(pod)
            places = [
                f"{each.position.profile} on GPU {self.indexes.get(each.position.gpu, '?')}" for each in promise.slices
            ]
            about = make_reference(PODS, promise.name, promise.namespace, pod)
            text = f"{list_names(places)} of {self._node_name}, {seconds:.1f} s"
            self._events.record(about, "SliceReady", text, type="Normal")

    def _report(self, problem: ReportProblem) -> None:
        """Records an Event on the pod; on the node if the pod is gone and its slice cannot be destroyed yet."""
        promise, node = self._machine.table.promises.get(problem.pod), self._mirror.node()
        if promise is not None:
            about = make_reference(PODS, promise.name, promise.namespace, problem.pod)
            self._events.record(about, problem.reason, problem.text, type="Warning")
        elif node is not None:
            about = make_reference(NODES, node.metadata.name, uid=node.metadata.uid)
            self._events.record(about, problem.reason, problem.text, type="Warning")

    def report_skipped(self, node: Node, skipped: tuple[SkippedGpu, ...]) -> None:
        """Records an Event on the node for each GPU that cannot be cut, once for each reason."""
        about = make_reference(NODES, node.metadata.name, uid=node.metadata.uid)
        for each in skipped:
            if (each.info.uuid, each.reason) not in self._reported_skips:
                self._reported_skips.add((each.info.uuid, each.reason))
                text = f"card {each.info.uuid} ({each.info.name}) is not used for slices: {each.reason}"
                self._events.record(about, "CardSkipped", text, type="Warning" if each.waits else "Normal")


#: Stands for the ids of GPU instance and compute instance; NVML's are 0 or more.
WHOLE = -1


class WholeCardExecutor(GpuSliceExecutor):
    """Executes the instructions for a card that is given whole, or in shares. See :class:`.GpuSliceExecutor`."""

    #: The places that pods have; ``None`` before the first reading.
    _given: set[SlicePosition] | None = None

    async def read(self) -> None:
        """Passes to the machine which places are given, if the card answers."""
        self._stale = False
        uuid = self._card.uuid
        if self._given is None:  # the journal has the owner since before it was known that nobody used the card
            owned = (each for each in self._machine.table.owners if each.gpu == uuid)
            self._given = {each for each in owned if self._card.shares is not None or self._is_bound(each)}
        try:
            await self._hardware.processes(self._card.info.uuid)
        except NvmlError:
            self._take_in(GpuUnreachable(uuid, self._clock.monotonic() + LOST_RECHECK))
        else:
            size = self._card.geometry.profiles[0].size
            made = tuple(
                ObservedInstance(gi_id=WHOLE - each.start, position=each, size=size, computes=((WHOLE, uuid),))
                for each in sorted(self._given)
            )
            self._take_in(GpuRead(uuid, self._card.starts(), made))

    async def _do(self, call: GpuCall) -> None:
        given = self._given if self._given is not None else set()
        match call:
            case CreateGpuInstance():
                alone = self._card.shares is None and not self._is_bound(call.position)
                if alone:
                    self._check_served()
                if alone and (users := await self._users(call)):
                    named = ", ".join(map(str, users))
                    raise InUse(f"card {self._card.uuid} cannot be given to a claim, it is used by process {named}")
                given.add(call.position)
            case DestroyComputeInstance():
                if self._card.shares is None:
                    await self._check_idle(call)
                    self._check_served()
                given.discard(call.position)
            case _:
                raise AssertionError(f"{call!r} is no instruction for a card that is given whole")

    def _check_served(self) -> None:
        """Has a call wait until no MPS daemon has the card; one of its shares may have left it in the daemon's mode."""
        if self._card.uuid in self._exclusive_gpus:
            raise InUse(f"card {self._card.uuid} is still served by the MPS daemon of its last claim")

    def _is_bound(self, position: SlicePosition) -> bool:
        """True if a claim has the card, so that its containers may use it."""
        return any(position in devices.values() for devices in self._machine.table.bindings.values())

    def _instance_of(self, call: GpuCall) -> int | None:  # noqa: ARG002 - the card has no instances
        return None

    def _is_of_users(self, call: GpuCall) -> bool:
        return isinstance(call, CreateGpuInstance | DestroyComputeInstance)
