"""Compares a card with its goal and returns everything that is left to do. Pure, one comparison, no memory.

Rules:

- Instances are compared as a multiset of profiles: the same instances at other starts are no difference.
- Instances in use stay where the goal allows it, then as many idle ones as possible
  (:mod:`tessera.mig.layout_planning`).
- An instance that is not in the goal is destroyed, no matter which program made it. So is a compute instance that does
  not span its GPU instance. A GPU instance without a compute instance is completed if the goal keeps it, and destroyed
  otherwise.
- A change of MIG mode, a reset and the transfer to slices on demand need the whole card, without any user.
- A card that goes to slices on demand loses the instances that a layout made or kept. Other instances stay; slices on
  demand treat them as foreign.
- A pending mode that contradicts the goal would take effect at the next reset or reboot. It is taken back while the
  card is empty, and before any reset. On a card with instances it stays; once it takes effect, that is a new
  difference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tessera.agent.inventory.gpu_inventory import CardOwner
from tessera.agent.mig_config.events import (
    CardGoal,
    CardRead,
    InstancePlace,
    ReleaseCard,
    Reset,
    SetMigMode,
    UserPod,
)
from tessera.mig.geometry import Geometry, Placement, occupancy_of, placement_mask
from tessera.mig.layout_planning import HeldInstance, Infeasible, plan_transition
from tessera.nvml.interface import GpuInstance

#: ``NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE`` and its ``_REV1``, which instances with media engines may have (nvml.h).
_ONE_SLICE = frozenset({0, 7})


class CardUsage(msgspec.Struct, frozen=True):
    """The users of a card.

    Attributes:
        uuid: UUID of the card.
        users: pods, by the UUID of the card or MIG device that they hold.
        processes: PIDs by GPU instance; under ``None`` those on the whole card.
    """

    uuid: str
    users: Mapping[str, tuple[UserPod, ...]]
    processes: Mapping[int | None, tuple[int, ...]]

    def uses_instance(self, instance: GpuInstance) -> bool:
        """True if a pod holds a part of the instance, or NVML lists a process on it."""
        held = any(self.users.get(each.mig_uuid) for each in instance.compute_instances)
        return held or bool(self.processes.get(instance.gi_id))

    def uses_card(self, instances: Iterable[GpuInstance]) -> bool:
        """True if any pod or process uses the card or a part of it."""
        return (
            bool(self.users.get(self.uuid)) or any(self.processes.values()) or any(map(self.uses_instance, instances))
        )


class CardDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is left to do on a card.

    Attributes:
        destroy: instances to destroy.
        clear: instances to keep, whose compute instances are destroyed since they do not span them.
        complete: instances to keep that have no compute instance yet.
        create: instances to create, in this order.
        needs_whole_card: true if no pod and no process may stay on the card.
        final_call: the call that comes last, once the card has no user.
        keep: instances to keep.
        geometry: the card's table of profiles, if instances are created.
    """

    destroy: tuple[GpuInstance, ...] = ()
    clear: tuple[GpuInstance, ...] = ()
    complete: tuple[GpuInstance, ...] = ()
    create: tuple[Placement, ...] = ()
    needs_whole_card: bool = False
    final_call: SetMigMode | Reset | ReleaseCard | None = None
    keep: tuple[GpuInstance, ...] = ()
    geometry: Geometry | None = None

    @property
    def is_empty(self) -> bool:
        """True if the card has reached its goal."""
        return not (self.destroy or self.clear or self.complete or self.create or self.final_call)

    def places(self) -> frozenset[InstancePlace]:
        """Every place at which something is left to do."""
        changed = (*self.destroy, *self.clear, *self.complete)
        return frozenset([*map(place_of, changed), *(InstancePlace(each.profile, each.start) for each in self.create)])

    def to_vacate(self) -> tuple[GpuInstance, ...]:
        """The instances whose compute instances are destroyed."""
        return (*self.destroy, *self.clear)

    def devices_to_fence(self, uuid: str, instances: Iterable[GpuInstance]) -> frozenset[str]:
        """The devices that no pod may get: those to be destroyed, or all of the card."""
        touched = tuple(instances) if self.needs_whole_card else self.to_vacate()
        card = {uuid} if self.needs_whole_card else set()
        return frozenset(card | {each.mig_uuid for one in touched for each in one.compute_instances})

    def creatable(self, instances: Iterable[GpuInstance]) -> Iterator[Placement]:
        """The instances to create whose memory slots are free now."""
        if self.geometry is None:
            return
        taken = occupancy_of(self.geometry, map(_placement, instances))
        yield from (each for each in self.create if not placement_mask(self.geometry, each) & taken)


class DiffImpossible(msgspec.Struct, frozen=True):
    """A goal that cannot be reached: ``reason`` for machines, ``text`` for people."""

    reason: str
    text: str


def diff_card(
    goal: CardGoal, card: CardRead, usage: CardUsage, managed: frozenset[InstancePlace], *, needs_reset: bool
) -> CardDiff | DiffImpossible:
    """Compares a static card with its goal.

    Args:
        goal: the desired state of the card.
        card: its present state.
        usage: its users; used instances are kept first.
        managed: places of instances that a layout made or kept.
        needs_reset: true if a failed call showed that the card must be reset first.
    """
    if goal.owner is not CardOwner.STATIC:
        return CardDiff(
            destroy=tuple(each for each in card.instances if place_of(each) in managed),
            needs_whole_card=True,
            final_call=ReleaseCard(),
            keep=tuple(each for each in card.instances if place_of(each) not in managed),
        )
    pending = card.mig_pending == goal.mig_enabled
    if needs_reset and pending:
        return CardDiff(needs_whole_card=True, final_call=Reset())
    if needs_reset or card.mig_enabled != goal.mig_enabled:
        return CardDiff(
            destroy=card.instances,
            needs_whole_card=True,
            final_call=Reset() if pending else SetMigMode(goal.mig_enabled),
        )
    if not pending and not card.instances and not usage.uses_card(()):
        return CardDiff(needs_whole_card=True, final_call=SetMigMode(goal.mig_enabled))
    if not goal.mig_enabled:
        return CardDiff()
    if card.geometry is None:
        return DiffImpossible("NvmlFailed", "the card is in MIG mode and does not list its profiles")
    return _diff_instances(goal, card.geometry, card.instances, usage)


def place_of(instance: GpuInstance) -> InstancePlace:
    """The place of an instance."""
    return InstancePlace(instance.profile, instance.start)


def _diff_instances(
    goal: CardGoal, geometry: Geometry, instances: Sequence[GpuInstance], usage: CardUsage
) -> CardDiff | DiffImpossible:
    held = [HeldInstance(_placement(each), usage.uses_instance(each)) for each in instances]
    try:
        plan = plan_transition(geometry, held, goal.counts)
    except ValueError as error:
        return DiffImpossible("NvmlFailed", f"the card lists instances that cannot exist together: {error}")
    if isinstance(plan, Infeasible):
        where = f"{goal.path}.mig-devices: " if goal.path else ""
        return DiffImpossible("LayoutImpossible", f"{where}{plan.reason}")
    keep = tuple(each for each in instances if _placement(each) in plan.keep)
    return CardDiff(
        destroy=tuple(each for each in instances if _placement(each) not in plan.keep),
        clear=tuple(each for each in keep if each.compute_instances and not _is_spanned(geometry, each)),
        complete=tuple(each for each in keep if not each.compute_instances),
        create=plan.create,
        keep=keep,
        geometry=geometry,
    )


def _is_spanned(geometry: Geometry, instance: GpuInstance) -> bool:
    """True if exactly one compute instance spans the whole GPU instance, as containers need it."""
    whole = geometry.profile(instance.profile).ci_profile_index
    same = _ONE_SLICE if whole in _ONE_SLICE else {whole}
    return len(instance.compute_instances) == 1 and instance.compute_instances[0].profile_index in same


def _placement(instance: GpuInstance) -> Placement:
    return Placement(instance.profile, instance.start, instance.size)
