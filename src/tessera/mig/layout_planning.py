"""Planning a layout: from a multiset of profiles to explicit placements, before a card is touched.

Explicit placements make the order of creation irrelevant; if the driver places instances, only some orders of the same
set work. The search is exact: it keeps, item by item, every occupancy that the set can lead to. There are at most a few
hundred on any known card, so it ends in well under a millisecond, and "no" means that no arrangement exists.

Ties between arrangements go to the one that leaves the most further placements open. ``placement/`` has its own, finer
preference and uses ``list_packings`` directly.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tessera.mig.geometry import Geometry, Placement, Profile, UnknownProfileError
from tessera.mig.occupancy import free_placements, free_slots, free_starts


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


def is_feasible(geometry: Geometry, wanted: Mapping[str, int] | Iterable[str], occupancy: int = 0) -> bool:
    """True if the set has a layout."""
    return not isinstance(plan_layout(geometry, wanted, occupancy), Infeasible)


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
