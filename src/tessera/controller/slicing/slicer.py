"""Decides which pod gets which slice: takes in events, returns instructions; no I/O and no clock.

One decision has six steps, each of which hands a value to the next. :meth:`Slicer.decide` makes the first five when
events have arrived; nothing is written before that. While no pod waits, nothing is ordered and planned; the other
proposers are asked all the same.

======================  ===============================================================================================
step                    what it does
======================  ===============================================================================================
1 ``cycle/take_in``     takes in events (``observe``) and brings allocations and pods in line with changed
                        nodes and pods, all or some of many → the nodes that have changed
2 ``cycle/order``       → the candidates: waiting pods that these changes concern
3 ``cycle/order``       → the first of them, and those that their queue's maximum holds back
4 ``cycle/plan``        → proposals: places and refusals. Then the other proposers of the list: reservations,
                        preemption, moves, and what else the options switch on
5 ``cycle/settle``      carries out each proposal before the next is made
6 ``cycle/writes``      → the writes that are due, at :meth:`Slicer.pop_writes`
======================  ===============================================================================================

``state/slicer_state`` documents the state, ``state/waiting_pod`` a pod's states, ``state/allocation`` how slices live.
Others read the state between two decisions, and only while :attr:`Slicer.is_caught_up` is True.
"""

from collections.abc import Callable, Sequence

from tessera.controller.base import NO_MOVES, MoveMode, MoveSettings
from tessera.controller.slicing.cycle.observe import Observer
from tessera.controller.slicing.cycle.order import FairOrder, find_candidates
from tessera.controller.slicing.cycle.plan import Plan
from tessera.controller.slicing.cycle.settle import Allocations, Settlement
from tessera.controller.slicing.cycle.take_in import Intake
from tessera.controller.slicing.cycle.writes import PendingWrites
from tessera.controller.slicing.gangs import GangPlanner
from tessera.controller.slicing.kinds import Devices, Kinds, RequestKind, Slices, UnservedClaims
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.proposals import Proposer
from tessera.controller.slicing.proposers.late_pods import Overstays, UnboundPods
from tessera.controller.slicing.proposers.move_finder import MoveFinder
from tessera.controller.slicing.proposers.mover import Mover, RecordedMoves
from tessera.controller.slicing.proposers.preemptor import Preemptor
from tessera.controller.slicing.proposers.reserver import Reserver
from tessera.controller.slicing.state.events import DecisionDue, SlicerEvent, WritesDue
from tessera.controller.slicing.state.instructions import Instruction
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits import DECISION_STEPS
from tessera.placement.demand import StepBudget
from tessera.placement.reserved_slots import RESERVATION_SEARCHES
from tessera.replay.recorder import Decider

#: The kinds of requests, in the order in which the cycle asks them.
KINDS: tuple[Callable[[SlicerState], RequestKind], ...] = (Slices, Devices, UnservedClaims)


class Slicer(Decider[[SlicerEvent], Sequence[Instruction]]):
    """The state machine of the whole cluster's slices.

    Args:
        reserve_after: seconds that a pod waits for room before slots are reserved for it; None reserves none.
        preempts: True to evict pods of lower priority for waiting pods.
        moves: what is done to make room by moves.
        preference_price: what preferences may cost, see :class:`~tessera.placement.demand.Preferences`.
        kinds: make the kinds of requests that are served.
        proposers: make the proposers of satellites.
        reads: True for a reader of the cluster: it keeps the reservations that the controller recorded.

    Attributes:
        state: the slicer's state; others only read it.
        planner: finds possible places without deciding.
        rooms: finds moves that make room, without deciding.
        mover: recommends or makes such moves.
        order: the order of waiting pods.
        kinds: the kinds of requests.
        proposers: the features of the cycle that are on, in the order in which they propose.
        intake: knows which pods and objects were observed.
        settlement: counts what was decided.
        steps: steps of planning taken so far; never decreases.
    """

    def __init__(
        self,
        reserve_after: float | None = None,
        *,
        reads: bool = False,
        preempts: bool = False,
        moves: MoveSettings = NO_MOVES,
        preference_price: float = 0.0,
        kinds: Sequence[Callable[[SlicerState], RequestKind]] = KINDS,
        proposers: Sequence[Callable[[SlicerState], Sequence[Proposer]]] = (),
    ) -> None:
        self.steps = 0
        self.state = state = SlicerState(preference_price)
        self.planner = planner = Planner(state)
        self.order = FairOrder(state, planner)
        gangs = GangPlanner(state, planner)
        keeps = preempts or moves.mode is MoveMode.EVICT
        added = [each for make in proposers for each in make(state)]
        inherits = reads or any(each.keeps_slots for each in added)
        reserver = Reserver(state, planner, gangs, reserve_after, reads=reads, keeps=keeps, inherits=inherits)
        self._reserver = reserver
        self.rooms = MoveFinder(state, planner, reserver)
        self.mover = Mover(state, reserver, self.rooms, moves)
        self.kinds = Kinds(kinds, state)
        self._plan = Plan(state, planner, gangs, reserver if reserve_after is not None else None, self.kinds)
        #: False until the first decision that has taken in all.
        self._has_decided = False
        #: True if a proposer may have had something to propose in the last decision, and may have left something over.
        self._asks_again = False
        self.proposers: Sequence[Proposer] = [
            self._plan,
            *(each for each in added if each.keeps_slots),
            reserver,
            Preemptor(state, reserver, all_pods=preempts),
            RecordedMoves(state, moves, added),
            *([self.mover] if moves.mode is not MoveMode.OFF else ()),
            *(each for each in added if not each.keeps_slots),
            Overstays(state),
            UnboundPods(state),
        ]
        allocations = Allocations(state, self.kinds)
        self.settlement = Settlement(state, allocations, planner)
        observer = Observer(state, self.settlement, self.proposers, self.kinds)
        self.intake = Intake(state, observer, allocations, self.proposers, self.kinds)
        self._writes = PendingWrites(state, allocations, gangs, self.kinds)

    def handle(self, event: SlicerEvent) -> Sequence[Instruction]:
        """Takes in an event; returns what to write now for :class:`WritesDue`, and nothing for all others."""
        match event:
            case WritesDue():
                return self._writes.pop() if self.intake.is_done else ()
            case DecisionDue():
                self._decide()
            case _:
                self.intake.put(event)
        return ()

    def decide(self) -> None:
        """Takes in the observations, then plans waiting pods, as much of both as one step may cost.

        While :attr:`has_work` is True, there is more to do; the process does other work in between.
        """
        self.handle(DecisionDue())

    def pop_writes(self) -> Sequence[Instruction]:
        """Returns the instructions to carry out now. Each write is in flight until the slicer handles its outcome."""
        return self.handle(WritesDue())

    def _decide(self) -> None:
        # 1. Take in
        nodes = self.intake.take_in()
        if nodes is None:
            return
        self._reserver.searches = int(RESERVATION_SEARCHES)
        if self.state.may_take_back or not self._has_decided or any(each.has_news for each in self.proposers):
            for proposer in self.proposers:
                self.settlement.settle(proposer.review(nodes))
        if not self._has_decided:
            self.settlement.settle(self._plan.resume())
            self._has_decided = True
        # While nobody waits, only the kept answers of nodes must follow the changes.
        if self.state.waiting or self.order.refusals.kinds or self.order.refusals.is_behind:
            work = StepBudget(DECISION_STEPS)
            candidates = find_candidates(self.state, self.order, nodes)  # 2. Candidates
            for heads in self.order.heads(candidates, work):  # 3. Order
                proposals = self._plan.plan(heads, work)  # 4. Plan
                self.settlement.settle(proposals)  # 5. Settle
            self.steps += DECISION_STEPS - work.remaining
        asked, self._asks_again = self._asks_again, self._must_ask()
        if asked or self._asks_again:
            for proposer in self.proposers:
                self.settlement.settle(proposer.propose())

    def _must_ask(self) -> bool:
        """True if a proposer may have something to propose."""
        state = self.state
        if state.reservations_due or state.reservations or state.moves or state.pods.blocked:
            return True
        return any(each.next_due is not None and each.next_due <= state.now for each in self.proposers)

    @property
    def next_due(self) -> float | None:
        """The time, seconds since 1970, at which time alone makes a step due; None if never."""
        due = (self._writes.next_due, *(each.next_due for each in self.proposers))
        return min((each for each in due if each is not None), default=None)

    @property
    def has_work(self) -> bool:
        """True if a decision is due."""
        held = not self.intake.is_done or self.intake.holds_events
        return held or self._writes.is_behind or self.order.refusals.is_behind or self.state.is_due

    @property
    def is_caught_up(self) -> bool:
        """True if the state lacks no more nodes and pods than the next step takes in; False before the first."""
        return self.intake.has_begun and self.intake.is_done and self.intake.are_few

    @property
    def has_news(self) -> bool:
        """True if a node has changed, or may have, since the state was made."""
        return bool(self.state.cluster.changed_nodes) or self.intake.holds_events
