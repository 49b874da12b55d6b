"""What stands between a card and what its layout wants of it: one look, no memory.

Rules:

- the card is compared as a multiset of profiles, so the same instances at other starts are no difference;
- instances in use stay where the target allows it, then as many idle ones as possible (:mod:`tessera.mig.transition`);
- an instance that nobody asked for goes, whoever made it; so does a compute instance that does not span its GPU
  instance, and a GPU instance without one is completed if the target holds it and goes otherwise;
- a change of MIG mode, a reset and the hand-over to slices on demand need the whole card: everybody must leave;
- a card that is handed over loses what a layout made or kept there; what else is on it stays for the other side to see;
- a mode that is pending against the layout is taken back while the card is empty, and before any reset: it would take
  hold with the next reset or reboot. On a card that holds something it is left; when it takes hold, it is drift.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.agent.inventory.card_ownership import Role
from tessera.agent.mig_config.events import CardSeen, Goal, LetGo, Place, Reset, SetMigMode, Tenant
from tessera.mig.geometry import Geometry, Placement
from tessera.mig.layout import Infeasible
from tessera.mig.occupancy import occupancy_of, occupied_by
from tessera.mig.transition import Held, plan_transition
from tessera.nvml.interface import Instance

#: ``NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE`` and its ``_REV1``, as instances with media engines may call it (nvml.h).
_ONE_SLICE = frozenset({0, 7})


class Uses(msgspec.Struct, frozen=True):
    """Who is on a card.

    Attributes:
        uuid: the card's.
        tenants: pods by the UUID of card or MIG device that they hold.
        pids: processes by GPU instance, under ``None`` those on the whole card.
    """

    uuid: str
    tenants: Mapping[str, tuple[Tenant, ...]]
    pids: Mapping[int | None, tuple[int, ...]]

    def of(self, instance: Instance) -> bool:
        """Whether a pod holds a part of the instance, or a process is listed on it."""
        held = any(self.tenants.get(each.mig_uuid) for each in instance.compute_instances)
        return held or bool(self.pids.get(instance.gi_id))

    def of_card(self, instances: Iterable[Instance]) -> bool:
        """Whether anybody is on the card or on a part of it."""
        return bool(self.tenants.get(self.uuid)) or any(self.pids.values()) or any(map(self.of, instances))


class Work(msgspec.Struct, frozen=True, kw_only=True):
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

    gone: tuple[Instance, ...] = ()
    cleared: tuple[Instance, ...] = ()
    completed: tuple[Instance, ...] = ()
    created: tuple[Placement, ...] = ()
    whole: bool = False
    last: SetMigMode | Reset | LetGo | None = None
    kept: tuple[Instance, ...] = ()
    geometry: Geometry | None = None

    @property
    def nothing(self) -> bool:
        """Whether the card is as it shall be."""
        return not (self.gone or self.cleared or self.completed or self.created or self.last)

    def places(self) -> frozenset[Place]:
        """Every place at which something is left to do."""
        changed = (*self.gone, *self.cleared, *self.completed)
        return frozenset([*map(place_of, changed), *(Place(each.profile, each.start) for each in self.created)])

    def must_go(self) -> tuple[Instance, ...]:
        """The instances whose compute instances go."""
        return (*self.gone, *self.cleared)

    def fence(self, uuid: str, instances: Iterable[Instance]) -> frozenset[str]:
        """The UUIDs that nobody may be given any more: of what goes, or of the whole card."""
        touched = tuple(instances) if self.whole else self.must_go()
        card = {uuid} if self.whole else set()
        return frozenset(card | {each.mig_uuid for one in touched for each in one.compute_instances})

    def fitting(self, instances: Iterable[Instance]) -> Iterator[Placement]:
        """What is to be made and meets nothing that is still on the card."""
        if self.geometry is None:
            return
        taken = occupancy_of(self.geometry, map(_placement, instances))
        yield from (each for each in self.created if not occupied_by(self.geometry, each) & taken)


class Unfit(msgspec.Struct, frozen=True):
    """Why no work can be planned: ``reason`` for machines, ``text`` for people."""

    reason: str
    text: str


def work_of(goal: Goal, seen: CardSeen, uses: Uses, ours: frozenset[Place], *, needs_reset: bool) -> Work | Unfit:
    """What is left to do on a static card.

    Args:
        goal: what shall be.
        seen: what is.
        uses: who is on it; whom the target lets stay decides what is kept.
        ours: places that a layout made or kept.
        needs_reset: a call said that the card must be reset first.
    """
    if goal.role is Role.ON_DEMAND:
        gone = tuple(each for each in seen.instances if place_of(each) in ours)
        return Work(gone=gone, whole=True, last=LetGo(), kept=tuple(i for i in seen.instances if i not in gone))
    pending = seen.mig_pending == goal.mig_enabled
    if needs_reset and pending:
        return Work(whole=True, last=Reset())
    if needs_reset or seen.mig_enabled != goal.mig_enabled:
        return Work(gone=seen.instances, whole=True, last=Reset() if pending else SetMigMode(goal.mig_enabled))
    if not pending and not seen.instances and not uses.of_card(()):
        return Work(whole=True, last=SetMigMode(goal.mig_enabled))
    if not goal.mig_enabled:
        return Work()
    if seen.geometry is None:
        return Unfit("NvmlFailed", "the card is in MIG mode and does not tell what it can be cut into")
    return _cut(goal, seen.geometry, seen.instances, uses)


def place_of(instance: Instance) -> Place:
    """Where an instance is."""
    return Place(instance.profile, instance.start)


def _cut(goal: Goal, geometry: Geometry, instances: Sequence[Instance], uses: Uses) -> Work | Unfit:
    held = [Held(_placement(each), uses.of(each)) for each in instances]
    try:
        plan = plan_transition(geometry, held, goal.counts)
    except ValueError as error:
        return Unfit("NvmlFailed", f"the card tells of instances that cannot be together: {error}")
    if isinstance(plan, Infeasible):
        where = f"{goal.path}.mig-devices: " if goal.path else ""
        return Unfit("LayoutImpossible", f"{where}{plan.reason}")
    kept = tuple(each for each in instances if _placement(each) in plan.keep)
    return Work(
        gone=tuple(each for each in instances if _placement(each) not in plan.keep),
        cleared=tuple(each for each in kept if each.compute_instances and not _spanned(geometry, each)),
        completed=tuple(each for each in kept if not each.compute_instances),
        created=plan.create,
        kept=kept,
        geometry=geometry,
    )


def _spanned(geometry: Geometry, instance: Instance) -> bool:
    """Whether one compute instance fills it, as a container is to find it."""
    whole = geometry.profile(instance.profile).ci_profile_index
    same = _ONE_SLICE if whole in _ONE_SLICE else {whole}
    return len(instance.compute_instances) == 1 and instance.compute_instances[0].profile_index in same


def _placement(instance: Instance) -> Placement:
    return Placement(instance.profile, instance.start, instance.size)
