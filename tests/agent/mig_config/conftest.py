"""One simulated card and the machine that brings it to its layout, played step by step without an event loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import pytest

from tessera.agent.base.wake_ups import CallFailure
from tessera.agent.inventory.gpu_inventory import CardOwner, geometry_of
from tessera.agent.mig_config.events import (
    CallFailed,
    CallSucceeded,
    CardEvent,
    CardGoal,
    CardInstruction,
    CardRead,
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
    Wait,
)
from tessera.agent.mig_config.state_machine import CardStateMachine
from tessera.api.names import PodUid
from tessera.mig.geometry import Placement
from tessera.nvml.errors import InUse, NvmlError, ResetRequired
from tessera.nvml.interface import MigModeResult
from tessera.nvml.simulated.simulated_machine import SimulatedMachine

#: Instructions after which nothing happens before a fact changes.
RESTING = (Wait, InSync, ReleaseCard, RequestReboot)


class Bench:
    """A card, the pods on it, and the machine; the bench does what the machine says.

    Attributes:
        cards: the simulated hardware; card 0 is played.
        done: every instruction so far.
        now: the time, moved by tests.
        events: what the machine is told at the next step.
        refusals: why a pod may not be evicted, by name; others go at once when asked.
        strict: what must never happen is checked at every call.
    """

    def __init__(
        self, model: str = "A100-40GB", *, mig: bool = True, passthrough: bool = False, **policy: bool
    ) -> None:
        self.cards = SimulatedMachine(f"2x{model}", seed="node-1", mig=mig, passthrough=passthrough)
        self.uuid = self.cards.uuids()[0]
        self.policy = policy
        self.users: dict[str, tuple[UserPod, ...]] = {}
        self.fence: frozenset[str] = frozenset()
        self.owner = CardOwner.STATIC
        self.goal: CardGoal | None = None
        self.refusals: dict[str, str] = {}
        self.done: list[CardInstruction] = []
        self.now = 0.0
        self.events: list[CardEvent] = []
        self.machine = self.born()

    def born(self, ours: Iterable[InstancePlace] = ()) -> CardStateMachine:
        """A machine as it is after the process started, with what the journal says."""
        self.events = [GoalSet(self.goal)]
        return CardStateMachine(self.uuid, name="GPU 0", managed=ours, reached=None, **self.policy)

    def aim(self, counts: Mapping[str, int], *, mig: bool = True, owner: CardOwner = CardOwner.STATIC) -> None:
        """Sets the goal of the card."""
        self.goal = CardGoal(owner=owner, mig_enabled=mig, counts=dict(counts), path="mig-configs.wanted[0]")
        self.events.append(GoalSet(self.goal))

    def kill(self) -> None:
        """The process dies and another takes over: no fence, no memory but the journal."""
        self.fence = frozenset()
        self.machine = self.born(self.machine.managed_places)

    # Steps ------------------------------------------------------------------------------------------------------

    def step(self) -> CardInstruction:
        """One look, one instruction, which is carried out."""
        events, self.events = [*self.events, OwnerRead(self.owner), self.seen()], []
        step = self.machine.handle(events, self.now)
        self.done.append(step)
        self._carry_out(step)
        return step

    def run(self, most: int = 200) -> CardInstruction:
        """Steps until there is nothing to do for now."""
        for _ in range(most):
            step = self.step()
            if isinstance(step, RESTING):
                return step
        raise AssertionError(f"no rest after {most} steps: {self.done[-12:]}")

    def waits(self) -> Wait:
        """Steps until it waits."""
        step = self.run()
        assert isinstance(step, Wait)
        return step

    def settle(self, most: int = 200) -> CardInstruction:
        """Runs, and lets time pass over every wait for a time, until the card is done."""
        for _ in range(most):
            step = self.run()
            if isinstance(step, Wait) and step.until is not None:
                self.now = step.until
            else:
                return step
        raise AssertionError(f"not done after {most} waits: {self.done[-12:]}")

    def seen(self) -> CardRead:
        """The card as it is."""
        info = next(each for each in self.cards.devices() if each.uuid == self.uuid)
        users: dict[int | None, tuple[int, ...]] = {}
        for each in self.cards.processes(self.uuid):
            users[each.gi_id] = (*users.get(each.gi_id, ()), each.pid)
        return CardRead(
            mig_enabled=info.mig_enabled,
            mig_pending=info.mig_pending,
            geometry=geometry_of(info, self.cards.gi_profiles(self.uuid)) if info.mig_enabled else None,
            instances=tuple(self.cards.instances(self.uuid)),
            processes=users,
        )

    def _carry_out(self, step: CardInstruction) -> None:
        match step:
            case SetFence(uuids=uuids):
                self.fence = uuids
                self.events.append(FenceSet(uuids))
            case ListUsers():
                self.events.append(UsersListed(dict(self.users)))
            case EvictUsers(users=evicted):
                for each in evicted:
                    refusal = self.refusals.get(each.name)
                    if refusal is None:
                        self.ends(each.name)
                    self.events.append(EvictionAnswered(each.pod, refusal, self.now))
            case Wait() | InSync() | ReleaseCard() | RequestReboot():
                pass
            case call:
                try:
                    self.perform(call)
                except NvmlError as error:
                    kinds = {InUse: CallFailure.BUSY, ResetRequired: CallFailure.NEEDS_RESET}
                    self.events.append(
                        CallFailed(call, kinds.get(type(error), CallFailure.REFUSED), str(error), self.now)
                    )
                else:
                    self.events.append(CallSucceeded(call))

    def perform(self, call: CardInstruction) -> None:
        """Makes a call, after checking that it may be made at all."""
        cards, uuid = self.cards, self.uuid
        match call:
            case SetMigMode(enabled=enabled):
                assert not self.held(uuid)
                assert not cards.instances(uuid)
                result = cards.set_mig_mode(uuid, enabled)
                if result is MigModeResult.RESET_REQUIRED:
                    raise ResetRequired(f"MIG mode of {uuid} stays pending")
                if result is MigModeResult.IN_USE:
                    raise InUse(f"MIG mode of {uuid} stays pending")
            case Reset():
                assert not any(self.held(each) for each in self.devices())
                assert not cards.processes(uuid)
                cards.reset(uuid)
            case CreateGi(place=place):
                assert place in self.machine.managed_places
                cards.create_gpu_instance(uuid, place.profile, place.start)
            case CreateCi(gi_id=gi_id, profile_index=index):
                cards.create_compute_instance(uuid, gi_id, index)
            case DestroyCi(gi_id=gi_id, ci_id=ci_id, mig_uuid=mig_uuid):
                assert mig_uuid in self.fence
                assert not self.held(mig_uuid)
                assert not cards.processes(mig_uuid)
                cards.destroy_compute_instance(uuid, gi_id, ci_id)
            case DestroyGi(gi_id=gi_id):
                cards.destroy_gpu_instance(uuid, gi_id)

    # The card and who is on it ----------------------------------------------------------------------------------

    def devices(self) -> list[str]:
        """The card and its MIG devices."""
        made = [each.mig_uuid for one in self.cards.instances(self.uuid) for each in one.compute_instances]
        return [self.uuid, *made]

    def free(self) -> list[str]:
        """The devices that a pod can get: the MIG devices, or the whole card while MIG mode is off."""
        return self.devices()[1:] if self.seen().mig_enabled else [self.uuid]

    def held(self, device: str) -> bool:
        return bool(self.users.get(device))

    def make(self, *places: tuple[str, int], half: bool = False) -> list[str]:
        """Somebody makes instances; returns the MIG devices' UUIDs."""
        made = []
        for profile, start in places:
            gi_id = self.cards.create_gpu_instance(self.uuid, profile, start)
            if not half:
                row = self.seen().geometry
                assert row is not None
                index = row.profile(profile).ci_profile_index
                made.append(str(self.cards.create_compute_instance(self.uuid, gi_id, index).mig_uuid))
        return made

    def lay(self, layout: Iterable[Placement]) -> list[str]:
        """A whole layout is on the card."""
        return self.make(*((each.profile, each.start) for each in layout))

    def hold(self, name: str, device: str) -> None:
        """A pod is given a device."""
        assert device not in self.fence, f"{name} was given {device}, which is fenced"
        self.users[device] = (*self.users.get(device, ()), UserPod("default", name, PodUid(f"uid-{name}")))

    def ends(self, name: str) -> None:
        """A pod ends and holds nothing more."""
        left = {device: tuple(one for one in held if one.name != name) for device, held in self.users.items()}
        self.users = {device: held for device, held in left.items() if held}

    def multiset(self) -> dict[str, int]:
        """The instances that containers can use, by profile: one compute instance fills each."""
        seen = self.seen()
        found: Counter[str] = Counter()
        for each in seen.instances:
            assert seen.geometry is not None
            whole = seen.geometry.profile(each.profile).ci_profile_index
            assert [one.profile_index for one in each.compute_instances] == [whole], f"not whole: {each}"
            found[each.profile] += 1
        return dict(found)

    def starts(self) -> dict[int, str]:
        """Profile by first slot."""
        return {each.start: each.profile for each in self.cards.instances(self.uuid)}

    def calls(self) -> list[str]:
        """The calls so far, by name."""
        quiet = (*RESTING, SetFence, ListUsers, EvictUsers)
        return [type(each).__name__ for each in self.done if not isinstance(each, quiet)]


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Makes a bench; ``may_evict`` and ``may_reboot`` are the policy."""
    return Bench
