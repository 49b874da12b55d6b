"""Gives slots that pods of a gang have left to the gang that is made anew, such as a group of a LeaderWorkerSet.

The pods of a gang get their slots together. So slots stay kept until the new gang is complete, no longer than others,
and go to it only if each of its missing pods gets some. The reservations are then those of a gang: they end together,
as when one of its pods goes.
"""

from collections.abc import Callable, Iterator, Sequence

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
                yield from self._give(gang, missing, own, kept_for)

    def _give(
        self, gang: Gang, pods: Sequence[PodInfo], own: Sequence[Reservation], kept_for: KeptFor
    ) -> Iterator[Proposal]:
        taken: dict[str, Reservation] = {}
        made: list[tuple[PodInfo, Reservation]] = []
        for pod in pods:
            place = self._place(pod, [one for one in kept_for(pod) if one.uid not in taken])
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

    def _place(self, pod: PodInfo, kept: Sequence[Reservation]) -> tuple[Reservation, tuple[Slice, ...]] | None:
        places = ((one, place_within(self._state, one, pod)) for one in kept)
        return next(((one, slices) for one, slices in places if slices is not None), None)
