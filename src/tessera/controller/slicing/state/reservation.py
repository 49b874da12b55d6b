"""Slots that are kept for a pod that waits or may come, and the seconds that rules about them have in common."""

from dataclasses import dataclass, field

from tessera.api.instaslice import Slice
from tessera.api.names import NodeName, PodUid
from tessera.controller.objects.pod_info import Owner
from tessera.controller.slicing.state.waiting_pod import QueueKey
from tessera.placement.cards import SPARE_OF, Hold

#: Most reservations: waiting pods for which slots are kept at the same time; a gang counts as one. Each is applied to
#: every decision; the pods behind them get theirs as these start.
RESERVATIONS = 16
#: Most pods of one queue, the first in its order, that may get its reservation. Pods without any possible place may
#: stand first; pods behind these wait without a reservation.
RESERVATION_CANDIDATES = 16

#: Seconds after which a place is none: longer than that no slot is kept idle.
HORIZON = 86_400.0
#: Least seconds after which a reservation whose holders have not ended may move to another place.
PATIENCE = 600.0
#: Seconds until a pod without a possible place is searched for again.
RETRY = 30.0
#: Priority of reservations of inherited slots: higher than any pod's. Whoever has held them loses nothing to others.
INHERITED = 2**31


@dataclass(slots=True, eq=False)
class Reservation:
    """Slots that are kept for a waiting pod, for the next pod of an owner, or for those of a queue's services.

    Attributes:
        uid: the pod; one that has left its slots to its owner's next pod. Of spare slots a name of their own.
        key: its ``namespace/name``; ``Queue/NAME`` of spare slots.
        queue: the queue that it counts for.
        priority: the pod's priority.
        number: reservations of one priority go in the order of their numbers; 0 for inherited slots and spare ones.
        node: the node.
        slices: the positions, in the order of the pod's profiles.
        holds: the same as bits of cards.
        made: when it was made, seconds since 1970.
        until: when the slots are expected to be free; a younger pod may use them if it ends before.
        patience: seconds after which it may move.
        holders: pods that were known to hold slots of it: those at the beginning, and backfilled ones.
        gang: the gang of the pod if its pods have reservations together; empty for a pod that starts by itself. All of
            a gang have the same number and time, and none remains if one ends.
        kept_for: the owner for whose next pod the slots are kept, or the Queue; None once that pod waits.
    """

    uid: PodUid
    key: str
    queue: QueueKey
    priority: int
    number: int
    node: NodeName
    slices: tuple[Slice, ...]
    holds: tuple[Hold, ...]
    made: float
    until: float
    patience: float = PATIENCE
    holders: set[PodUid] = field(default_factory=set)
    gang: str = ""
    kept_for: Owner | None = None

    @property
    def is_inherited(self) -> bool:
        """True if a pod of the same owner held the slots before, or a queue keeps them for services and this is one."""
        return not self.number and not self.is_spare

    @property
    def is_left(self) -> bool:
        """True if a pod has left the slots to its owner's next pod, which has not come."""
        return self.kept_for is not None and not self.is_spare

    @property
    def is_spare(self) -> bool:
        """True if a queue keeps the slots for pods of its services (:mod:`tessera.handover.spares`)."""
        return self.kept_for is not None and self.kept_for.maker.startswith(SPARE_OF)

    @property
    def slots(self) -> int:
        """The memory slots that it keeps."""
        return sum(each.size for each in self.slices)

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the reservation that goes first has the least."""
        return (-self.priority, self.number)
