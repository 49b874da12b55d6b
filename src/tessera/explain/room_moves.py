"""The moves that would make room for pods that wait, as a plan for people. Nothing is moved.

A pod may move if it has the annotation ``tessera.dev/movable: "true"``, holds one slice, runs, and has an owner that
makes it anew. To move it means to end it: its owner makes another pod, which is placed like any other. So the new
places are those where such a pod fits now.
"""

from collections.abc import Mapping

import msgspec

from tessera.api.instaslice import INSTASLICES
from tessera.api.names import INSTASLICE_NAMESPACE, MOVABLE_ANNOTATION, SIMULATED_RUNTIME, NodeName
from tessera.clock import Clock
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.move_finder import unpinned
from tessera.controller.slicing.slicer import Slicer
from tessera.explain.snapshot import ClusterView, Snapshot
from tessera.kube.client.client import Client
from tessera.kube.resources import NODES, PODS, Pod
from tessera.limits.planning import MOVES_PLANNED
from tessera.placement.card_table import CardTable, StateCosts
from tessera.placement.cards import CardPlacement, OwnedPlacement
from tessera.placement.demand import Fragmented, Full
from tessera.placement.moves import MOST_MOVES, MoveRules, Room, make_room


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
        gain: slot seconds of the wait that the waiting pod is spared.
        price: slot seconds of work that the moves lose, and of the time until the moved pods work again.
    """

    pod: str
    slots: int
    place: SlicePlace
    moves: tuple[PlannedMove, ...]
    gain: float = 0.0
    price: float = 0.0


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
    """
    pods = (await client.list(PODS)).items
    nodes = (await client.list(NODES)).items
    objects = (await client.list(INSTASLICES, INSTASLICE_NAMESPACE)).items
    return plan_moves(ClusterView(Snapshot(now=clock.now(), pods=pods, nodes=nodes, instaslices=objects)))


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
        infos = {f"{pod.namespace}/{pod.name}": pod for pod in slicer.state.cluster.pods.values() if not pod.finished}
        marked = {_key(pod): pod for pod in view.snapshot.pods if _is_marked(pod)}
        running = {key: pod for key, pod in infos.items() if key in marked and pod.node and not pod.terminating}
        self._movable = {key: pod for key, pod in running.items() if _may_move(pod)}
        self._unowned = tuple(sorted(key for key, pod in running.items() if not pod.owner))
        self._objections: dict[str, Mapping[NodeName, tuple[str, ...]]] = {}

    def plan(self) -> MovesPlan:
        state = self._slicer.state
        ordered = [
            state.cluster.pods[each.uid]
            for each in self._slicer.order.all()
            if isinstance(state.waiting.get(each.uid), Full | Fragmented)
        ]
        rooms: list[PlannedRoom] = []
        stuck: list[tuple[str, str]] = []
        for pod in ordered[:MOVES_PLANNED]:
            key = f"{pod.namespace}/{pod.name}"
            found = self._room(pod) if len(pod.profiles) == 1 else None
            if found is None:
                stuck.append((key, self._why(pod)))
            else:
                rooms.append(self._carry_out(pod, found))
        omitted = max(0, len(ordered) - MOVES_PLANNED)
        runtimes = (node.status.node_info.container_runtime_version for node in self._view.snapshot.nodes)
        return MovesPlan(
            rooms=tuple(rooms),
            stuck=tuple(stuck),
            movable=len(self._movable),
            unowned=self._unowned,
            omitted=omitted,
            simulated=any(runtime.startswith(SIMULATED_RUNTIME) for runtime in runtimes),
        )

    def _room(self, pod: PodInfo) -> Room | None:
        rules = MoveRules(
            may_move=lambda one: one.owner in self._movable,
            takes=lambda node: self._takes(pod, node),
            takes_moved=lambda one, node: self._takes(self._movable[one.owner], node),
        )
        return make_room(self._fleet, pod.profiles[0], _by_fragmentation, rules)

    def _takes(self, pod: PodInfo, node: str) -> bool:
        """True if the node's rules allow the pod; a pod that runs there is allowed."""
        if pod.node == node:
            return True
        if pod.uid not in self._objections:
            self._objections[pod.uid] = self._slicer.planner.objections(unpinned(pod))
        return not self._objections[pod.uid].get(NodeName(node), ("gone",))

    def _why(self, pod: PodInfo) -> str:
        if len(pod.profiles) > 1:
            return "it requests several slices, and moves make room for one"
        if not self._movable:
            return "no running pod may move"
        return f"no {MOST_MOVES} moves of pods that may move make room for {pod.profiles[0]}"

    def _carry_out(self, pod: PodInfo, room: Room) -> PlannedRoom:
        """Takes the moves into the fleet, and describes them."""
        finder = self._slicer.rooms
        moved = ((self._movable[move.allocation.owner], move.to.size) for move in room.moves)
        price = sum(finder.price(each, slots) for each, slots in moved)
        gain = finder.gain(pod, room.placement.size)
        for move in room.moves:
            at = move.allocation.placement
            self._fleet.release(at.node, at.gpu, at.start)
        for move in room.moves:
            self._fleet.occupy(move.to, f"{move.allocation.owner} after its move")
        self._fleet.occupy(room.placement, pod.key)
        return PlannedRoom(
            pod=pod.key,
            slots=room.placement.size,
            place=self._place(room.placement),
            moves=tuple(self._move(move.allocation, move.to) for move in room.moves),
            gain=gain,
            price=price,
        )

    def _move(self, allocation: OwnedPlacement, to: CardPlacement) -> PlannedMove:
        return PlannedMove(
            pod=allocation.owner,
            slots=to.size,
            from_=self._place(allocation.placement),
            to=self._place(to),
        )

    def _place(self, at: CardPlacement) -> SlicePlace:
        return SlicePlace(at.node, at.gpu, self._view.position(at.profile, at.gpu, at.start, at.size))


def _by_fragmentation(table: CardTable) -> StateCosts:
    return table.costs


def _key(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _may_move(pod: PodInfo) -> bool:
    return bool(pod.owner) and len(pod.profiles) == 1 and pod.gang is None


def _is_marked(pod: Pod) -> bool:
    return pod.metadata.annotations.get(MOVABLE_ANNOTATION) == "true"
