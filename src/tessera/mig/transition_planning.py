"""Plans the smallest change from a card's present instances to the wanted ones.

NVIDIA's own tool wipes a card and builds it again. Here instances that the target still wants stay where they are, with
the pods that use them. Rules:

- the target is a multiset of profiles for the whole card; this module decides the positions explicitly;
- the plan keeps as many instances in use as any layout of the target allows, then as many idle ones; the search is
  exact, over every choice of instances to keep (a card has seven at most, so there are at most 128 choices);
- equal choices are settled by the layout that leaves the most further placements open, then by position: the same
  card and target give the same plan, whatever the order of their entries;
- steps that wait for pods come last: idle instances are destroyed, then all instances that already fit are created,
  then those in use are destroyed, and the rest is created;
- a plan is made from the card as it is, so after a crash at any step the next plan finishes the work.

This module knows neither the users of an instance nor how to make it idle.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import combinations

import msgspec

from tessera.mig.geometry import Geometry, Placement
from tessera.mig.layout_planning import Infeasible, list_packings, plan_layout
from tessera.mig.occupancy import free_placements, occupancy_of, placement_mask


class HeldInstance(msgspec.Struct, frozen=True, order=True):
    """An instance that is on the card now.

    Attributes:
        placement: its position.
        in_use: a pod or process uses it; it cannot be destroyed before that ends.
    """

    placement: Placement
    in_use: bool = False


class TransitionAction(Enum):
    """The kind of a step."""

    DESTROY = "destroy"
    CREATE = "create"


class TransitionStep(msgspec.Struct, frozen=True):
    """One change of the card.

    Attributes:
        action: create or destroy.
        placement: the instance.
        in_use: True if the step destroys an instance that was in use at planning: its users must leave first.
    """

    action: TransitionAction
    placement: Placement
    in_use: bool = False


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """The plan for one card; instances by position.

    Attributes:
        keep: instances that stay untouched.
        steps: the changes, in this order.
        layout: all instances of the card afterwards.
    """

    keep: tuple[Placement, ...]
    steps: tuple[TransitionStep, ...]
    layout: tuple[Placement, ...]

    @property
    def create(self) -> tuple[Placement, ...]:
        """The instances to create, in the order of the steps."""
        return tuple(step.placement for step in self.steps if step.action is TransitionAction.CREATE)

    @property
    def destroy(self) -> tuple[Placement, ...]:
        """The instances to destroy, in the order of the steps."""
        return tuple(step.placement for step in self.steps if step.action is TransitionAction.DESTROY)

    @property
    def must_leave(self) -> tuple[Placement, ...]:
        """The instances in use that no layout of the target can keep beside the others that stay."""
        return tuple(step.placement for step in self.steps if step.in_use)


def plan_transition(
    geometry: Geometry, held: Iterable[HeldInstance], wanted: Mapping[str, int] | Iterable[str]
) -> Transition | Infeasible:
    """The smallest change that leads from the instances held to the set wanted.

    Args:
        geometry: the card.
        held: everything on the card now. An instance of a profile that the table lacks, or at a start that it does not
            list, cannot be part of a target and goes.
        wanted: profile names (either spelling) with their counts, or names with repetitions; empty to clear the card.

    Returns:
        The plan, or the reason that the set has no layout on an empty card; then no instance may be touched.

    Raises:
        ValueError: two instances held claim the same slot, or one leaves the card.
    """
    now = sorted(held)
    occupancy_of(geometry, (each.placement for each in now))
    empty_card = plan_layout(geometry, wanted)
    if isinstance(empty_card, Infeasible):
        return empty_card
    target = Counter(placed.profile for placed in empty_card)
    profiles = ((each, _target_profile(geometry, each.placement, target)) for each in now)
    candidates = [(each, profile) for each, profile in profiles if profile is not None]
    keep, create = _best_choice(geometry, candidates, target)
    gone = [each for each in now if each not in keep]
    return Transition(
        keep=tuple(each.placement for each in keep),
        steps=tuple(_order_steps(geometry, gone, create)),
        layout=tuple(sorted([*(each.placement for each in keep), *create], key=lambda placed: placed.start)),
    )


def _target_profile(geometry: Geometry, placement: Placement, target: Counter[str]) -> str | None:
    """The profile under the table's own name if the target could hold this instance where it is."""
    profile = geometry.find(placement.profile)
    if profile is None or placement.start not in profile.starts or placement.size != profile.size:
        return None
    return profile.name if target[profile.name] else None


def _best_choice(
    geometry: Geometry, candidates: Sequence[tuple[HeldInstance, str]], target: Counter[str]
) -> tuple[tuple[HeldInstance, ...], tuple[Placement, ...]]:
    """The instances to keep and to create: the first rank of choices, best first, that has a layout."""
    choices = [choice for size in range(len(candidates) + 1) for choice in combinations(candidates, size)]
    ranked = sorted(choices, key=_rank)
    found: list[tuple[tuple[int, int, tuple[Placement, ...]], tuple[HeldInstance, ...], tuple[Placement, ...]]] = []
    reached = None
    for choice in ranked:
        if found and _rank(choice) != reached:
            break
        rest = target - Counter(name for _, name in choice)
        if len(choice) + rest.total() != target.total():
            continue
        keep = tuple(each for each, _ in choice)
        occupancy = occupancy_of(geometry, (each.placement for each in keep))
        wanted = [geometry.profile(name) for name, count in sorted(rest.items()) for _ in range(count)]
        for state, placed in list_packings(geometry, wanted, occupancy).items():
            create = tuple(sorted(placed, key=lambda one: one.start))
            found.append(((-len(free_placements(geometry, state)), state, create), keep, create))
        reached = _rank(choice)
    # Keeping nothing is one of the choices, and the target has a layout on an empty card.
    _, keep, create = min(found, key=lambda each: (each[0], each[1]))
    return keep, create


def _rank(choice: Sequence[tuple[HeldInstance, str]]) -> tuple[int, int]:
    """Better first: more instances in use kept, then more kept at all."""
    return (-sum(each.in_use for each, _ in choice), -len(choice))


def _order_steps(
    geometry: Geometry, gone: Sequence[HeldInstance], create: Sequence[Placement]
) -> Iterator[TransitionStep]:
    busy = [each.placement for each in gone if each.in_use]
    waits_for = occupancy_of(geometry, busy)
    yield from (TransitionStep(TransitionAction.DESTROY, each.placement) for each in gone if not each.in_use)
    later = [one for one in create if placement_mask(geometry, one) & waits_for]
    yield from (TransitionStep(TransitionAction.CREATE, one) for one in create if one not in later)
    yield from (TransitionStep(TransitionAction.DESTROY, one, in_use=True) for one in busy)
    yield from (TransitionStep(TransitionAction.CREATE, one) for one in later)
