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
    promise is gone and no such pod lives here. Released is final for a pod UID and is in the journal.
4.  A slice whose promise vanished under a living pod is kept, and shown as foreign to the controller.
5.  Destroy before create on a card; a compute instance before its GPU instance. What overlaps waits.
6.  A failed call is tried again after a growing delay; a compute instance that cannot be made takes its GPU instance
    down with it before the next try.

The book knows no clock (``now`` is an argument), no NVML, no API and no files.
"""

from collections.abc import Iterator, Mapping

import msgspec

from tessera.agent.facts import (
    Call,
    CallFailed,
    CardLost,
    CardRead,
    CreateComputeInstance,
    CreateGpuInstance,
    DestroyComputeInstance,
    DestroyGpuInstance,
    Fact,
    Failure,
    Idle,
    Instruction,
    Journal,
    Made,
    Notice,
    ObjectSeen,
    PodGone,
    PodSeen,
    Promise,
    Record,
    Rest,
    Started,
    State,
    Wanted,
)
from tessera.agent.positions import Position, parse_device_id
from tessera.api.names import PodUid

#: First and longest delay in seconds before a failed call is tried again.
RETRY_FIRST, RETRY_MOST = 0.2, 30.0
#: The same while a process still uses a slice: the pod has ended, so it is a matter of moments.
BUSY_FIRST, BUSY_MOST = 0.1, 5.0
#: Tries after which a slice in use is worth an event, some three seconds: processes end a little after their pod.
BUSY_TOLD = 6
#: Seconds after which a card is read again on which a foreign instance is in the way; NVML has no event for its end.
FOREIGN_RECHECK = 10.0


class _Card:
    """One card as last read. ``retry`` is when a lost card is asked again."""

    def __init__(self) -> None:
        self.starts: Mapping[str, tuple[int, ...]] = {}
        self.instances: dict[Position, Made] = {}
        self.retry: float | None = None
        self.blocked = False


class _Trouble(msgspec.Struct, frozen=True):
    """A position where calls failed: how often in a row, when to try again.

    ``undo`` after a compute instance failed, until its GPU instance is gone; ``stuck`` while that fails too.
    """

    tries: int
    until: float
    undo: bool = False
    stuck: bool = False

    def lets(self, call: Call, now: float) -> bool:
        """Whether a call may be made now. Undoing a half-made slice waits only if that failed itself."""
        return self.until <= now or (self.undo and not self.stuck and isinstance(call, DestroyGpuInstance))


class Book:
    """All slices of one node. Not concurrent: one event loop applies facts and asks for steps."""

    def __init__(self, journal: Journal) -> None:
        self._owners: dict[Position, PodUid] = {parse_device_id(k): v for k, v in journal.owners.items()}
        self._released: set[PodUid] = set(journal.released)
        self._bindings: dict[PodUid, dict[str, Position]] = {
            pod: {device: parse_device_id(slice_) for device, slice_ in bound.items()}
            for pod, bound in journal.bindings.items()
        }
        self._promises: dict[PodUid, Promise] = {}
        self._records: dict[PodUid, Record] = {}
        self._pods: dict[PodUid, bool] = {}
        self._cards: dict[str, _Card] = {}
        self._troubles: dict[Position, _Trouble] = {}
        self._notices: list[Notice] = []
        self._noticed: dict[PodUid, Notice] = {}
        self._unbound: set[str] = set()
        self._started = False

    # Facts ------------------------------------------------------------------------------------------------------

    def apply(self, fact: Fact) -> None:
        """Takes in one fact. Every change of who owns or releases what happens here or in :meth:`step`."""
        match fact:
            case ObjectSeen():
                self._object_seen(fact)
            case PodSeen():
                self._pods[fact.pod] = fact.over
                self._hurry(fact.pod)
            case PodGone():
                self._pods.pop(fact.pod, None)
                if fact.pod in self._promises or self.positions_of(fact.pod):
                    self._release(fact.pod)
                self._hurry(fact.pod)
            case CardRead():
                self._card_read(fact)
            case CardLost():
                self._cards.setdefault(fact.gpu, _Card()).retry = fact.retry
            case CallFailed():
                self._failed(fact)
            case Idle():
                self._retry_now(fact.position)
            case Started():
                self._adopt()
                self._started = True
        if self._started:
            self._release_what_ended()

    def _object_seen(self, fact: ObjectSeen) -> None:
        kept = {pod: fact.promises[pod] for pod in self._promises if pod in fact.promises}
        self._promises = kept | dict(fact.promises)
        self._records = dict(fact.records)

    def _card_read(self, fact: CardRead) -> None:
        card = self._cards.setdefault(fact.gpu, _Card())
        card.starts, card.retry = fact.starts, None
        card.instances = {made.position: made for made in fact.instances}
        for position, trouble in [item for item in self._troubles.items() if item[0].gpu == fact.gpu]:
            if self._settled(position):
                del self._troubles[position]
            elif position not in card.instances:
                self._troubles[position] = msgspec.structs.replace(trouble, undo=False, stuck=False)

    def _settled(self, position: Position) -> bool:
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
        first, most = (BUSY_FIRST, BUSY_MOST) if fact.failure is Failure.BUSY else (RETRY_FIRST, RETRY_MOST)
        until = fact.now + min(most, first * 2 ** min(tries - 1, 16))
        undo = isinstance(fact.call, CreateComputeInstance) or bool(before and before.undo)
        self._troubles[position] = _Trouble(tries, until, undo, isinstance(fact.call, DestroyGpuInstance))
        owner = self._owners.get(position)
        if owner is not None and fact.failure is Failure.REFUSED:
            self._notice(owner, "SliceFailed", fact.text)
        elif owner is not None and tries >= BUSY_TOLD:
            self._notice(owner, "SliceInUse", fact.text)

    def _adopt(self) -> None:
        """Rule 1's second half: after a lost journal, what the object says we reported is ours again.

        A card that is no longer in the node took its instances with it, so nothing on it is owned.
        """
        self._owners = {position: pod for position, pod in self._owners.items() if position.gpu in self._cards}
        for pod, promise in self._promises.items():
            record = self._records.get(pod)
            if record is not None and record.daemonset == "created":
                for wanted in promise.slices:
                    if self._instance(wanted.position) is not None:
                        self._owners.setdefault(wanted.position, pod)

    def _release_what_ended(self) -> None:
        for pod in self._promises.keys() | self._records.keys():
            record = self._records.get(pod)
            if self._pods.get(pod, False) or (record is not None and record.controller == "deleting"):
                self._release(pod)
        for pod in set(self._owners.values()):
            if pod not in self._promises and self._pods.get(pod, True):
                self._release(pod)
        alive = self._promises.keys() | self._records.keys() | set(self._owners.values())
        self._released &= alive
        for pod in self._noticed.keys() - alive:
            del self._noticed[pod]

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

    def _retry_now(self, position: Position) -> None:
        trouble = self._troubles.get(position)
        if trouble is not None:
            self._troubles[position] = msgspec.structs.replace(trouble, tries=0, until=0.0)

    # Decisions --------------------------------------------------------------------------------------------------

    def step(self, gpu: str, now: float) -> Instruction:
        """The one next thing to do on a card. Notes ownership before it says to create (rule 2)."""
        card = self._cards.get(gpu)
        if not self._started or card is None:
            return Rest()
        if card.retry is not None:
            return Rest(card.retry)
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
        return Rest(min(waits) if waits else None)

    def _due(self, gpu: str, card: _Card) -> Iterator[Call]:
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

    def _create(self, card: _Card, promise: Promise, wanted: Wanted) -> Iterator[Call]:
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
                    f"{made.position.profile} that Tessera did not make"
                )
                self._notice(promise.pod, "SliceBlocked", text)
                card.blocked = True
        if not in_the_way:
            yield CreateGpuInstance(position, promise.pod)

    @staticmethod
    def _destroy(made: Made) -> Call:
        if made.computes:
            ci_id, mig_uuid = made.computes[0]
            return DestroyComputeInstance(made.position, made.gi_id, ci_id, mig_uuid)
        return DestroyGpuInstance(made.position, made.gi_id)

    def _forget(self, gpu: str, card: _Card) -> None:
        """Drops ownership of what is neither there nor wanted."""
        gone = [
            position
            for position, pod in self._owners.items()
            if position.gpu == gpu and position not in card.instances and not self._promised(pod, position)
        ]
        for position in gone:
            del self._owners[position]
            self._troubles.pop(position, None)

    def _wanted(self, gpu: str) -> Iterator[tuple[Promise, Wanted]]:
        for pod, promise in self._promises.items():
            if pod not in self._released:
                yield from ((promise, wanted) for wanted in promise.slices if wanted.position.gpu == gpu)

    def _promised(self, pod: PodUid, position: Position) -> bool:
        promise = self._promises.get(pod)
        return (
            promise is not None
            and pod not in self._released
            and any(wanted.position == position for wanted in promise.slices)
        )

    def _keeps(self, pod: PodUid, position: Position) -> bool:
        """Whether a slice of ours stays: promised, or its promise vanished under a living pod (rule 4)."""
        if pod in self._released:
            return False
        return self._promised(pod, position) if pod in self._promises else self._pods.get(pod) is False

    def _instance(self, position: Position) -> Made | None:
        card = self._cards.get(position.gpu)
        return None if card is None else card.instances.get(position)

    def _notice(self, pod: PodUid, reason: str, text: str) -> None:
        notice = Notice(pod, reason, text)
        if self._noticed.get(pod) != notice:
            self._noticed[pod] = notice
            self._notices.append(notice)

    # What others read -------------------------------------------------------------------------------------------

    @property
    def promises(self) -> Mapping[PodUid, Promise]:
        """What is promised now, oldest first."""
        return self._promises

    @property
    def records(self) -> Mapping[PodUid, Record]:
        """What the object's status says now."""
        return self._records

    def released(self, pod: PodUid) -> bool:
        """Whether a pod has lost its claim on its slices."""
        return pod in self._released

    def positions_of(self, pod: PodUid) -> list[Position]:
        """The positions that are noted as this pod's, made or about to be."""
        return [position for position, owner in self._owners.items() if owner == pod]

    def slices_of(self, pod: PodUid) -> list[Position]:
        """The slices that a pod may use: its promise, or what it holds since its promise vanished."""
        if pod in self._released:
            return []
        promise = self._promises.get(pod)
        return self.positions_of(pod) if promise is None else [wanted.position for wanted in promise.slices]

    def device(self, pod: PodUid, position: Position) -> Made | None:
        """A pod's slice if it is made and ready to be used."""
        made = self._instance(position)
        return made if made is not None and made.computes and self._owners.get(position) == pod else None

    def made(self, pod: PodUid) -> bool:
        """Whether all slices of a pod are ready."""
        return all(self.device(pod, position) for position in self.slices_of(pod))

    def instances(self) -> Iterator[tuple[Made, PodUid | None]]:
        """Every instance of every card with the pod that owns it; ``None`` for foreign ones."""
        for card in self._cards.values():
            yield from ((made, self._owners.get(position)) for position, made in card.instances.items())

    def state(self, position: Position, pod: PodUid) -> State:
        """Where one slice of a pod is in its life."""
        if pod in self._released:
            return State.RELEASING
        if self.device(pod, position) is not None:
            return State.CLAIMED if position in self._bindings.get(pod, {}).values() else State.MADE
        made = self._instance(position)
        return State.GPU_INSTANCE if made is not None and self._owners.get(position) == pod else State.PROMISED

    def lost(self, gpu: str) -> bool:
        """Whether a card does not answer."""
        card = self._cards.get(gpu)
        return card is not None and card.retry is not None

    def bindings(self, pod: PodUid) -> Mapping[str, Position]:
        """Which slice each device ID means that kubelet gave to a pod."""
        return self._bindings.get(pod, {})

    def bind(self, pod: PodUid, bindings: Mapping[str, Position]) -> None:
        """Notes what device IDs mean, replacing what was noted for the pod."""
        self._bindings[pod] = dict(bindings)

    def bound_devices(self) -> set[str]:
        """All device IDs that pods hold."""
        return {device for devices in self._bindings.values() for device in devices}

    def take_unbound(self) -> list[str]:
        """Device IDs that no pod holds any more, since the last call."""
        unbound, self._unbound = sorted(self._unbound - self.bound_devices()), set()
        return unbound

    def last_notice(self, pod: PodUid) -> str:
        """The last thing that went wrong with a pod's slices; empty if nothing did."""
        notice = self._noticed.get(pod)
        return notice.text if notice else ""

    def take_notices(self) -> list[Notice]:
        """What users should read since the last call."""
        notices, self._notices = self._notices, []
        return notices

    def journal(self) -> Journal:
        """What must be on disk before the next call to a card."""
        return Journal(
            owners={position.device_id: pod for position, pod in sorted(self._owners.items())},
            released=tuple(sorted(self._released)),
            bindings={
                pod: {device: slice_.device_id for device, slice_ in bound.items()}
                for pod, bound in sorted(self._bindings.items())
            },
        )
