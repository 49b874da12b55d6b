"""Gives slots that pods of a gang have left to the gang that is made anew, such as a group of a LeaderWorkerSet.

The pods of a gang get their slots together. So slots stay kept until the new gang is complete, no longer than others,
and go to it only if each of its missing pods gets some. The reservations are then those of a gang: they end together,
as when one of its pods goes. A tenant may have many gangs that fit nowhere, so slots are tried once for each kind of
pod, and for :data:`GANG_KINDS` kinds of a namespace.
"""

from collections import defaultdict
from collections.abc import Callable, Container, Hashable, Iterator, Sequence

from tessera.api.instaslice import Slice
from tessera.api.pods.gangs import Gang
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.gangs import GangPlanner
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.planning.proposals import EndOfReservation, NewReservation, Proposal
from tessera.controller.slicing.reservations.place_search import residual_seconds
from tessera.controller.slicing.reservations.reserver import GANG_RESERVED_PODS
from tessera.controller.slicing.state.reservation import Reservation
from tessera.controller.slicing.state.reservation_rules import holders_of
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.owner_pods import place_within, reserve_inherited

#: By pod, the slots that are kept for pods of its topmost owner.
KeptFor = Callable[[PodInfo], Sequence[Reservation]]
#: Most kinds of gangs' pods of one namespace that are tried in kept slots. A group has two: the leader and the workers.
GANG_KINDS = 16


class GangHeirs:
    """Proposes the reservations of gangs.

    Args:
        state: the slicer's state.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        self._gangs = GangPlanner(state, Planner(state))

    def give(self, waiting: Sequence[PodInfo], kept_for: KeptFor) -> Iterator[Proposal]:
        """Gives kept slots to the complete gangs of waiting pods."""
        trials = _Trials(self._state, kept_for)
        gangs: dict[str, Gang] = {}
        for pod in waiting:
            gang = self._state.gangs.gang_of(pod.uid)
            if gang is not None:
                gangs.setdefault(gang.key, gang)
        for gang in gangs.values():
            found = self._gangs.look(gang)
            missing = found.ready[: found.missing] if found.is_complete else ()
            own = [each for pod in missing if (each := self._state.reservations.get(pod.uid)) is not None]
            if missing and len(missing) <= GANG_RESERVED_PODS and not any(each.is_inherited for each in own):
                yield from self._give(gang, missing, own, trials)

    def _give(
        self, gang: Gang, pods: Sequence[PodInfo], own: Sequence[Reservation], trials: "_Trials"
    ) -> Iterator[Proposal]:
        taken: dict[str, Reservation] = {}
        made: list[tuple[PodInfo, Reservation]] = []
        for pod in pods:
            place = trials.find(pod, taken)
            new = reserve_inherited(self._state, pod, place[0].node, place[1]) if place is not None else None
            if place is None or new is None:
                return
            taken[place[0].uid] = place[0]
            made.append((pod, new))
        yield from (EndOfReservation(one) for one in (*taken.values(), *own[:1]))  # with one of a gang's, all end
        seconds = 0.0
        for _, new in made:
            holders = holders_of(self._state, new)
            new.gang, new.holders = gang.key, {each.uid for each in holders}
            seconds = max([seconds, *(residual_seconds(self._state, each) for each in holders)])
        for pod, new in made:
            new.until = self._state.now + seconds
            yield NewReservation(pod, new, seconds)


class _Trials:
    """Finds kept slots for pods of gangs, of which only some get any in the end.

    Args:
        state: the slicer's state.
        kept_for: the slots.
    """

    def __init__(self, state: SlicerState, kept_for: KeptFor) -> None:
        self._state = state
        self._kept_for = kept_for
        #: By namespace and kind of pod, the kept slots that are too small or on a node that is closed to it.
        self._misses: dict[str, dict[Hashable, set[str]]] = defaultdict(dict)

    def find(self, pod: PodInfo, taken: Container[str]) -> tuple[Reservation, tuple[Slice, ...]] | None:
        """Returns the first slots that a pod fits in, but those that are taken."""
        kinds, kind = self._misses[pod.namespace], (pod.profiles, pod.spread, pod.constraints)
        if kind not in kinds and len(kinds) >= GANG_KINDS:
            return None
        misses = kinds.setdefault(kind, set())
        for one in self._kept_for(pod):
            if one.uid not in misses and one.uid not in taken:
                slices = place_within(self._state, one, pod)
                if slices is not None:
                    return one, slices
                misses.add(one.uid)
        return None
