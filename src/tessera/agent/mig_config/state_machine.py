"""The way of one static card to its layout: pure, facts in, the one next instruction out.

Whoever executes the instructions reads the card again after each and applies what he saw, so nothing is believed but
the hardware: a process that was killed between any two calls goes on where the card stands, from no more
than the card, the goal and the places that a layout made. Rules:

1.  What is to be destroyed is fenced first, so that no pod is given it. Only after kubelet has been asked again behind
    the fence, and nobody holds it and no process is listed on it, it goes.
2.  Idle work comes first: idle instances go, all that already fits is made, and only then is waited for the rest.
3.  Who holds what must go is waited for. If the policy says so, pods are evicted, once nothing else is left to do.
4.  A call that failed is tried again after a growing delay. A compute instance that cannot be made takes its GPU
    instance down with it before the next try. What goes on failing is called a failure, and tried on.
5.  A fence grows at once and shrinks only when there is nothing to call: what is gone stays fenced until the node's
    stock has been taken again.
6.  A reset needs the card for itself. After some tries it is called impossible, and only then is a reboot an answer.

The machine knows no clock (``now`` is an argument), no NVML, no kubelet and no API server.
"""

from collections.abc import Iterable, Iterator

from tessera.agent.inventory.card_ownership import CardOwner
from tessera.agent.mig_config.diff import CardDiff, CardUsage, DiffImpossible, diff_card, place_of
from tessera.agent.mig_config.events import (
    Call,
    CallFailed,
    CallFailure,
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
    DeviceUser,
    EvictionAnswered,
    EvictUsers,
    FenceSet,
    InstancePlace,
    InSync,
    ListUsers,
    OwnerRead,
    ReleaseCard,
    RequestReboot,
    Reset,
    SetFence,
    SetMigMode,
    UsersListed,
    UsersUnknown,
    Wait,
)
from tessera.agent.mig_config.retry import (
    BUSY_FIRST,
    BUSY_MOST,
    RETRY_FIRST,
    RETRY_MOST,
    CallRetries,
    EvictionRetries,
    FailedCall,
    Key,
    backoff,
    describe_call,
)
from tessera.nvml.interface import Instance

#: Seconds after which a card is looked at again although no fact changed while pods hold what must go.
HELD_RECHECK = 30.0


class CardStateMachine:
    """One card on its way. Not concurrent: one event loop applies facts and asks for steps.

    Args:
        uuid: the card's.
        name: how people know it, ``GPU 0 (GPU-…)``.
        ours: places on it that a layout made or kept, as the journal has them.
        may_evict: pods that hold what must go are evicted.
        may_reboot: a reboot is an answer to a card that cannot be reset.
    """

    def __init__(
        self,
        uuid: str,
        *,
        name: str,
        managed: Iterable[InstancePlace] = (),
        may_evict: bool = False,
        may_reboot: bool = False,
    ) -> None:
        self._uuid = uuid
        self._name = name
        self._ours = frozenset(managed)
        self._may_evict = may_evict
        self._may_reboot = may_reboot
        self._goal: CardGoal | None = None
        self._role = CardOwner.STATIC
        self._seen: CardRead | CardReadFailed | None = None
        self._fence: frozenset[str] = frozenset()
        self._holders: UsersListed | UsersUnknown | None = None
        self._troubles = CallRetries()
        self._requests = EvictionRetries()
        self._needs_reset = False
        self._done: Call | None = None
        self._looks = 0

    @property
    def name(self) -> str:
        """How people know the card."""
        return self._name

    @property
    def managed(self) -> frozenset[InstancePlace]:
        """Places on the card that a layout made or kept; to be saved before every call and when there is none."""
        return self._ours

    def aim(self, goal: CardGoal | None) -> None:
        """Says what the card shall be; ``None`` to leave it as it is. A new goal is tried at once."""
        if goal != self._goal:
            self._goal = goal
            self._troubles.clear()
            self._requests.clear()
            self._needs_reset = False

    # Facts ------------------------------------------------------------------------------------------------------

    def apply(self, fact: CardEvent) -> None:
        """Takes in one fact."""
        match fact:
            case CardRead() | CardReadFailed():
                self._seen = fact
            case FenceSet():
                self._fence, self._holders = fact.uuids, None
            case UsersListed():
                self._requests.prune({each.pod for tenants in fact.users.values() for each in tenants})
                self._holders = fact
            case UsersUnknown():
                self._holders = fact
            case OwnerRead():
                self._role = fact.role
            case CallSucceeded():
                self._done, self._looks = fact.call, 0
                if isinstance(fact.call, Reset):
                    self._needs_reset = False
            case CallFailed():
                self._failed(fact)
            case EvictionAnswered():
                self._requests.record(fact)

    def _failed(self, fact: CallFailed) -> None:
        self._troubles.record(fact)
        self._done = None
        told_by_mode = isinstance(fact.call, SetMigMode)  # which is pending then
        if fact.failure is CallFailure.NEEDS_RESET and not told_by_mode:
            self._needs_reset = True

    # Decisions --------------------------------------------------------------------------------------------------

    def step(self, now: float) -> CardInstruction:
        """The one next thing to do."""
        step = self._step(now)
        if isinstance(step, Wait | InSync | EvictUsers | RequestReboot):
            self._holders = None  # time passes now, and pods come and go
        return step

    def _step(self, now: float) -> CardInstruction:
        if self._goal is None:
            return self._settled(InSync())
        if self._role is not CardOwner.STATIC:
            if self._goal.role is not CardOwner.STATIC:
                return self._settled(InSync())
            text = f"{self._name}: its slices on demand have not ended"
            return self._settled(Wait(None, "CardsInUse", text))
        match self._seen:
            case None:
                return Wait(now + BUSY_FIRST, "Starting", f"{self._name}: has not been read yet")
            case CardReadFailed():
                return Wait(self._seen.retry, "NvmlFailed", f"{self._name}: {self._seen.text}", failed=True)
            case seen:
                return self._on(seen, self._goal, now)

    def _on(self, seen: CardRead, goal: CardGoal, now: float) -> CardInstruction:
        uses = CardUsage(self._uuid, self._tenants(), seen.processes)
        self._ours &= frozenset(map(place_of, seen.instances))
        work = diff_card(goal, seen, uses, self._ours, needs_reset=self._needs_reset)
        if isinstance(work, DiffImpossible):
            return self._settled(Wait(now + RETRY_MOST, work.reason, f"{self._name}: {work.text}", failed=True))
        if work.is_empty:
            self._done = None
            self._learn(work, seen, goal)
            return self._settled(InSync())
        match self._holders:
            case UsersListed():
                self._learn(work, seen, goal)
                return self._toward(work, seen, uses, now)
            case UsersUnknown(text=text, retry=retry):
                return Wait(retry, "HoldersUnknown", f"{self._name}: {text}")
            case None:
                return ListUsers()

    def _toward(self, work: CardDiff, seen: CardRead, uses: CardUsage, now: float) -> CardInstruction:
        fence = work.devices_to_fence(self._uuid, seen.instances)
        if not fence <= self._fence:
            return SetFence(fence | self._fence)
        for call in self._calls(work, seen, uses):
            if call == self._done:
                self._failed(
                    CallFailed(call, CallFailure.REFUSED, f"{describe_call(call)} succeeded and changed nothing", now)
                )
            if self._troubles.allows(call, now):
                if isinstance(call, CreateGi):
                    self._ours |= {call.place}
                return call
        if fence != self._fence:
            return SetFence(fence)
        return self._blocked(work, seen, uses, now)

    def _calls(self, work: CardDiff, seen: CardRead, uses: CardUsage) -> Iterator[Call | ReleaseCard]:
        """Everything that could be called now, in the order of rule 2."""
        yield from (_destroy(each) for each in work.destroy if not uses.uses_instance(each))
        for each in work.complete:
            if self._troubles.must_discard(place_of(each)):
                yield DestroyGi(place_of(each), each.gi_id)
            elif work.geometry is not None:
                index = work.geometry.profile(each.profile).ci_profile_index
                yield CreateCi(place_of(each), each.gi_id, index)
        yield from (CreateGi(InstancePlace(each.profile, each.start)) for each in work.creatable(seen.instances))
        yield from (_destroy(each) for each in work.clear if not uses.uses_instance(each))
        if work.final_call is not None and not work.destroy and not uses.uses_card(seen.instances):
            yield work.final_call

    def _blocked(self, work: CardDiff, seen: CardRead, uses: CardUsage, now: float) -> CardInstruction:
        """Nothing can be called now: who must leave, what has failed, what else could help."""
        tenants, pids = self._in_the_way(work, seen, uses), self._pids(work, seen)
        if self._may_evict and (due := self._requests.due(tenants, now)):
            return EvictUsers(due)
        until = self._until(tenants, pids, now)
        in_use = bool(tenants or pids)
        worst = self._troubles.most_attempted()
        if worst is not None and worst[1].is_failure(in_use=in_use):
            return self._failure(*worst, until)
        if in_use:
            return Wait(until, "CardsInUse", self._who(tenants, pids))
        return Wait(until, "LayoutRetrying", f"{self._name}: {worst[1].text if worst else 'nothing can be called now'}")

    def _until(self, tenants: list[DeviceUser], pids: list[int], now: float) -> float:
        """When to look again: the next try, the next eviction, or a while. The end of a pod is a fact of its own."""
        until = [*self._troubles.retry_times()]
        self._looks = 0 if tenants else self._looks + 1
        if tenants:
            until += [now + HELD_RECHECK, *self._requests.retry_times()]
        elif pids:
            until.append(now + backoff(BUSY_FIRST, BUSY_MOST, self._looks))
        return min((each for each in until if each > now), default=now + RETRY_FIRST)

    def _failure(self, key: Key, trouble: FailedCall, until: float) -> CardInstruction:
        for_mode = key is SetMigMode and trouble.failure is not CallFailure.REFUSED
        if for_mode or key is Reset:
            text = f"{self._name}: it needs a reset, which cannot be had: {trouble.text}"
            if self._may_reboot:
                return RequestReboot(text, until)
            return Wait(until, "ResetRequired", f"{text}; end what uses the card, or reboot the node", failed=True)
        if trouble.failure is CallFailure.BUSY:
            return Wait(until, "CardsInUse", f"{self._name}: {trouble.text}")
        return Wait(until, "NvmlFailed", f"{self._name}: tried {trouble.attempts} times: {trouble.text}", failed=True)

    # What is known ----------------------------------------------------------------------------------------------

    def _settled(self, then: Wait | InSync) -> CardInstruction:
        """Nothing may stay fenced where nothing is to be destroyed."""
        return SetFence(frozenset()) if self._fence else then

    def _tenants(self) -> dict[str, tuple[DeviceUser, ...]]:
        return dict(self._holders.users) if isinstance(self._holders, UsersListed) else {}

    def _learn(self, work: CardDiff, seen: CardRead, goal: CardGoal) -> None:
        """Once it is known who stays: what is kept is the layout's, and what stands as it shall has no troubles."""
        if goal.role is CardOwner.STATIC:
            self._ours |= frozenset(map(place_of, work.keep))
        for_mode = isinstance(work.final_call, SetMigMode | Reset)
        self._troubles.prune(None if for_mode else work.places(), frozenset(map(place_of, seen.instances)))

    def _in_the_way(self, work: CardDiff, seen: CardRead, uses: CardUsage) -> list[DeviceUser]:
        touched = seen.instances if work.needs_whole_card else work.to_vacate()
        uuids = [self._uuid] if work.needs_whole_card else []
        uuids += [each.mig_uuid for one in touched for each in one.compute_instances]
        return sorted({tenant for uuid in uuids for tenant in uses.users.get(uuid, ())})

    @staticmethod
    def _pids(work: CardDiff, seen: CardRead) -> list[int]:
        touched = {each.gi_id for each in work.to_vacate()}
        return sorted(
            pid for gi_id, pids in seen.processes.items() if work.needs_whole_card or gi_id in touched for pid in pids
        )

    def _who(self, tenants: Iterable[DeviceUser], pids: Iterable[int]) -> str:
        who = [f"{each}{self._requests.describe(each)}" for each in tenants]
        if not who:
            who = [f"process {pid}" for pid in pids]
        policy = "" if self._may_evict else "; they are waited for"
        return f"{self._name}: what must go is held by {', '.join(who)}{policy}"


def _destroy(instance: Instance) -> Call:
    place = place_of(instance)
    if instance.compute_instances:
        first = instance.compute_instances[0]
        return DestroyCi(place, instance.gi_id, first.ci_id, first.mig_uuid)
    return DestroyGi(place, instance.gi_id)
