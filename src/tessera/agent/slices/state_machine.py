"""The life of every slice of a node. Pure: events in, instructions out.

Events come as values through :meth:`SliceStateMachine.handle`: the promises of the Instaslice object, the pods of this
node, the instances on the GPUs, a failed call. The executor of a GPU also asks by an event
(:class:`~tessera.agent.slices.events.ExecutorReady`) and gets the one next call. After each call it reads the GPU
again, so the machine never trusts its own intentions: the hardware decides. A process that died between two calls
continues from the state of the hardware.

A slice goes ``promised -> GPU instance -> ready -> claimed -> releasing -> gone``. Rules:

1.  An instance is *ours* if the journal says that we made it at that position, or, at start only, if the object says
    that we reported it ``created`` (the journal was lost). Everything else is *foreign*: occupied, never touched.
2.  Ownership is noted before the GPU instance is created, so that no instance of ours can be unknown to us.
3.  A pod's slices are released when the pod ended or vanished, when the controller says ``deleting``, or when its
    promise is gone and no such pod lives here. A released slice is destroyed, whatever is promised later, so the
    journal records the release. A living pod may have a new promise after that, an ended pod may not. The controller
    removes the promise of a vanished pod at once; such a promise says nothing about the instances on the GPUs.
4.  A slice whose promise vanished under a living pod is kept, and shown as foreign to the controller. If a container
    got that slice, the pod keeps it even if the controller then promises others: the lost record did not know of it.
    A pod also lives while a ResourceClaim is prepared that its promise serves. Other pods may share its claims, so the
    slices of a pod that asks by claims are released with the promise alone, not with the pod.
5.  Destroy before create on a GPU; a compute instance before its GPU instance. A creation waits until its slots are
    free.
6.  A failed call is tried again after a growing delay. A compute instance that cannot be made takes its GPU instance
    down with it before the next try.

The machine knows no clock (``now`` is part of an event), no NVML, no API server and no files.
"""

from collections.abc import Iterator

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.inventory.sliceable_gpus import SlicePosition, parse_device_id
from tessera.agent.slices.events import (
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    DevicesBound,
    ExecutorReady,
    FollowUpsDue,
    GpuCall,
    GpuCallFailed,
    GpuRead,
    GpuReleased,
    GpuUnreachable,
    InitialSyncDone,
    InstasliceChanged,
    ObservedInstance,
    PodChanged,
    PodDeleted,
    PromisedSlice,
    PromiseServes,
    RemoveCdiFiles,
    ReportProblem,
    SaveJournal,
    SliceEvent,
    SliceIdle,
    SliceInstruction,
    SliceJournal,
    SliceResult,
    WaitUntil,
)
from tessera.agent.slices.slice_table import ObservedGpu, SliceTable, claim_of
from tessera.api.names import PodUid
from tessera.replay.recorder import Decider

#: Attempts after which an Event reports a slice in use, about three seconds: processes end a little after their pod.
BUSY_REPORT_ATTEMPTS = 6
#: Seconds until a card is read again if a foreign instance is in the way; NVML has no event for its end.
FOREIGN_RECHECK = 10.0


class SliceStateMachine(Decider[[SliceEvent], tuple[SliceInstruction, ...]]):
    """Decides about all slices of one node. Not concurrent: one event loop passes in all events.

    Args:
        journal: the journal that the former process of this agent left.

    Attributes:
        table: the present slices; read only.
    """

    def __init__(self, journal: SliceJournal) -> None:
        self.table = SliceTable(journal)
        #: Problems that no :class:`FollowUpsDue` has returned yet, oldest first.
        self._problems: list[ReportProblem] = []
        #: Device IDs that pods held which were released since the last :class:`FollowUpsDue`. Another pod may hold one
        #: of them again.
        self._unbound_devices: set[str] = set()
        #: True once object, pods and GPUs were read. Before, the machine decides, releases and adopts nothing.
        self._started = False

    def handle(self, event: SliceEvent) -> tuple[SliceInstruction, ...]:
        """Takes in one event.

        Returns:
            For :class:`ExecutorReady` the one next call, or the time until which to wait. For :class:`FollowUpsDue` the
            effects outside the GPUs. Nothing for all other events: they wake the executors, which then ask.
        """
        match event:
            case ExecutorReady():
                return (self._next_instruction(event.gpu, event.now),)
            case FollowUpsDue():
                return self._follow_ups()
            case _:
                self._observe(event)
                return ()

    def _follow_ups(self) -> tuple[SliceInstruction, ...]:
        problems, self._problems = self._problems, []
        unbound = sorted(self._unbound_devices - self.table.bound_devices())
        self._unbound_devices = set()
        return (*problems, RemoveCdiFiles(tuple(unbound)), SaveJournal(self.table.journal()))

    # Observations -----------------------------------------------------------------------------------------------

    def _observe(self, event: SliceEvent) -> None:
        match event:
            case InstasliceChanged():
                self._replace_promises(event)
            case PodChanged():
                self.table.pods[event.pod] = event.ended
                self.table.claiming |= {event.pod} if event.claims else set()
                self.table.departed.discard(event.pod)
                self._retry_pod_now(event.pod)
            case PodDeleted():
                self.table.pods.pop(event.pod, None)
                has_slices = event.pod in self.table.promises or self.table.positions_of(event.pod)
                if has_slices and not self.table.is_shared(event.pod):
                    self._release(event.pod)
                    self.table.departed.add(event.pod)
                self._retry_pod_now(event.pod)
            case GpuRead():
                self._replace_instances(event)
            case GpuUnreachable():
                self.table.gpus.setdefault(event.gpu, ObservedGpu()).retry = event.retry
            case GpuReleased():
                self.table.gpus.pop(event.gpu, None)
            case GpuCallFailed():
                self._record_failure(event)
            case SliceIdle():
                self.table.retries.retry_now(event.position)
            case DevicesBound():
                before = self.table.bindings_of(event.pod)
                self.table.bindings[event.pod] = dict(event.bindings)
                for position in set(before.values()) - set(event.bindings.values()):  # a loan of it is over
                    self.table.retries.retry_now(position)
                return
            case PromiseServes():
                self._set_served(event)
            case InitialSyncDone():
                self.table.departed = {
                    pod
                    for pod in self.table.released
                    if pod in self.table.results and pod not in self.table.pods and pod not in self.table.served
                }
                if event.kept is not None:
                    self._recall(event.kept)
                self._adopt()
                self._started = True
        if self._started:
            self._release_ended_pods()

    def _set_served(self, event: PromiseServes) -> None:
        if event.prepared is None:
            self.table.served.pop(event.pod, None)
        else:
            self.table.served[event.pod] = event.prepared
            self.table.departed.discard(event.pod)
        self._retry_pod_now(event.pod)

    def _replace_promises(self, event: InstasliceChanged) -> None:
        """Takes in the promises; those that were there before keep their order and come first."""
        earlier = {pod: event.promises[pod] for pod in self.table.promises if pod in event.promises}
        self.table.promises = earlier | dict(event.promises)
        self.table.results = dict(event.results)

    def _replace_instances(self, event: GpuRead) -> None:
        card = self.table.gpus.setdefault(event.gpu, ObservedGpu())
        card.starts, card.retry = event.starts, None
        card.instances = {each.position: each for each in event.instances}
        for position in self.table.retries.failed_keys():
            if position.gpu == event.gpu and self._is_settled(position):
                self.table.retries.drop(position)
            elif position.gpu == event.gpu and position not in card.instances:
                self.table.retries.forget_instance(position)

    def _is_settled(self, position: SlicePosition) -> bool:
        """True if a position is in the state that its owner needs, so that earlier failures there no longer matter."""
        instance = self.table.instance_at(position)
        owner = self.table.owners.get(position)
        if owner is None or not self.table.keeps(owner, position):
            return instance is None
        return instance is not None and bool(instance.computes)

    def _record_failure(self, event: GpuCallFailed) -> None:
        position, call = event.call.position, event.call
        failed = self.table.retries.record(
            position,
            event.failure,
            event.text,
            event.now,
            half_made=isinstance(call, CreateComputeInstance),
            undo_failed=isinstance(call, DestroyGpuInstance),
        )
        owner = self.table.owners.get(position)
        if owner is not None and event.failure is CallFailure.REFUSED:
            self._report(owner, "SliceFailed", event.text)
        elif owner is not None and failed.attempts >= BUSY_REPORT_ATTEMPTS:
            self._report(owner, "SliceInUse", event.text)

    def _recall(self, kept: SliceJournal) -> None:
        """Takes in the owners that were kept on the node while Tessera was away, as far as their pods still run.

        A pod that runs has had its slice all the time. Of a pod that ended, the slice may have been replaced by now: it
        stays foreign.
        """
        running = {pod for pod in (*self.table.pods, *self.table.served) if self.table.lives(pod)}
        for position, pod in kept.owners.items():
            if pod in running:
                self.table.owners.setdefault(parse_device_id(position), pod)
        for pod, bound in kept.bindings.items():
            if pod in running:
                self.table.bindings.setdefault(pod, {key: parse_device_id(each) for key, each in bound.items()})

    def _adopt(self) -> None:
        """Second half of rule 1: after a lost journal, adopts the instances that the object says we reported.

        A pod that the journal calls released is not adopted: the journal also names its instances that are still ours,
        and an instance at another of its positions was made by someone else after ours was destroyed.

        A card that is no longer in the node took its instances with it, so nothing on it is owned.
        """
        self.table.owners = {
            position: pod for position, pod in self.table.owners.items() if position.gpu in self.table.gpus
        }
        for pod, record in self.table.results.items():
            if record.daemonset == "created" and pod not in self.table.released:
                for position in self._reported_instances(pod, record):
                    self.table.owners.setdefault(position, pod)

    def _reported_instances(self, pod: PodUid, record: SliceResult) -> list[SlicePosition]:
        """The instances that a result names; the controller removes the promise of a pod that is gone first."""
        promise = self.table.promises.get(pod)
        if promise is not None:
            return [each.position for each in promise.slices if self.table.instance_at(each.position) is not None]
        return [
            instance.position
            for gpu, start, size in record.places
            for instance in (self.table.gpus[gpu].instances.values() if gpu in self.table.gpus else ())
            if (instance.position.start, instance.size) == (start, size)
        ]

    def _release_ended_pods(self) -> None:
        for pod in self.table.promises.keys() | self.table.results.keys():
            record = self.table.results.get(pod)
            if self.table.has_ended(pod) or (record is not None and record.controller == "deleting"):
                self._release(pod)
        for pod in set(self.table.owners.values()):
            if pod not in self.table.promises and not self.table.lives(pod):
                self._release(pod)
        alive = self.table.promises.keys() | self.table.results.keys() | set(self.table.owners.values())
        self.table.claiming &= self.table.promises.keys() | self.table.pods.keys()
        self.table.departed &= alive
        self.table.released &= alive
        self.table.released -= {pod for pod in self.table.released if self._is_promised_again(pod)}
        for pod in self.table.last_problems.keys() - alive:
            del self.table.last_problems[pod]

    def _is_promised_again(self, pod: PodUid) -> bool:
        """True if a living pod, whose released slices are destroyed, has a promise that the controller keeps."""
        if pod not in self.table.promises or pod in self.table.departed or self.table.has_ended(pod):
            return False
        record = self.table.results.get(pod)
        withdrawn = record is not None and record.controller == "deleting"
        return not withdrawn and not any(map(self.table.instance_at, self.table.positions_of(pod)))

    def _release(self, pod: PodUid) -> None:
        if pod not in self.table.released:
            self.table.released.add(pod)
            self._unbound_devices |= self.table.bindings.pop(pod, {}).keys()
            self.table.last_problems.pop(pod, None)
            self._retry_pod_now(pod)

    def _retry_pod_now(self, pod: PodUid) -> None:
        """Tries a pod's slices again at once: a process that kept them in use may have ended with the pod."""
        for position in self.table.positions_of(pod):
            self.table.retries.retry_now(position)

    # Decisions --------------------------------------------------------------------------------------------------

    def _next_instruction(self, gpu: str, now: float) -> GpuCall | WaitUntil:
        """The one next call on a GPU. Notes ownership before it instructs a creation (rule 2)."""
        card = self.table.gpus.get(gpu)
        if not self._started or card is None:
            return WaitUntil()
        if card.retry is not None:
            return WaitUntil(card.retry)
        self._drop_ownership(gpu, card)
        card.blocked = False
        for call in self._needed_calls(gpu, card):
            if self._is_due(call, now):
                if isinstance(call, CreateGpuInstance):
                    self._own(call.position, call.pod)
                return call
        waits = [at for position, at in self.table.retries.retry_times() if position.gpu == gpu and at > now]
        if card.blocked:
            waits.append(now + FOREIGN_RECHECK)
        return WaitUntil(min(waits) if waits else None)

    def _own(self, position: SlicePosition, pod: PodUid) -> None:
        """Notes the owner of an instance that is about to be created; a loan of the former one is over."""
        self.table.owners[position] = pod
        for other, bound in self.table.bindings.items():
            if other != pod:
                kept = {key: each for key, each in bound.items() if each != position or claim_of(key)}
                self.table.bindings[other] = kept

    def _is_due(self, call: GpuCall, now: float) -> bool:
        """True if a call may be made now. A half-made slice is undone at once, unless an attempt has just failed."""
        retries = self.table.retries
        can_undo = isinstance(call, DestroyGpuInstance) and retries.can_undo(call.position)
        return can_undo or retries.is_due(call.position, now)

    def _needed_calls(self, gpu: str, card: ObservedGpu) -> Iterator[GpuCall]:
        """Every call that the GPU still needs, in the order of rule 5."""
        owners = self.table.owners
        ours = [(each, owners[position]) for position, each in card.instances.items() if position in owners]
        yield from (self._destroy(each) for each, pod in ours if not self.table.keeps(pod, each.position))
        for each, pod in ours:
            if self.table.keeps(pod, each.position) and not each.computes:
                if self.table.retries.is_half_made(each.position):
                    yield DestroyGpuInstance(each.position, each.gi_id)
                else:
                    yield CreateComputeInstance(each.position, each.gi_id)
        for pod, promised in self.table.promised_slices(gpu):
            if promised.position not in self.table.owners or promised.position not in card.instances:
                yield from self._create(card, pod, promised)

    def _create(self, card: ObservedGpu, pod: PodUid, promised: PromisedSlice) -> Iterator[GpuCall]:
        position = promised.position
        if position.start not in card.starts.get(position.profile, ()):
            known = ", ".join(sorted(card.starts)) or "none: MIG mode is off or no such card is on this node"
            text = f"{position.profile} at slot {position.start} of {position.gpu} cannot be made; known are {known}"
            self._report(pod, "SliceImpossible", text)
            return
        overlapping = [each for each in card.instances.values() if each.overlaps(position.start, promised.size)]
        for each in overlapping:
            if each.position not in self.table.owners:
                text = (
                    f"slots {position.start}-{position.start + promised.size - 1} of {position.gpu} are taken by a "
                    f"{each.position.profile} that no record of Tessera explains"
                )
                self._report(pod, "SliceBlocked", text)
                card.blocked = True
        if not overlapping:
            yield CreateGpuInstance(position, pod)

    @staticmethod
    def _destroy(instance: ObservedInstance) -> GpuCall:
        if instance.computes:
            ci_id, mig_uuid = instance.computes[0]
            return DestroyComputeInstance(instance.position, instance.gi_id, ci_id, mig_uuid)
        return DestroyGpuInstance(instance.position, instance.gi_id)

    def _drop_ownership(self, gpu: str, card: ObservedGpu) -> None:
        """Drops ownership of positions that have no instance and no promise."""
        gone = [
            position
            for position, pod in self.table.owners.items()
            if position.gpu == gpu and position not in card.instances and not self.table.is_promised(pod, position)
        ]
        for position in gone:
            del self.table.owners[position]
            self.table.retries.drop(position)

    def _report(self, pod: PodUid, reason: str, text: str) -> None:
        problem = ReportProblem(pod, reason, text)
        if self.table.last_problems.get(pod) != problem:
            self.table.last_problems[pod] = problem
            self._problems.append(problem)
