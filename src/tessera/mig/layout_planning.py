"""Planning a layout: from a multiset of profiles to explicit placements, and the smallest change that leads to them.

Explicit placements make the order of creation irrelevant; if the driver places instances, only some orders of the same
set work. The search is exact: it keeps, item by item, every occupancy that the set can lead to. There are at most a few
hundred on any known card, so it ends in well under a millisecond, and "no" means that no arrangement exists.

Ties between arrangements go to the one that leaves the most further placements open. ``placement/`` has its own, finer
preference and uses ``list_packings`` directly.

NVIDIA's own tool wipes a card and builds it again. :func:`plan_transition` lets instances that the target still wants
stay where they are, with the pods that use them. Rules:

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

from tessera.mig.geometry import (
    Geometry,
    Placement,
    Profile,
    UnknownProfileError,
    free_placements,
    free_slots,
    free_starts,
    occupancy_of,
    placement_mask,
)


class Infeasible(msgspec.Struct, frozen=True):
    """The reason that a set of profiles has no layout.

    Attributes:
        rule: ``unknown profile``, ``media``, ``count``, ``slots`` or ``starts``.
        reason: the conflict in words.
        core: the smallest part of the set that is already impossible, as (profile, count).
    """

    rule: str
    reason: str
    core: tuple[tuple[str, int], ...] = ()


def list_packings(
    geometry: Geometry, wanted: Sequence[Profile], occupancy: int = 0
) -> dict[int, tuple[Placement, ...]]:
    """Every occupancy that results from adding the instances, each with one arrangement that leads there.

    Args:
        geometry: the card.
        wanted: profiles of that card, with repetitions, in any order.
        occupancy: the bits that are taken already.

    Returns:
        Final occupancy to placements; empty when no arrangement exists.
    """
    reached: dict[int, tuple[Placement, ...]] = {occupancy: ()}
    for profile in sorted(wanted, key=_largest_first):
        claims = [(geometry.claim(profile, start), start) for start in profile.starts]
        longer: dict[int, tuple[Placement, ...]] = {}
        for state, placed in reached.items():
            for claim, start in claims:
                if not claim & state and claim | state not in longer:
                    longer[claim | state] = (*placed, Placement(profile.name, start, profile.size))
        reached = longer
    return reached


def plan_layout(
    geometry: Geometry, wanted: Mapping[str, int] | Iterable[str], occupancy: int = 0
) -> tuple[Placement, ...] | Infeasible:
    """Explicit placements for a set of profiles on one card.

    The same set gives the same layout whatever the order of its entries.

    Args:
        geometry: the card.
        wanted: profile names with their counts, or names with repetitions.
        occupancy: bits of instances that stay where they are (``occupancy_of``).

    Returns:
        Placements sorted by start, or the reason that there are none.
    """
    counts = Counter(wanted) if not isinstance(wanted, Mapping) else Counter(dict(wanted))
    try:
        named = Counter({geometry.profile(name).name: count for name, count in counts.items() if count})
    except UnknownProfileError as unknown:
        return Infeasible("unknown profile", str(unknown), ((unknown.profile, counts[unknown.profile]),))
    if any(count < 0 for count in named.values()):
        bad = next(name for name, count in named.items() if count < 0)
        return Infeasible("count", f"{bad}: {named[bad]} instances asked for; a count is 0 or more", ())
    asked = dict(named)
    for name, count in named.items():
        named[name] = min(count, geometry.profile(name).max_count + 1)  # a larger count is no less possible
    found = list_packings(geometry, _profiles(geometry, named), occupancy)
    if not found:
        return _explain(geometry, named, occupancy, asked)
    best = max(found, key=lambda state: (len(free_placements(geometry, state)), -state))
    return tuple(sorted(found[best], key=lambda placed: placed.start))


def is_feasible(geometry: Geometry, wanted: Mapping[str, int] | Iterable[str]) -> bool:
    """True if the set has a layout."""
    return not isinstance(plan_layout(geometry, wanted), Infeasible)


def max_memory_gb_of_layout(geometry: Geometry) -> int:
    """The largest sum of profile GBs that one layout of the card reaches.

    It can exceed the whole-card profile by rounding: two 3g.71gb of an H200 are 142, its 7g.141gb is 141.
    """
    best: dict[int, int] = {0: 0}
    for slot in range(geometry.slots):
        starting = [(geometry.claim(row, slot), row.memory_gb) for row in geometry.profiles if slot in row.starts]
        for state, total in list(best.items()):
            for claim, memory_gb in starting:
                if not claim & state:
                    best[claim | state] = max(best.get(claim | state, 0), total + memory_gb)
    return max(best.values())


def _largest_first(profile: Profile) -> tuple[int, int, str]:
    return (-profile.size, len(profile.starts), profile.name)


def _profiles(geometry: Geometry, counts: Mapping[str, int]) -> list[Profile]:
    return [geometry.profile(name) for name, count in counts.items() for _ in range(count)]


def _explain(geometry: Geometry, counts: Counter[str], occupancy: int, asked: Mapping[str, int]) -> Infeasible:
    """Names the rule that a set with no layout breaks, on the smallest part that breaks it."""
    for row in sorted((geometry.profile(name) for name in counts), key=_largest_first):
        name, most = row.name, row.max_count
        if asked[name] > most and not row.media:
            text = f"{geometry.family}: {asked[name]} x {name} do not fit: a card holds at most {most} {name}"
            return Infeasible("count", text, ((name, counts[name]),))
    core = _smallest_impossible(geometry, counts, occupancy)
    pairs = tuple(sorted(core.items()))
    words = " + ".join(f"{count} x {name}" if count > 1 else name for name, count in pairs)
    profiles = {name: geometry.profile(name) for name in core}
    on = f"{geometry.family}: {words}"
    users = [name for name in core if profiles[name].media]
    if users and sum(core[name] for name in users) == core.total():
        why = "a card has one set of media engines, so at most one +me or +me.all instance"
        if core.total() == 1:
            why = "the card's one set of media engines is in use"
        if core.total() > 1 or occupancy & geometry.media_token:
            return Infeasible("media", f"{on} cannot share a card: {why}", pairs)
    free = free_slots(geometry, occupancy)
    need = sum(profiles[name].size * count for name, count in core.items())
    if need > free:
        parts = " + ".join(f"{profiles[name].size * count} for {name}" for name, count in pairs)
        taken = "" if free == geometry.slots else f" ({geometry.slots - free} of {geometry.slots} are in use)"
        text = f"{on} need {need} memory slots ({parts}), the card has {free}{taken}"
        return Infeasible("slots", text, pairs)
    starts = "; ".join(
        f"{name} may start at {', '.join(map(str, free_starts(geometry, profiles[name], occupancy))) or 'no free slot'}"
        for name, _ in pairs
    )
    return Infeasible("starts", f"{on} have no arrangement: {starts}", pairs)


def _smallest_impossible(geometry: Geometry, counts: Counter[str], occupancy: int) -> Counter[str]:
    """Takes instances away, smallest first, as long as the rest stays impossible."""
    core = Counter(counts)
    for profile in sorted((geometry.profile(name) for name in counts), key=_largest_first, reverse=True):
        while core[profile.name]:
            fewer = core - Counter([profile.name])
            if list_packings(geometry, _profiles(geometry, fewer), occupancy):
                break
            core = fewer
    return +core


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
