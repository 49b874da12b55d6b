"""What stands between a card and what its layout wants of it: one look, no memory.

Rules:

- the card is compared as a multiset of profiles, so the same instances at other starts are no difference;
- instances in use stay where the target allows it, then as many idle ones as possible
  (:mod:`tessera.mig.transition_planning`);
- an instance that nobody asked for goes, whoever made it; so does a compute instance that does not span its GPU
  instance, and a GPU instance without one is completed if the target holds it and goes otherwise;
- a change of MIG mode, a reset and the hand-over to slices on demand need the whole card: everybody must leave;
- a card that is handed over loses what a layout made or kept there; what else is on it stays for the other side to see;
- a mode that is pending against the layout is taken back while the card is empty, and before any reset: it would take
  hold with the next reset or reboot. On a card that holds something it is left; when it takes hold, it is drift.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.agent.inventory.card_ownership import CardOwner
from tessera.agent.mig_config.events import (
    CardGoal,
    CardRead,
    InstancePlace,
    ReleaseCard,
    Reset,
    SetMigMode,
    UserPod,
)
from tessera.mig.geometry import Geometry, Placement
from tessera.mig.layout_planning import Infeasible
from tessera.mig.occupancy import occupancy_of, occupied_by
from tessera.mig.transition_planning import Held, plan_transition
from tessera.nvml.interface import Instance

#: ``NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE`` and its ``_REV1``, as instances with media engines may call it (nvml.h).
_ONE_SLICE = frozenset({0, 7})


class CardUsage(msgspec.Struct, frozen=True):
    """Who is on a card.

    Attributes:
        uuid: the card's.
        tenants: pods by the UUID of card or MIG device that they hold.
        pids: processes by GPU instance, under ``None`` those on the whole card.
    """

    uuid: str
    users: Mapping[str, tuple[UserPod, ...]]
    processes: Mapping[int | None, tuple[int, ...]]

    def uses_instance(self, instance: Instance) -> bool:
        """Whether a pod holds a part of the instance, or a process is listed on it."""
        held = any(self.users.get(each.mig_uuid) for each in instance.compute_instances)
        return held or bool(self.processes.get(instance.gi_id))

    def uses_card(self, instances: Iterable[Instance]) -> bool:
        """Whether anybody is on the card or on a part of it."""
        return (
            bool(self.users.get(self.uuid)) or any(self.processes.values()) or any(map(self.uses_instance, instances))
        )


class CardDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What is left to do on a card.

    Attributes:
        gone: instances that go.
        cleared: instances that stay, but whose compute instances go: they do not span them.
        completed: instances that stay and have no compute instance yet.
        created: what is to be made, in this order.
        whole: everybody on the card must leave.
        last: what is done when nothing else is left and nobody is on the card.
        kept: instances that stay.
        geometry: the card's table, where instances are made.
    """

    destroy: tuple[Instance, ...] = ()
    clear: tuple[Instance, ...] = ()
    complete: tuple[Instance, ...] = ()
    create: tuple[Placement, ...] = ()
    needs_whole_card: bool = False
    final_call: SetMigMode | Reset | ReleaseCard | None = None
    keep: tuple[Instance, ...] = ()
    geometry: Geometry | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the card is as it shall be."""
        return not (self.destroy or self.clear or self.complete or self.create or self.final_call)

    def places(self) -> frozenset[InstancePlace]:
        """Every place at which something is left to do."""
        changed = (*self.destroy, *self.clear, *self.complete)
        return frozenset([*map(place_of, changed), *(InstancePlace(each.profile, each.start) for each in self.create)])

    def to_vacate(self) -> tuple[Instance, ...]:
        """The instances whose compute instances go."""
        return (*self.destroy, *self.clear)

    def devices_to_fence(self, uuid: str, instances: Iterable[Instance]) -> frozenset[str]:
        """The UUIDs that nobody may be given any more: of what goes, or of the whole card."""
        touched = tuple(instances) if self.needs_whole_card else self.to_vacate()
        card = {uuid} if self.needs_whole_card else set()
        return frozenset(card | {each.mig_uuid for one in touched for each in one.compute_instances})

    def creatable(self, instances: Iterable[Instance]) -> Iterator[Placement]:
        """What is to be made and meets nothing that is still on the card."""
        if self.geometry is None:
            return
        taken = occupancy_of(self.geometry, map(_placement, instances))
        yield from (each for each in self.create if not occupied_by(self.geometry, each) & taken)


class DiffImpossible(msgspec.Struct, frozen=True):
    """Why no work can be planned: ``reason`` for machines, ``text`` for people."""

    reason: str
    text: str


def diff_card(
    goal: CardGoal, seen: CardRead, uses: CardUsage, ours: frozenset[InstancePlace], *, needs_reset: bool
) -> CardDiff | DiffImpossible:
    """What is left to do on a static card.

    Args:
        goal: what shall be.
        seen: what is.
        uses: who is on it; whom the target lets stay decides what is kept.
        ours: places that a layout made or kept.
        needs_reset: a call said that the card must be reset first.
    """
    if goal.role is CardOwner.ON_DEMAND:
        gone = tuple(each for each in seen.instances if place_of(each) in ours)
        return CardDiff(
            destroy=gone,
            needs_whole_card=True,
            final_call=ReleaseCard(),
            keep=tuple(i for i in seen.instances if i not in gone),
        )
    pending = seen.mig_pending == goal.mig_enabled
    if needs_reset and pending:
        return CardDiff(needs_whole_card=True, final_call=Reset())
    if needs_reset or seen.mig_enabled != goal.mig_enabled:
        return CardDiff(
            destroy=seen.instances,
            needs_whole_card=True,
            final_call=Reset() if pending else SetMigMode(goal.mig_enabled),
        )
    if not pending and not seen.instances and not uses.uses_card(()):
        return CardDiff(needs_whole_card=True, final_call=SetMigMode(goal.mig_enabled))
    if not goal.mig_enabled:
        return CardDiff()
    if seen.geometry is None:
        return DiffImpossible("NvmlFailed", "the card is in MIG mode and does not tell what it can be cut into")
    return _cut(goal, seen.geometry, seen.instances, uses)


def place_of(instance: Instance) -> InstancePlace:
    """Where an instance is."""
    return InstancePlace(instance.profile, instance.start)


def _cut(
    goal: CardGoal, geometry: Geometry, instances: Sequence[Instance], uses: CardUsage
) -> CardDiff | DiffImpossible:
    held = [Held(_placement(each), uses.uses_instance(each)) for each in instances]
    try:
        plan = plan_transition(geometry, held, goal.counts)
    except ValueError as error:
        return DiffImpossible("NvmlFailed", f"the card tells of instances that cannot be together: {error}")
    if isinstance(plan, Infeasible):
        where = f"{goal.path}.mig-devices: " if goal.path else ""
        return DiffImpossible("LayoutImpossible", f"{where}{plan.reason}")
    kept = tuple(each for each in instances if _placement(each) in plan.keep)
    return CardDiff(
        destroy=tuple(each for each in instances if _placement(each) not in plan.keep),
        clear=tuple(each for each in kept if each.compute_instances and not _spanned(geometry, each)),
        complete=tuple(each for each in kept if not each.compute_instances),
        create=plan.create,
        keep=kept,
        geometry=geometry,
    )


def _spanned(geometry: Geometry, instance: Instance) -> bool:
    """Whether one compute instance fills it, as a container is to find it."""
    whole = geometry.profile(instance.profile).ci_profile_index
    same = _ONE_SLICE if whole in _ONE_SLICE else {whole}
    return len(instance.compute_instances) == 1 and instance.compute_instances[0].profile_index in same


def _placement(instance: Instance) -> Placement:
    return Placement(instance.profile, instance.start, instance.size)
