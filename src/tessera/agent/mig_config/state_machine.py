"""Brings one static card to the goal of its layout: events in, the one next instruction out. Pure.

The caller reads the card again before every decision, so the hardware alone decides: a process that was killed between
any two calls continues from the card, the goal and the places that a layout manages. Rules:

1.  Fence first: no pod may get a device that is about to be destroyed. Destroy the device only after API server and
    kubelet listed the users behind the fence, no pod holds it, and NVML lists no process on it.
2.  Idle work first: destroy idle instances, create all that already fits, and only then wait for the rest.
3.  Wait for the pods that hold devices which the layout removes. If the policy allows it, evict them once no other
    work is left.
4.  Try a failed call again after a growing delay. If a compute instance cannot be created, destroy its GPU instance
    before the next attempt. Report a call that keeps failing as a failure, and keep trying.
5.  A fence grows at once. It shrinks only when no call is due: destroyed devices stay fenced until the inventory was
    read again.
6.  A reset needs the whole card. After some attempts it counts as impossible, and only then is a reboot an answer.

The state machine knows no clock (``now`` is an argument, monotonic seconds), no NVML, no kubelet and no API server.

:class:`EvictionRetries` has the keys of a card's calls and evictions, their delays, and when a failure is reported;
:mod:`tessera.agent.base.wake_ups` counts the failed calls. ``now`` is an argument everywhere, monotonic seconds.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum

from tessera.agent.base.wake_ups import CallFailure, CallRetries, FailedCall, RetryDelays
from tessera.agent.inventory.gpu_inventory import CardOwner
from tessera.agent.mig_config.diff import CardDiff, CardUsage, DiffImpossible, diff_card, place_of
from tessera.agent.mig_config.events import (
    UNREADABLE,
    Call,
    CallFailed,
    CallSucceeded,
    CardEvent,
    CardGoal,
    CardInstruction,
    CardRead,
    CardReadFailed,
    CreateCi,
    CreateGi,
    DestroyCi,
    DestroyGi,
    EvictionAnswered,
    EvictUsers,
    FenceSet,
    GoalSet,
    InstancePlace,
    InSync,
    ListUsers,
    OwnerRead,
    ReleaseCard,
    RequestReboot,
    Reset,
    SetFence,
    SetMigMode,
    UserPod,
    UsersListed,
    UsersUnknown,
    Wait,
)
from tessera.api.names import PodUid
from tessera.nvml.interface import GpuInstance
from tessera.replay.recorder import Decider

#: Delays before a failed call is tried again.
REFUSED_DELAYS = RetryDelays(first=0.5, most=60.0)
#: The same while a process still uses the card. A process mostly outlives its pod by moments only.
BUSY_DELAYS = RetryDelays(first=0.1, most=5.0)
#: Attempts after which a call that keeps failing is reported as a failure; some two seconds.
FAILURE_ATTEMPTS = 3
#: Seconds after which an evicted pod that is still there is evicted again; longer than most grace periods.
EVICT_AGAIN = 60.0
#: Delays after a refused eviction.
EVICTION_DELAYS = RetryDelays(first=2.0, most=60.0)


class CardCall(Enum):
    """A call for the card as a whole."""

    SET_MIG_MODE = "set-mig-mode"
    RESET = "reset"


#: Key of a failed call: one place, or the card as a whole.
CallKey = InstancePlace | CardCall


def call_retries() -> CallRetries[CallKey]:
    """Retries of the calls of one card, none failed."""
    return CallRetries(refused=REFUSED_DELAYS, busy=BUSY_DELAYS)


def call_key(call: Call) -> CallKey:
    """The key of a call."""
    match call:
        case SetMigMode():
            return CardCall.SET_MIG_MODE
        case Reset():
            return CardCall.RESET
        case _:
            return call.place


def is_reported(failed: FailedCall, *, in_use: bool) -> bool:
    """True if a call must be reported as a failure now. A busy device is no failure while its users are known."""
    return failed.attempts >= FAILURE_ATTEMPTS and not (in_use and failed.failure is CallFailure.BUSY)


class EvictionRetries:
    """The evictions requested for one card. Each pod is either among the refused or among the accepted ones."""

    def __init__(self) -> None:
        #: Evictions that the API server refused. Only of pods that the last list of users has.
        self._refused: CallRetries[PodUid] = CallRetries(refused=EVICTION_DELAYS, busy=EVICTION_DELAYS)
        #: By pod whose eviction was accepted, the time of the next request. Only pods that the last list of users has.
        self._accepted: dict[PodUid, float] = {}

    def record(self, event: EvictionAnswered) -> None:
        """Counts an answer of the API server."""
        if event.refusal is None:
            self._refused.drop(event.pod)
            self._accepted[event.pod] = event.now + EVICT_AGAIN
        else:
            self._accepted.pop(event.pod, None)
            self._refused.record(event.pod, CallFailure.REFUSED, event.refusal, event.now)

    def prune(self, pods: Collection[PodUid]) -> None:
        """Forgets the pods that are not among these."""
        for pod in self._refused.failed_keys():
            if pod not in pods:
                self._refused.drop(pod)
        self._accepted = {pod: at for pod, at in self._accepted.items() if pod in pods}

    def clear(self) -> None:
        """Forgets all evictions."""
        self._refused.clear()
        self._accepted.clear()

    def pods_to_evict(self, users: Sequence[UserPod], now: float) -> tuple[UserPod, ...]:
        """The pods to evict now. A pod that kubelet is just admitting is still unknown and cannot be evicted."""
        return tuple(each for each in users if each.pod and self._is_due(each.pod, now))

    def _is_due(self, pod: PodUid, now: float) -> bool:
        return self._refused.is_due(pod, now) and self._accepted.get(pod, now) <= now

    def retry_times(self) -> Iterator[float]:
        """The times at which the next evictions are due."""
        yield from self._accepted.values()
        yield from (at for _, at in self._refused.retry_times())

    def describe(self, user: UserPod) -> str:
        """The last answer about a pod, to follow its name in a text; empty if its eviction was not requested."""
        if user.pod in self._accepted:
            return " (evicted)"
        refused = self._refused.last_failure(user.pod)
        return "" if refused is None else f" (not evicted yet: {refused.text})"


def describe_call(call: Call | ReleaseCard) -> str:
    """The name of a call and its place, for people."""
    where = ""
    if not isinstance(call, SetMigMode | Reset | ReleaseCard):
        where = f" of {call.place.profile} at {call.place.start}"
    return f"{type(call).__name__}{where}"


#: Seconds after which a card is read again without any event while pods hold devices that the layout removes.
HELD_RECHECK = 30.0


class CardStateMachine(Decider[[Iterable[CardEvent], float], CardInstruction]):
    """Decides about one card. Not concurrent: one event loop calls it.

    Args:
        uuid: UUID of the card.
        name: the card's name in messages, ``GPU 0 (GPU-…)``.
        managed: places of instances on it that a layout made or kept, from the journal.
        may_evict: true if pods that hold devices which the layout removes are evicted.
        may_reboot: true if the node may be rebooted for a card that cannot be reset.
        reached: the goal that the card had reached when an earlier process saw it last; ``None`` if not known.

    Attributes:
        managed_places: places of instances that a layout made or kept. Save them before every call and when no call is
            due.
    """

    def __init__(
        self,
        uuid: str,
        *,
        name: str,
        managed: Iterable[InstancePlace] = (),
        may_evict: bool = False,
        may_reboot: bool = False,
        reached: CardGoal | None = None,
    ) -> None:
        self.uuid = uuid
        self.name = name
        self._may_evict = may_evict
        self._may_reboot = may_reboot
        #: Places of instances that a layout made or kept. Each is in the last reading, or its instance is about to be
        #: created.
        self.managed_places = frozenset(managed)
        #: The goal from the layout; retries count for this goal only.
        self._goal: CardGoal | None = None
        #: The goal that the last good reading showed as reached; ``None`` if it showed another state.
        self._reached = reached
        #: The owner of the card; no call is made unless that is the static side.
        self._owner = CardOwner.STATIC
        #: The last reading; ``None`` before the first.
        self._card: CardRead | CardReadFailed | None = None
        #: The devices that no pod can get, as the caller confirmed; a device that a call destroys is always in it.
        self._fence: frozenset[str] = frozenset()
        #: The users of each device. ``None`` if they were not listed since the fence was set or time passed.
        self._users: UsersListed | UsersUnknown | None = None
        #: Calls that failed and are still to be made.
        self._retries = call_retries()
        #: Requested evictions of pods that still hold a device.
        self._evictions = EvictionRetries()
        #: True if a failed call showed that the card must be reset; false again after a reset or a new goal.
        self._needs_reset = False
        #: The last call if it succeeded. If the next reading asks for the same call, it changed nothing.
        self._last_success: Call | None = None
        #: Decisions in a row that found only processes, no pod, in the way; the delay grows with it.
        self._waits_for_processes = 0

    def handle(self, events: Iterable[CardEvent], now: float) -> CardInstruction:
        """Takes events in and returns the one next instruction.

        Args:
            events: everything that happened since the last decision, in order.
            now: monotonic seconds.
        """
        for event in events:
            self._apply(event)
        instruction = self._next(now)
        if isinstance(instruction, Wait | InSync | EvictUsers | RequestReboot):
            self._users = None  # time passes now, and pods come and go
        return instruction

    # Events -----------------------------------------------------------------------------------------------------

    def _apply(self, event: CardEvent) -> None:
        match event:
            case GoalSet(goal=goal):
                self._set_goal(goal)
            case OwnerRead(owner=owner):
                self._owner = owner
            case CardRead() | CardReadFailed():
                self._card = event
            case FenceSet(uuids=uuids):
                self._fence, self._users = uuids, None
            case UsersListed(users=users):
                self._evictions.prune({each.pod for found in users.values() for each in found})
                self._users = event
            case UsersUnknown():
                self._users = event
            case CallSucceeded(call=call):
                self._last_success, self._waits_for_processes = call, 0
                if isinstance(call, Reset):
                    self._needs_reset = False
            case CallFailed():
                self._record_failure(event)
            case EvictionAnswered():
                self._evictions.record(event)

    def _set_goal(self, goal: CardGoal | None) -> None:
        """Forgets all delays when the goal changes: a new goal is tried at once."""
        if goal != self._goal:
            self._goal = goal
            self._retries.clear()
            self._evictions.clear()
            self._needs_reset = False

    def _record_failure(self, event: CallFailed) -> None:
        self._retries.record(
            call_key(event.call),
            event.failure,
            event.text,
            event.now,
            half_made=isinstance(event.call, CreateCi),
            undo_failed=isinstance(event.call, DestroyGi),
        )
        self._last_success = None
        # After SetMigMode the mode is pending, which the next reading shows.
        if event.failure is CallFailure.NEEDS_RESET and not isinstance(event.call, SetMigMode):
            self._needs_reset = True

    # Decisions --------------------------------------------------------------------------------------------------

    def _next(self, now: float) -> CardInstruction:
        if self._goal is None:
            return self._remove_fence_first(InSync())
        if self._owner is not CardOwner.STATIC:
            if self._goal.owner is not CardOwner.STATIC:
                return self._remove_fence_first(InSync())
            text = f"{self.name}: its slices on demand have not ended"
            return self._remove_fence_first(Wait(None, "CardsInUse", text))
        match self._card:
            case None:
                return Wait(now + BUSY_DELAYS.first, "Starting", f"{self.name}: has not been read yet")
            case CardReadFailed():
                text = f"{self.name}: {self._card.text}"
                if self._goal == self._reached:  # what cannot be read was not changed either
                    return Wait(self._card.retry, UNREADABLE, f"{text}; it had the layout before")
                return Wait(self._card.retry, "NvmlFailed", text, failed=True)
            case card:
                return self._next_for(card, self._goal, now)

    def _next_for(self, card: CardRead, goal: CardGoal, now: float) -> CardInstruction:
        usage = CardUsage(self.uuid, self._listed_users(), card.processes)
        self.managed_places &= frozenset(map(place_of, card.instances))
        diff = diff_card(goal, card, usage, self.managed_places, needs_reset=self._needs_reset)
        if isinstance(diff, DiffImpossible):
            return self._remove_fence_first(
                Wait(now + REFUSED_DELAYS.most, diff.reason, f"{self.name}: {diff.text}", failed=True)
            )
        self._reached = goal if diff.is_empty else None
        if diff.is_empty:
            self._last_success = None
            self._learn(diff, card, goal)
            return self._remove_fence_first(InSync())
        match self._users:
            case UsersListed():
                self._learn(diff, card, goal)
                return self._work_on(diff, card, usage, now)
            case UsersUnknown(text=text, retry=retry):
                return Wait(retry, "DeviceUsersUnknown", f"{self.name}: {text}")
            case None:
                return ListUsers()

    def _work_on(self, diff: CardDiff, card: CardRead, usage: CardUsage, now: float) -> CardInstruction:
        fence = diff.devices_to_fence(self.uuid, card.instances)
        if not fence <= self._fence:
            return SetFence(fence | self._fence)
        for call in self._possible_calls(diff, card, usage):
            if call == self._last_success:
                text = f"{describe_call(call)} succeeded and changed nothing"
                self._record_failure(CallFailed(call, CallFailure.REFUSED, text, now))
            if isinstance(call, ReleaseCard) or self._retries.is_due(call_key(call), now):
                if isinstance(call, CreateGi):
                    self.managed_places |= {call.place}
                return call
        if fence != self._fence:
            return SetFence(fence)
        return self._wait_or_evict(diff, card, usage, now)

    def _possible_calls(self, diff: CardDiff, card: CardRead, usage: CardUsage) -> Iterator[Call | ReleaseCard]:
        """Every call that could be made now, in the order of rule 2."""
        yield from (_destroy(each) for each in diff.destroy if not usage.uses_instance(each))
        for each in diff.complete:
            if self._retries.can_undo(place_of(each)):
                yield DestroyGi(place_of(each), each.gi_id)
            elif diff.geometry is not None:
                index = diff.geometry.profile(each.profile).ci_profile_index
                yield CreateCi(place_of(each), each.gi_id, index)
        yield from (CreateGi(InstancePlace(each.profile, each.start)) for each in diff.creatable(card.instances))
        yield from (_destroy(each) for each in diff.clear if not usage.uses_instance(each))
        if diff.final_call is not None and not diff.destroy and not usage.uses_card(card.instances):
            yield diff.final_call

    def _wait_or_evict(self, diff: CardDiff, card: CardRead, usage: CardUsage, now: float) -> CardInstruction:
        """No call can be made now: evict, request a reboot, or wait for users and retries."""
        users, pids = self._blocking_users(diff, card, usage), self._blocking_processes(diff, card)
        if self._may_evict and (pods := self._evictions.pods_to_evict(users, now)):
            return EvictUsers(pods)
        until = self._next_look(users, pids, now)
        in_use = bool(users or pids)
        worst = self._retries.most_frequent_failure()
        if worst is not None and is_reported(worst[1], in_use=in_use):
            return self._report_failure(*worst, until)
        if in_use:
            return Wait(until, "CardsInUse", self._describe_blockers(users, pids))
        return Wait(until, "LayoutRetrying", f"{self.name}: {worst[1].text if worst else 'no call is possible now'}")

    def _next_look(self, users: list[UserPod], pids: list[int], now: float) -> float:
        """Time of the next decision: the next retry or eviction, or after a pause. The end of a pod is an event."""
        until = [at for _, at in self._retries.retry_times()]
        self._waits_for_processes = 0 if users else self._waits_for_processes + 1
        if users:
            until += [now + HELD_RECHECK, *self._evictions.retry_times()]
        elif pids:
            until.append(now + BUSY_DELAYS.after(self._waits_for_processes))
        return min((each for each in until if each > now), default=now + REFUSED_DELAYS.first)

    def _report_failure(self, key: CallKey, failed: FailedCall, until: float) -> CardInstruction:
        for_mode = key is CardCall.SET_MIG_MODE and failed.failure is not CallFailure.REFUSED
        if for_mode or key is CardCall.RESET:
            text = f"{self.name}: it needs a reset, which is not possible: {failed.text}"
            if self._may_reboot:
                return RequestReboot(text, until)
            return Wait(until, "ResetRequired", f"{text}; end what uses the card, or reboot the node", failed=True)
        if failed.failure is CallFailure.BUSY:
            return Wait(until, "CardsInUse", f"{self.name}: {failed.text}")
        return Wait(until, "NvmlFailed", f"{self.name}: tried {failed.attempts} times: {failed.text}", failed=True)

    # State ------------------------------------------------------------------------------------------------------

    def _remove_fence_first(self, instruction: Wait | InSync) -> CardInstruction:
        """Returns the instruction, or first one that removes the fence: no device is about to be destroyed."""
        return SetFence(frozenset()) if self._fence else instruction

    def _listed_users(self) -> dict[str, tuple[UserPod, ...]]:
        return dict(self._users.users) if isinstance(self._users, UsersListed) else {}

    def _learn(self, diff: CardDiff, card: CardRead, goal: CardGoal) -> None:
        """Once the users are known: kept instances become managed, and finished places lose their retries."""
        if goal.owner is CardOwner.STATIC:
            self.managed_places |= frozenset(map(place_of, diff.keep))
        for_mode = isinstance(diff.final_call, SetMigMode | Reset)
        present = frozenset(map(place_of, card.instances))
        for key in self._retries.failed_keys():
            if not for_mode and key not in diff.places():
                self._retries.drop(key)
            elif key not in present:
                self._retries.forget_instance(key)

    def _blocking_users(self, diff: CardDiff, card: CardRead, usage: CardUsage) -> list[UserPod]:
        touched = card.instances if diff.needs_whole_card else diff.to_vacate()
        uuids = [self.uuid] if diff.needs_whole_card else []
        uuids += [each.mig_uuid for one in touched for each in one.compute_instances]
        return sorted({user for uuid in uuids for user in usage.users.get(uuid, ())})

    @staticmethod
    def _blocking_processes(diff: CardDiff, card: CardRead) -> list[int]:
        touched = {each.gi_id for each in diff.to_vacate()}
        found = (pids for gi_id, pids in card.processes.items() if diff.needs_whole_card or gi_id in touched)
        return sorted(pid for pids in found for pid in pids)

    def _describe_blockers(self, users: Iterable[UserPod], pids: Iterable[int]) -> str:
        blockers = [f"{each}{self._evictions.describe(each)}" for each in users]
        if not blockers:
            blockers = [f"process {pid}" for pid in pids]
        policy = "" if self._may_evict else " (pods are not evicted)"
        return f"{self.name}: waiting for {', '.join(blockers)} to release what the layout changes{policy}"


def _destroy(instance: GpuInstance) -> Call:
    place = place_of(instance)
    if instance.compute_instances:
        first = instance.compute_instances[0]
        return DestroyCi(place, instance.gi_id, first.ci_id, first.mig_uuid)
    return DestroyGi(place, instance.gi_id)
