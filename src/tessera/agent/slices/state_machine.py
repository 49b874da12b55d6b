"""The life of every slice of a node: pure, facts in, instructions out.

Facts come as values through :meth:`Book.apply`: what the Instaslice object promises, which pods live here, what the
cards hold, which call failed. :meth:`Book.step` then says the one next thing to do on a card. Whoever
executes it reads the card again and applies what it saw, so the book never believes its own intentions: hardware is
the truth, and a process that died between any two calls goes on where the hardware stands.

A slice goes ``promised -> GPU instance -> made -> claimed -> releasing -> gone``. Rules:

1.  An instance is *ours* if the journal says that we made it at that position, or, at start only, if the object says
    that we reported it ``created`` (the journal was lost). Everything else is *foreign*: occupied, never touched.
2.  Ownership is noted before the GPU instance is created, so that no instance of ours can be unknown to us.
3.  A pod's slices are released when its pod ended or vanished, when the controller says ``deleting``, or when its
    promise is gone and no such pod lives here. What is released is destroyed, whatever comes next, so it is in the
    journal. A pod that lives may have a new promise after that; one that ended may not. The controller removes the
    promise of a pod that is gone at once; such a promise says nothing about what is still on the cards.
4.  A slice whose promise vanished under a living pod is kept, and shown as foreign to the controller. One that a
    container was given is kept even if the pod is promised others then: who lost the record cannot know of it.
5.  Destroy before create on a card; a compute instance before its GPU instance. What overlaps waits.
6.  A failed call is tried again after a growing delay; a compute instance that cannot be made takes its GPU instance
    down with it before the next try.

The book knows no clock (``now`` is an argument), no NVML, no API and no files.
"""

from collections.abc import Iterator

import msgspec

from tessera.agent.inventory.positions import SlicePosition
from tessera.agent.slices.events import (
    CallFailed,
    CallFailureKind,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    GpuCall,
    GpuRead,
    GpuReleased,
    GpuUnreachable,
    InitialSyncDone,
    InstasliceChanged,
    ObservedInstance,
    PodChanged,
    PodDeleted,
    PromisedSlice,
    SliceEvent,
    SliceIdle,
    SliceInstruction,
    SliceNotice,
    SlicePromise,
    SliceResult,
    WaitUntil,
)
from tessera.agent.slices.holdings import CardState, Holdings, Trouble
from tessera.api.names import PodUid

#: First and longest delay in seconds before a failed call is tried again.
RETRY_FIRST, RETRY_MOST = 0.2, 30.0
#: The same while a process still uses a slice: the pod has ended, so it is a matter of moments.
BUSY_FIRST, BUSY_MOST = 0.1, 5.0
#: Tries after which a slice in use is worth an event, some three seconds: processes end a little after their pod.
BUSY_TOLD = 6
#: Seconds after which a card is read again on which a foreign instance is in the way; NVML has no event for its end.
FOREIGN_RECHECK = 10.0


class SliceStateMachine(Holdings):
    """All slices of one node. Not concurrent: one event loop applies facts and asks for steps."""

    # Facts ------------------------------------------------------------------------------------------------------

    def apply(self, fact: SliceEvent) -> None:
        """Takes in one fact. Every change of who owns or releases what happens here or in :meth:`step`."""
        match fact:
            case InstasliceChanged():
                self._object_seen(fact)
            case PodChanged():
                self._pods[fact.pod] = fact.ended
                self._gone.discard(fact.pod)
                self._hurry(fact.pod)
            case PodDeleted():
                self._pods.pop(fact.pod, None)
                if fact.pod in self._promises or self.positions_of(fact.pod):
                    self._release(fact.pod)
                    self._gone.add(fact.pod)
                self._hurry(fact.pod)
            case GpuRead():
                self._card_read(fact)
            case GpuUnreachable():
                self._cards.setdefault(fact.gpu, CardState()).retry = fact.retry
            case GpuReleased():
                self._cards.pop(fact.gpu, None)
            case CallFailed():
                self._failed(fact)
            case SliceIdle():
                self._retry_now(fact.position)
            case InitialSyncDone():
                self._gone = {pod for pod in self._released if pod in self._records and pod not in self._pods}
                self._adopt()
                self._started = True
        if self._started:
            self._release_what_ended()

    def _object_seen(self, fact: InstasliceChanged) -> None:
        kept = {pod: fact.promises[pod] for pod in self._promises if pod in fact.promises}
        self._promises = kept | dict(fact.promises)
        self._records = dict(fact.results)

    def _card_read(self, fact: GpuRead) -> None:
        card = self._cards.setdefault(fact.gpu, CardState())
        card.starts, card.retry = fact.starts, None
        card.instances = {made.position: made for made in fact.instances}
        for position, trouble in [item for item in self._troubles.items() if item[0].gpu == fact.gpu]:
            if self._settled(position):
                del self._troubles[position]
            elif position not in card.instances:
                self._troubles[position] = msgspec.structs.replace(trouble, undo=False, stuck=False)

    def _settled(self, position: SlicePosition) -> bool:
        """Whether a position stands as its owner wants it, so that what failed there before no longer matters."""
        made = self._instance(position)
        owner = self._owners.get(position)
        if owner is None or not self._keeps(owner, position):
            return made is None
        return made is not None and bool(made.computes)

    def _failed(self, fact: CallFailed) -> None:
        position = fact.call.position
        before = self._troubles.get(position)
        tries = before.tries + 1 if before else 1
        first, most = (BUSY_FIRST, BUSY_MOST) if fact.failure is CallFailureKind.BUSY else (RETRY_FIRST, RETRY_MOST)
        until = fact.now + min(most, first * 2 ** min(tries - 1, 16))
        undo = isinstance(fact.call, CreateComputeInstance) or bool(before and before.undo)
        self._troubles[position] = Trouble(tries, until, undo, isinstance(fact.call, DestroyGpuInstance))
        owner = self._owners.get(position)
        if owner is not None and fact.failure is CallFailureKind.REFUSED:
            self._notice(owner, "SliceFailed", fact.text)
        elif owner is not None and tries >= BUSY_TOLD:
            self._notice(owner, "SliceInUse", fact.text)

    def _adopt(self) -> None:
        """Rule 1's second half: after a lost journal, what the object says we reported is ours again.

        A pod that the journal calls released is not one of those: what is still ours of it the journal says too, and
        an instance at another of its positions was made by somebody else after ours was destroyed.

        A card that is no longer in the node took its instances with it, so nothing on it is owned.
        """
        self._owners = {position: pod for position, pod in self._owners.items() if position.gpu in self._cards}
        for pod, record in self._records.items():
            if record.daemonset == "created" and pod not in self._released:
                for position in self._reported(pod, record):
                    self._owners.setdefault(position, pod)

    def _reported(self, pod: PodUid, record: SliceResult) -> list[SlicePosition]:
        """The instances that a result tells of; the controller removes the promise of a pod that is gone first."""
        promise = self._promises.get(pod)
        if promise is not None:
            return [wanted.position for wanted in promise.slices if self._instance(wanted.position) is not None]
        return [
            made.position
            for gpu, start, size in record.places
            for made in (self._cards[gpu].instances.values() if gpu in self._cards else ())
            if (made.position.start, made.size) == (start, size)
        ]

    def _release_what_ended(self) -> None:
        for pod in self._promises.keys() | self._records.keys():
            record = self._records.get(pod)
            if self._pods.get(pod, False) or (record is not None and record.controller == "deleting"):
                self._release(pod)
        for pod in set(self._owners.values()):
            if pod not in self._promises and self._pods.get(pod, True):
                self._release(pod)
        alive = self._promises.keys() | self._records.keys() | set(self._owners.values())
        self._gone &= alive
        self._released &= alive
        self._released -= {pod for pod in self._released if self._is_promised_again(pod)}
        for pod in self._noticed.keys() - alive:
            del self._noticed[pod]

    def _is_promised_again(self, pod: PodUid) -> bool:
        """Whether a pod that lives, and whose released slices are destroyed, has a promise that nobody asks back."""
        if pod not in self._promises or pod in self._gone or self._pods.get(pod, False):
            return False
        record = self._records.get(pod)
        asked_back = record is not None and record.controller == "deleting"
        return not asked_back and not any(map(self._instance, self.positions_of(pod)))

    def _release(self, pod: PodUid) -> None:
        if pod not in self._released:
            self._released.add(pod)
            self._unbound |= self._bindings.pop(pod, {}).keys()
            self._noticed.pop(pod, None)
            self._hurry(pod)

    def _hurry(self, pod: PodUid) -> None:
        """Tries a pod's slices again at once: what was in the way of them may have ended with it."""
        for position in self.positions_of(pod):
            self._retry_now(position)

    def _retry_now(self, position: SlicePosition) -> None:
        trouble = self._troubles.get(position)
        if trouble is not None:
            self._troubles[position] = msgspec.structs.replace(trouble, tries=0, until=0.0)

    # Decisions --------------------------------------------------------------------------------------------------

    def step(self, gpu: str, now: float) -> SliceInstruction:
        """The one next thing to do on a card. Notes ownership before it says to create (rule 2)."""
        card = self._cards.get(gpu)
        if not self._started or card is None:
            return WaitUntil()
        if card.retry is not None:
            return WaitUntil(card.retry)
        self._forget(gpu, card)
        card.blocked = False
        for call in self._due(gpu, card):
            trouble = self._troubles.get(call.position)
            if trouble is None or trouble.lets(call, now):
                if isinstance(call, CreateGpuInstance):
                    self._owners[call.position] = call.pod
                return call
        waits = [t.until for p, t in self._troubles.items() if p.gpu == gpu and t.until > now]
        if card.blocked:
            waits.append(now + FOREIGN_RECHECK)
        return WaitUntil(min(waits) if waits else None)

    def _due(self, gpu: str, card: CardState) -> Iterator[GpuCall]:
        """Everything that the card still needs, in the order of rule 5."""
        ours = [(p, made, self._owners[p]) for p, made in card.instances.items() if p in self._owners]
        yield from (self._destroy(made) for p, made, pod in ours if not self._keeps(pod, p))
        for position, made, pod in ours:
            if self._keeps(pod, position) and not made.computes:
                trouble = self._troubles.get(position)
                if trouble is not None and trouble.undo:
                    yield DestroyGpuInstance(position, made.gi_id)
                else:
                    yield CreateComputeInstance(position, made.gi_id)
        for promise, wanted in self._wanted(gpu):
            if wanted.position not in self._owners or wanted.position not in card.instances:
                yield from self._create(card, promise, wanted)

    def _create(self, card: CardState, promise: SlicePromise, wanted: PromisedSlice) -> Iterator[GpuCall]:
        position = wanted.position
        if position.start not in card.starts.get(position.profile, ()):
            known = ", ".join(sorted(card.starts)) or "none: MIG mode is off or no such card is on this node"
            text = f"{position.profile} at slot {position.start} of {position.gpu} cannot be made; known are {known}"
            self._notice(promise.pod, "SliceImpossible", text)
            return
        in_the_way = [made for made in card.instances.values() if made.overlaps(position.start, wanted.size)]
        for made in in_the_way:
            if made.position not in self._owners:
                text = (
                    f"slots {position.start}-{position.start + wanted.size - 1} of {position.gpu} are taken by a "
                    f"{made.position.profile} that no record of Tessera explains"
                )
                self._notice(promise.pod, "SliceBlocked", text)
                card.blocked = True
        if not in_the_way:
            yield CreateGpuInstance(position, promise.pod)

    @staticmethod
    def _destroy(made: ObservedInstance) -> GpuCall:
        if made.computes:
            ci_id, mig_uuid = made.computes[0]
            return DestroyComputeInstance(made.position, made.gi_id, ci_id, mig_uuid)
        return DestroyGpuInstance(made.position, made.gi_id)

    def _forget(self, gpu: str, card: CardState) -> None:
        """Drops ownership of what is neither there nor wanted."""
        gone = [
            position
            for position, pod in self._owners.items()
            if position.gpu == gpu and position not in card.instances and not self.promised(pod, position)
        ]
        for position in gone:
            del self._owners[position]
            self._troubles.pop(position, None)

    def _wanted(self, gpu: str) -> Iterator[tuple[SlicePromise, PromisedSlice]]:
        for pod, promise in self._promises.items():
            if pod not in self._released:
                yield from ((promise, wanted) for wanted in promise.slices if wanted.position.gpu == gpu)

    def _keeps(self, pod: PodUid, position: SlicePosition) -> bool:
        """Whether a slice of ours stays: promised, or its promise vanished under a living pod (rule 4)."""
        if pod in self._released:
            return False
        if self._pods.get(pod) is False and (pod not in self._promises or self.claimed(pod, position)):
            return True
        return self.promised(pod, position)

    def _notice(self, pod: PodUid, reason: str, text: str) -> None:
        notice = SliceNotice(pod, reason, text)
        if self._noticed.get(pod) != notice:
            self._noticed[pod] = notice
            self._notices.append(notice)
