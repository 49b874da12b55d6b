"""One pod that Tessera decides about, from the moment it waits until it has started or is gone.

A pod has one state. :data:`NEXT` is the table of the steps between states; every step goes through
:meth:`tessera.controller.slicing.state.waiting_pods.WaitingPods.move`.

=============  ======================================================================================================
state          the pod
=============  ======================================================================================================
``OUTSIDE``    needs no decision: it runs, has ended, asks for nothing, or gates of others hold it.
``QUEUED``     waits, and is planned in the next round.
``RELIEVED``   waited for its queue's maximum; its queue holds less now, so it is planned again.
``LIMITED``    waits for its queue's maximum.
``BLOCKED``    waits for room: the cards could hold it if other pods ended.
``REFUSED``    waits for something else: cards, the rules of nodes, the other pods of its gang.
``FIXED``      only nodes with a fixed layout serve it: its gate goes, and kube-scheduler places it.
``PLACED``     has slices.
``STUCK``      has slices and cannot start with them: the scheduler refuses it there or has not bound it in time, or the
               node's agent is down.
``DENIED``     the API server refuses its pin; the pod is tried again once it changes.
``WITHDRAWN``  is past the gate, lost its slices, and nothing has bound it since.
``LOST``       is such a pod, and the scheduler refuses it: its owner is to make it anew.
=============  ======================================================================================================
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum

from tessera.api.names import PodUid
from tessera.controller.objects.pod_info import PodInfo
from tessera.reasons.reason import QueueFull, Reason

#: A queue, and the tables of card models on which its pods compete.
QueueKey = tuple[str, tuple[int, ...]]


def waits_for_room(reason: Reason | None) -> bool:
    """True if the end of other pods could make room: on the cards, or of CPU and memory on a node."""
    return reason is not None and reason.waits_for_room


def competes_for_room(reason: Reason | None) -> bool:
    """True if a pod with this reason takes room that becomes free; None is that of a pod that is not planned yet."""
    return reason is None or reason.competes


#: Of :attr:`WaitingPod.refused_at`: planning has not refused the pod, or is to forget that it has.
NOT_REFUSED = -1


class PodState(Enum):
    """The state of a pod; see the table above."""

    OUTSIDE = "outside"
    QUEUED = "queued"
    RELIEVED = "relieved"
    LIMITED = "limited"
    BLOCKED = "blocked"
    REFUSED = "refused"
    FIXED = "fixed"
    PLACED = "placed"
    STUCK = "stuck"
    DENIED = "denied"
    WITHDRAWN = "withdrawn"
    LOST = "lost"

    #: Members are single, and each step looks some up: Enum's own hash is a call of Python.
    __hash__ = object.__hash__


#: The pod has no slices and is to get some.
WAITING = frozenset({PodState.QUEUED, PodState.RELIEVED, PodState.LIMITED, PodState.BLOCKED, PodState.REFUSED})
#: The pod has slices: a current allocation.
PROMISED = frozenset({PodState.PLACED, PodState.STUCK})
#: The pod is past the gate, and cannot start as it is.
CANNOT_START = frozenset({PodState.STUCK, PodState.LOST})
_ENDS = frozenset({PodState.OUTSIDE, PodState.DENIED, PodState.WITHDRAWN, PodState.LOST})
_DECIDED = PROMISED | {PodState.LIMITED, PodState.BLOCKED, PodState.REFUSED, PodState.FIXED}

#: By state, the states that may follow. A pod may come to have slices at any time: another process has recorded them.
NEXT: Mapping[PodState, frozenset[PodState]] = {
    PodState.OUTSIDE: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.QUEUED: _DECIDED | _ENDS,
    PodState.RELIEVED: _DECIDED | _ENDS,
    PodState.LIMITED: _DECIDED | _ENDS | {PodState.QUEUED, PodState.RELIEVED},
    PodState.BLOCKED: _DECIDED | _ENDS,
    PodState.REFUSED: _DECIDED | _ENDS | {PodState.QUEUED},
    PodState.FIXED: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.PLACED: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.STUCK: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.DENIED: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.WITHDRAWN: PROMISED | _ENDS | {PodState.QUEUED},
    PodState.LOST: PROMISED | _ENDS | {PodState.QUEUED},
}


@dataclass(slots=True, eq=False)
class WaitingPod:
    """What the slicer knows of a pod besides its object.

    Attributes:
        uid: the pod.
        state: its state.
        previous: the state before.
        reason: why planning refused it last; None before, and in a state that does not wait.
        queue: the queue whose maximum it waits for or waited for (``LIMITED``, ``RELIEVED``), or in which it waits for
            room (``BLOCKED``); None in other states.
        dependent: other pods or volumes keep it off a node; only while it waits.
        refused_by_all: all nodes refused it when they were asked last, whatever ends on their cards; only while it
            waits.
        refused_at: number of changes of the cluster's room when planning refused it; :data:`NOT_REFUSED` if it did not.
        kind: the pods of this kind are refused together, and their count is the kind's; None for a pod by itself.
        displaced: its slices were taken back while it lived, and it has got no others.
        denied: the pod as it was when the API server refused its pin; None otherwise.
        told: text of the pod's condition: it lost its slices, or will not start on its node. Empty otherwise.
        last_event: kind of the last event about it, so that no event is repeated; empty before the first.
    """

    uid: PodUid
    state: PodState = PodState.OUTSIDE
    previous: PodState = PodState.OUTSIDE
    reason: Reason | None = None
    queue: QueueKey | None = None
    dependent: bool = False
    refused_by_all: bool = False
    refused_at: int = NOT_REFUSED
    kind: Hashable | None = None
    displaced: bool = False
    denied: PodInfo | None = None
    told: str = ""
    last_event: str = ""

    @property
    def waits(self) -> bool:
        """True if the pod is to get slices."""
        return self.state in WAITING


def state_of_refusal(pod: PodInfo, reason: Reason) -> PodState:
    """Returns the state of a waiting pod that planning refuses for a reason."""
    if isinstance(reason, QueueFull) and not reason.never:
        return PodState.LIMITED
    return PodState.BLOCKED if pod.is_held and waits_for_room(reason) else PodState.REFUSED
