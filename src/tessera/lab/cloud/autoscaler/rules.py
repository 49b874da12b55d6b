"""What the cluster autoscaler decides in one scan; values in, deeds out.

After its code (kubernetes/autoscaler, 1.35). Rules:

1. A node that carries the accelerator label and offers no card yet is **not started**: it counts as upcoming until
   ``max_node_startup`` is over, and is left alone by scale-down. Without the label such a node is Ready and empty.
2. Pending pods that neither fit on Ready nodes nor on upcoming ones cause a scale-up. Pods that ask for cards are
   gathered until the oldest is 30 s old.
3. Each group has one scale-up request. Its deadline is ``max_node_provision`` after the last increase and covers all:
   machine, join, driver, device plugin. When it passes, the request is dropped, the group's nodes no longer count as
   upcoming, and the group is left alone for a time that doubles from 5 to 30 minutes.
4. A machine that has not registered ``max_node_provision`` after its request is taken away. A registered node without
   its cards goes once it was unready for ``unready``.
5. An empty Ready node goes once it was unneeded for ``unneeded``, and not before ``delay_after_add`` has passed since
   the last scale-up.

Not modelled: moving pods to other nodes, several zones, expanders, CPU and memory.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from tessera.lab.cloud.groups import NodeGroup


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """The autoscaler's flags, seconds; defaults are its own.

    Attributes:
        scan: ``--scan-interval``.
        gpu_buffer: how old the oldest pending pod with cards must be; fixed in its code.
        max_node_provision: ``--max-node-provision-time``.
        max_node_startup: ``--max-node-startup-time``.
        unneeded: ``--scale-down-unneeded-time``.
        unready: ``--scale-down-unready-time``.
        delay_after_add: ``--scale-down-delay-after-add``.
        first_backoff: ``--initial-node-group-backoff-duration``.
        longest_backoff: ``--max-node-group-backoff-duration``.
        cutoff: ``--expendable-pods-priority-cutoff``: pods below it cause no scale-up.
    """

    scan: float = 10.0
    gpu_buffer: float = 30.0
    max_node_provision: float = 900.0
    max_node_startup: float = 900.0
    unneeded: float = 600.0
    unready: float = 1200.0
    delay_after_add: float = 600.0
    first_backoff: float = 300.0
    longest_backoff: float = 1800.0
    cutoff: int = -10


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered node of a group.

    Attributes:
        name: the node's.
        group: the group's.
        created: when it registered, seconds since 1970.
        ready: its Ready condition, and no startup taint.
        labelled: it carries the accelerator label.
        cards: cards that it offers.
        free: of them nobody's.
        empty: only DaemonSets' pods run on it.
    """

    name: str
    group: str
    created: float
    ready: bool
    labelled: bool
    cards: int
    free: int
    empty: bool


class PendingView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that no node has room for: when it was made, cards, priority."""

    created: float
    cards: int
    priority: int = 0


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A node group: its settings, its target, and machines that have not registered, by name with their request."""

    group: NodeGroup
    target: int
    unregistered: Mapping[str, float]


class World(msgspec.Struct, frozen=True, kw_only=True):
    """What a scan sees."""

    now: float
    groups: Sequence[GroupView]
    nodes: Sequence[NodeView]
    pending: Sequence[PendingView]


class Kind(Enum):
    """Kinds of deeds."""

    INCREASE = "increase"
    REMOVE = "remove"
    TIMED_OUT = "timed out"


class Deed(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done.

    Attributes:
        kind: what.
        group: the group.
        count: machines to add.
        node: the machine to take away.
        why: in the autoscaler's words.
    """

    kind: Kind
    group: str
    count: int = 0
    node: str = ""
    why: str = ""


class _Request(msgspec.Struct, kw_only=True):
    deadline: float


class Memory:
    """What the autoscaler knows from scan to scan."""

    def __init__(self) -> None:
        self.requests: dict[str, _Request] = {}
        self.backoff: dict[str, tuple[float, float]] = {}  # until when, and how long it was
        self.given_up: set[str] = set()  # nodes of requests that timed out
        self.unneeded: dict[str, float] = {}
        self.unready: dict[str, float] = {}
        self.last_add = float("-inf")


def scan(world: World, memory: Memory, timers: Timers) -> list[Deed]:
    """One scan; ``memory`` is changed."""
    deeds: list[Deed] = []
    for each in world.groups:
        deeds += _lost(each, world, timers)
        deeds += _request(each, world, memory, timers)
    deeds += _scale_up(world, memory, timers)
    if not any(deed.kind is Kind.INCREASE for deed in deeds):  # nothing goes in the scan in which something comes
        deeds += _scale_down(world, memory, timers)
    return deeds


def not_started(node: NodeView, now: float, timers: Timers) -> bool:
    """Whether a node is on its way: not Ready, or labelled and without a card, for not too long."""
    there = node.ready and not (node.labelled and node.cards == 0)
    return not there and now - node.created < timers.max_node_startup


def upcoming(view: GroupView, world: World, memory: Memory, timers: Timers) -> int:
    """Machines of a group that will offer cards."""
    own = [node for node in world.nodes if node.group == view.group.name]
    coming = [node for node in own if not_started(node, world.now, timers) and node.name not in memory.given_up]
    late = sum(world.now - asked > timers.max_node_provision for asked in view.unregistered.values())
    given_up = sum(name in memory.given_up for name in view.unregistered)
    return max(0, view.target - (len(own) - len(coming)) - max(late, given_up))


def _lost(view: GroupView, world: World, timers: Timers) -> list[Deed]:
    return [
        Deed(kind=Kind.REMOVE, group=view.group.name, node=name, why="did not register within maxNodeProvisionTime")
        for name, asked in view.unregistered.items()
        if world.now - asked > timers.max_node_provision
    ]


def _request(view: GroupView, world: World, memory: Memory, timers: Timers) -> list[Deed]:
    """Ends the group's scale-up request, well or by its deadline."""
    name = view.group.name
    request = memory.requests.get(name)
    if request is None:
        return []
    if not upcoming(view, world, memory, timers):
        del memory.requests[name]
        memory.backoff.pop(name, None)
        return []
    if world.now <= request.deadline:
        return []
    del memory.requests[name]
    _, before = memory.backoff.get(name, (0.0, 0.0))
    length = min(timers.longest_backoff, before * 2 if before else timers.first_backoff)
    memory.backoff[name] = (world.now + length, length)
    memory.given_up |= {
        node.name for node in world.nodes if node.group == name and not_started(node, world.now, timers)
    }
    memory.given_up |= set(view.unregistered)
    return [
        Deed(kind=Kind.TIMED_OUT, group=name, why=f"nodes added to group {name} failed to register within their time")
    ]


def _scale_up(world: World, memory: Memory, timers: Timers) -> list[Deed]:
    pods = [pod for pod in world.pending if pod.priority >= timers.cutoff and pod.cards]
    if not pods or world.now - min(pod.created for pod in pods) < timers.gpu_buffer:
        return []
    rooms = [node.free for node in world.nodes if node.ready and node.free]
    for view in world.groups:
        rooms += [view.group.gpus] * upcoming(view, world, memory, timers)
    homeless = [pod for pod in pods if not _placed(pod.cards, rooms)]
    return _added(homeless, world, memory, timers) if homeless else []


def _placed(cards: int, rooms: list[int]) -> bool:
    for place, room in enumerate(rooms):
        if room >= cards:
            rooms[place] -= cards
            return True
    return False


def _added(homeless: Sequence[PendingView], world: World, memory: Memory, timers: Timers) -> list[Deed]:
    for view in world.groups:
        until, _ = memory.backoff.get(view.group.name, (0.0, 0.0))
        if world.now < until:
            continue
        rooms: list[int] = []
        for pod in homeless:
            if pod.cards <= view.group.gpus and not _placed(pod.cards, rooms):
                rooms.append(view.group.gpus - pod.cards)
        count = min(len(rooms), view.group.maximum - view.target)
        if count > 0:
            memory.requests[view.group.name] = _Request(deadline=world.now + timers.max_node_provision)
            memory.last_add = world.now
            return [Deed(kind=Kind.INCREASE, group=view.group.name, count=count, why=f"{len(homeless)} pods wait")]
    return []


def _scale_down(world: World, memory: Memory, timers: Timers) -> list[Deed]:
    deeds = []
    left = {view.group.name: view.target - view.group.minimum for view in world.groups}
    for node in world.nodes:
        why = _removable(node, world, memory, timers)
        if why and left.get(node.group, 0) > 0:
            left[node.group] -= 1
            deeds.append(Deed(kind=Kind.REMOVE, group=node.group, node=node.name, why=why))
    there = {node.name for node in world.nodes}
    for remembered in (memory.unneeded, memory.unready):
        for name in set(remembered) - there:
            del remembered[name]
    return deeds


def _removable(node: NodeView, world: World, memory: Memory, timers: Timers) -> str:
    """Why a node may go now; empty if it may not."""
    started = node.ready and not (node.labelled and node.cards == 0)
    if not started:
        memory.unneeded.pop(node.name, None)
        if not_started(node, world.now, timers) and node.name not in memory.given_up:
            return ""
        since = memory.unready.setdefault(node.name, world.now)
        return "unready for too long" if world.now - since >= timers.unready and node.empty else ""
    memory.unready.pop(node.name, None)
    if not node.empty:
        memory.unneeded.pop(node.name, None)
        return ""
    since = memory.unneeded.setdefault(node.name, world.now)
    rested = world.now - memory.last_add >= timers.delay_after_add
    return "unneeded" if rested and world.now - since >= timers.unneeded else ""
