"""The moves that would make room for pods that wait, as a plan for people. Nothing is moved.

The moves are those that the controller's search finds (:mod:`tessera.controller.slicing.proposers.move_finder`), within
the same bounds. To move a pod means to end it: its owner makes another pod, which is placed like any other. So the new
places are those where such a pod fits now. Moves that cost more than they gain are shown, and later pods do not count
on them.
"""

from collections.abc import Sequence

import msgspec

from tessera.api.instaslice import INSTASLICES, KIND_MISSING, Slice
from tessera.api.names import INSTASLICE_NAMESPACE, SIMULATED_RUNTIME, NodeName
from tessera.clock import Clock, parse_time_or_zero
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import Placed
from tessera.controller.slicing.proposers.move_finder import can_move
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.node_records import RestingPods
from tessera.explain.order_objects import read_order_objects
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.kube.client import Client
from tessera.kube.errors import NotFound, Status
from tessera.kube.resources import NODES, PODS
from tessera.placement.cards import CardPlacement, OwnedPlacement
from tessera.placement.moves import MOST_MOVES, Worth
from tessera.reasons.reason import Fragmented, Full
from tessera.text import list_names

#: Most pods: waiting pods for which one plan of moves looks for room, in their order. Each looks at every card; the
#: number of further pods is shown.
MOVES_PLANNED = 100


class SlicePlace(msgspec.Struct, frozen=True):
    """A place on a card.

    Attributes:
        node: node name.
        gpu: the card's UUID.
        where: the profile, card and slots, for people.
    """

    node: str
    gpu: str
    where: str


class PlannedMove(msgspec.Struct, frozen=True, kw_only=True):
    """One pod that would end here and be made anew there.

    Attributes:
        pod: ``namespace/name``.
        slots: memory slots that it holds.
        from_: its present place.
        to: a place where a pod like it fits.
    """

    pod: str
    slots: int
    from_: SlicePlace = msgspec.field(name="from")
    to: SlicePlace


class PlannedRoom(msgspec.Struct, frozen=True):
    """The moves for one waiting pod.

    Attributes:
        pod: ``namespace/name``.
        slots: memory slots that it gets.
        place: where.
        moves: the pods that move; none for a pod that fits into the room of the moves above it.
        gain: slot seconds that the waiting pod waits less.
        price: slot seconds of work that the moves lose, and of the time until the moved pods work again.
    """

    pod: str
    slots: int
    place: SlicePlace
    moves: tuple[PlannedMove, ...]
    gain: float = 0.0
    price: float = 0.0

    @property
    def is_worth(self) -> bool:
        """True if the controller would make these moves, or if none are needed."""
        return not self.moves or Worth(self.gain, self.price).is_positive


class MovesPlan(msgspec.Struct, frozen=True):
    """The whole plan.

    Attributes:
        rooms: waiting pods that get room, in their order.
        stuck: waiting pods for which no moves make room, with the reason.
        movable: running pods that may move.
        unowned: running pods with the annotation that stay, since nothing would make them anew.
        omitted: waiting pods beyond the bound of one plan.
        simulated: some node's cards are simulated.
    """

    rooms: tuple[PlannedRoom, ...] = ()
    stuck: tuple[tuple[str, str], ...] = ()
    movable: int = 0
    unowned: tuple[str, ...] = ()
    omitted: int = 0
    simulated: bool = False


async def read_moves(client: Client, clock: Clock) -> MovesPlan:
    """Reads the cluster and plans moves.

    Raises:
        Forbidden: the user may not list pods, nodes or Instaslice objects.
        NotFound: the cluster lacks the kind Instaslice.
    """
    pods = (await client.list(PODS)).items
    nodes = (await client.list(NODES)).items
    try:
        objects = (await client.list(INSTASLICES, INSTASLICE_NAMESPACE)).items
    except NotFound as error:
        raise NotFound(Status(code=404, reason="NotFound", message=KIND_MISSING)) from error
    order = await read_order_objects(client, pods)
    snapshot = Snapshot(now=clock.now(), pods=pods, nodes=nodes, instaslices=objects, order=order)
    return plan_moves(ClusterView(snapshot))


def plan_moves(view: ClusterView) -> MovesPlan:
    """Plans moves for the waiting pods in their order; each counts on the moves before it.

    Args:
        view: the whole cluster. Its state takes in the plan, so it is of no further use.
    """
    slicer = view.slicer
    if slicer is None:
        return MovesPlan()
    return _Planner(view, slicer).plan()


class _Planner:
    def __init__(self, view: ClusterView, slicer: Slicer) -> None:
        self._view = view
        self._slicer = slicer
        self._fleet = slicer.state.inventory.fleet
        running = [
            pod for pod in slicer.state.cluster.pods.values() if pod.movable and pod.node and not pod.terminating
        ]
        running = [pod for pod in running if not pod.finished and pod.profiles]
        self._movable = sum(map(can_move, running))
        moves = [each for found in slicer.state.moves.values() for each in found if each.counts(slicer.state.now)]
        resting = RestingPods(moves)
        #: Pods that could move, and do not in this hour.
        self._resting = [
            pod.key
            for pod in running
            if can_move(pod) and resting.contains(pod.uid, pod.owner, parse_time_or_zero(pod.created))
        ]
        self._unowned = tuple(sorted(pod.key for pod in running if not pod.owner))

    def plan(self) -> MovesPlan:
        state = self._slicer.state
        ordered = [
            state.cluster.pods[each.uid]
            for each in self._slicer.order.all()
            if isinstance(state.pods.reason_of(each.uid), Full | Fragmented)
        ]
        rooms: list[PlannedRoom] = []
        stuck: list[tuple[str, str]] = []
        for pod in ordered[:MOVES_PLANNED]:
            room = self._room(pod, after_moves=any(each.is_worth for each in rooms))
            if room is None:
                stuck.append((pod.key, self._why(pod)))
            else:
                rooms.append(room)
        omitted = max(0, len(ordered) - MOVES_PLANNED)
        runtimes = (node.status.node_info.container_runtime_version for node in self._view.snapshot.nodes)
        return MovesPlan(
            rooms=tuple(rooms),
            stuck=tuple(stuck),
            movable=self._movable,
            unowned=self._unowned,
            omitted=omitted,
            simulated=any(runtime.startswith(SIMULATED_RUNTIME) for runtime in runtimes),
        )

    def _why(self, pod: PodInfo) -> str:
        if pod.devices:
            return "it requests whole cards or shares, and moves make room for a slice"
        if len(pod.profiles) > 1:
            return "it requests several slices, and moves make room for one"
        if pod.gang is not None:
            return "it belongs to a gang, and moves make room for one pod"
        if not self._movable:
            return "no running pod may move"
        none = f"no {MOST_MOVES} moves of pods that may move make room for {pod.profiles[0]}"
        if not self._resting:
            return none
        verb = "rests" if len(self._resting) == 1 else "rest"
        return (
            f"{none}; {list_names(self._resting)} {verb}: a pod that was moved, or whose eviction was refused, does not"
            " move for an hour"
        )

    def _room(self, pod: PodInfo, *, after_moves: bool) -> PlannedRoom | None:
        """Returns the room of one pod, and takes it into the cluster's state if the moves are worth it."""
        if after_moves:
            (placed,) = self._slicer.planner.plan_alone([pod])
            if isinstance(placed, Placed):
                return self._take(pod, [CardPlacement(placed.node, *_position(each)) for each in placed.slices])
        found = self._slicer.rooms.find(pod, MOST_MOVES)
        if found is None:
            return None
        moves = tuple(self._move(move.allocation, move.to) for move in found.room.moves)
        if not found.worth.is_positive:
            at = found.room.placement
            return PlannedRoom(pod.key, at.size, self._place(at), moves, found.worth.gain, found.worth.price)
        for move in found.room.moves:
            at = move.allocation.placement
            self._fleet.release(at.node, at.gpu, at.start)
        state = self._slicer.state
        for move, uid in zip(found.room.moves, found.moved, strict=True):
            self._fleet.occupy(move.to, f"{move.allocation.owner} after its move")
            state.usage.assign(uid, NodeName(move.to.node), state.cluster.pods[uid].amounts)
        room = self._take(pod, [found.room.placement])
        return msgspec.structs.replace(room, moves=moves, gain=found.worth.gain, price=found.worth.price)

    def _take(self, pod: PodInfo, placements: Sequence[CardPlacement]) -> PlannedRoom:
        self._fleet.occupy_all(placements, pod.key)
        self._slicer.state.usage.assign(pod.uid, NodeName(placements[0].node), pod.amounts)
        return PlannedRoom(pod.key, sum(each.size for each in placements), self._place(placements[0]), ())

    def _move(self, allocation: OwnedPlacement, to: CardPlacement) -> PlannedMove:
        return PlannedMove(
            pod=allocation.owner,
            slots=to.size,
            from_=self._place(allocation.placement),
            to=self._place(to),
        )

    def _place(self, at: CardPlacement) -> SlicePlace:
        return SlicePlace(at.node, at.gpu, self._view.position(at.profile, at.gpu, at.start, at.size))


def _position(one: Slice) -> tuple[str, str, int, int]:
    return (one.gpu_uuid, one.profile, one.start, one.size)
