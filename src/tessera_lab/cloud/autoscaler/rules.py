"""Decisions of the cluster autoscaler in one scan: turns a snapshot into actions.

After its code (kubernetes/autoscaler, clusterstate and static_autoscaler, July 2026). Rules:

1. A node that carries the accelerator label and offers no card yet is **not started** until ``max_node_startup`` after
   its registration. Without the label such a node is Ready and empty.
2. Machines that have not registered and nodes that have not started are upcoming, as long as their group has a scale-up
   request and is not backed off. Scale-down leaves upcoming nodes alone.
3. Pending pods that fit neither on Ready nodes nor on upcoming ones cause a scale-up. Pods that ask for cards, or for a
   node of their own, are gathered until the oldest is 30 s old.
4. Each group has one scale-up request. Its deadline is ``max_node_provision`` after the last increase and covers all:
   machine, join, driver, device plugin. When it passes, the request is dropped, and the group is left alone for a time
   that doubles from 5 to 30 minutes with each further failure; a request that ends well ends that too.
5. A machine that has not registered ``max_node_provision`` after its request is taken away. An empty node that is
   not Ready, and not upcoming, goes after ``unready``; an empty Ready node after ``unneeded``; neither before
   ``delay_after_add`` has passed since the last scale-up, and no group goes below its minimum.

Not modelled: moving pods to other nodes, several zones, expanders, CPU and memory, the halt when too many nodes are not
Ready, and that a group's target is lowered with a request that timed out (Cluster API refuses that for live nodes).
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from tessera_lab.cloud.node_groups import NodeGroup


class AutoscalerTimers(msgspec.Struct, frozen=True, kw_only=True):
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


class GroupNode(msgspec.Struct, frozen=True, kw_only=True):
    """A registered node of a group.

    Attributes:
        name: the node's name.
        group: the group's name.
        created: when it registered, seconds since 1970.
        ready: its Ready condition, and no startup taint.
        labelled: it carries the accelerator label.
        cards: cards that it offers.
        free: cards of these that no pod uses.
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
    """A pod that no node has room for.

    Attributes:
        created: time of its creation.
        cards: cards that it asks for.
        priority: its priority.
        own_node: it excludes the present nodes by their hostnames, and repels pods of its kind, so that it needs a new
            node of its own.
    """

    created: float
    cards: int
    priority: int = 0
    own_node: bool = False


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """A node group: its settings, its target, and machines that have not registered, by name with their request."""

    group: NodeGroup
    target: int
    unregistered: Mapping[str, float]


class AutoscalerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a scan: groups, nodes and pending pods at one time."""

    now: float
    groups: Sequence[GroupView]
    nodes: Sequence[GroupNode]
    pending: Sequence[PendingView]


class ActionKind(Enum):
    """Kinds of actions."""

    INCREASE = "increase"
    REMOVE = "remove"
    TIMED_OUT = "timed out"


class ScalingAction(msgspec.Struct, frozen=True, kw_only=True):
    """One action of the autoscaler.

    Attributes:
        kind: kind of the action.
        group: the group.
        count: machines to add.
        node: the machine to remove.
        why: the reason, in the autoscaler's words.
    """

    kind: ActionKind
    group: str
    count: int = 0
    node: str = ""
    why: str = ""


class _ScaleUpRequest(msgspec.Struct, kw_only=True):
    deadline: float


class AutoscalerMemory:
    """State of the autoscaler between scans."""

    def __init__(self) -> None:
        self.requests: dict[str, _ScaleUpRequest] = {}
        self.backoff: dict[str, tuple[float, float]] = {}  # by group: its end and its length
        self.unneeded: dict[str, float] = {}  # by empty Ready node: since when
        self.unready: dict[str, float] = {}  # by empty node neither Ready nor upcoming: since when
        self.last_add = float("-inf")


def scan(snapshot: AutoscalerSnapshot, memory: AutoscalerMemory, timers: AutoscalerTimers) -> list[ScalingAction]:
    """Runs one scan and updates ``memory``."""
    spare = {view.group.name: view.target - view.group.minimum for view in snapshot.groups}
    actions = [action for each in snapshot.groups for action in _remove_late_machines(each, snapshot, timers, spare)]
    for each in snapshot.groups:
        actions += _end_request(each, snapshot, memory, timers)
    more = _scale_up(snapshot, memory, timers)
    # A scan that adds machines removes none.
    return actions + (more or _scale_down(snapshot, memory, timers, spare))


def awaits_time(snapshot: AutoscalerSnapshot, memory: AutoscalerMemory, timers: AutoscalerTimers) -> bool:
    """True if an action becomes due by time alone: for a young pod, machines that start, or an idle node."""
    young = any(
        (pod.cards or pod.own_node) and snapshot.now - pod.created < timers.gpu_buffer for pod in snapshot.pending
    )
    spare = {view.group.name for view in snapshot.groups if view.target > view.group.minimum}
    idle = {*memory.unneeded, *memory.unready}
    return young or bool(memory.requests) or any(node.name in idle and node.group in spare for node in snapshot.nodes)


def is_started(node: GroupNode) -> bool:
    """True if the autoscaler counts a node as ready: with the label only once the node offers a card."""
    return node.ready and not (node.labelled and node.cards == 0)


def is_starting(node: GroupNode, now: float, timers: AutoscalerTimers) -> bool:
    """True if a node is starting and its time to start is not over."""
    return not is_started(node) and now - node.created < timers.max_node_startup


def count_upcoming(
    view: GroupView, snapshot: AutoscalerSnapshot, memory: AutoscalerMemory, timers: AutoscalerTimers
) -> int:
    """Counts the machines of a group that are expected to offer cards."""
    return _count_coming(view, snapshot, timers) if _is_counted_on(view.group.name, snapshot.now, memory) else 0


def _is_counted_on(group: str, now: float, memory: AutoscalerMemory) -> bool:
    until, _ = memory.backoff.get(group, (0.0, 0.0))
    return group in memory.requests and now >= until


def _count_coming(view: GroupView, snapshot: AutoscalerSnapshot, timers: AutoscalerTimers) -> int:
    own = [node for node in snapshot.nodes if node.group == view.group.name]
    arrived = sum(not is_starting(node, snapshot.now, timers) for node in own)
    return max(0, view.target - arrived - len(_late_machines(view, snapshot.now, timers)))


def _late_machines(view: GroupView, now: float, timers: AutoscalerTimers) -> list[str]:
    """Machines that have not registered within their time."""
    return [name for name, requested in view.unregistered.items() if now - requested > timers.max_node_provision]


def _remove_late_machines(
    view: GroupView, snapshot: AutoscalerSnapshot, timers: AutoscalerTimers, spare: dict[str, int]
) -> list[ScalingAction]:
    name = view.group.name
    late = _late_machines(view, snapshot.now, timers)[: max(0, spare[name])]
    spare[name] -= len(late)
    reason = "did not register within maxNodeProvisionTime"
    return [ScalingAction(kind=ActionKind.REMOVE, group=name, node=each, why=reason) for each in late]


def _end_request(
    view: GroupView, snapshot: AutoscalerSnapshot, memory: AutoscalerMemory, timers: AutoscalerTimers
) -> list[ScalingAction]:
    """Ends the group's scale-up request, by success or by its deadline."""
    name = view.group.name
    request = memory.requests.get(name)
    if request is None:
        return []
    if not _count_coming(view, snapshot, timers):
        del memory.requests[name]
        memory.backoff.pop(name, None)
        return []
    if snapshot.now <= request.deadline:
        return []
    del memory.requests[name]
    memory.backoff[name] = _next_backoff(memory.backoff.get(name), snapshot.now, timers)
    return [
        ScalingAction(
            kind=ActionKind.TIMED_OUT,
            group=name,
            why=f"nodes added to group {name} failed to register within their time",
        )
    ]


def _next_backoff(before: tuple[float, float] | None, now: float, timers: AutoscalerTimers) -> tuple[float, float]:
    """Returns end and length of a group's back-off after one more failure."""
    length = timers.first_backoff if before is None else min(timers.longest_backoff, before[1] * 2)
    return now + length, length


def _scale_up(snapshot: AutoscalerSnapshot, memory: AutoscalerMemory, timers: AutoscalerTimers) -> list[ScalingAction]:
    pods = [pod for pod in snapshot.pending if pod.priority >= timers.cutoff and (pod.cards or pod.own_node)]
    if not pods or snapshot.now - min(pod.created for pod in pods) < timers.gpu_buffer:
        return []
    upcoming: list[int] = []
    for view in snapshot.groups:
        upcoming += [view.group.gpus] * count_upcoming(view, snapshot, memory, timers)
    alone = [pod for pod in pods if pod.own_node]
    unplaced = alone[len(upcoming) :]
    rooms = [node.free for node in snapshot.nodes if node.ready and node.free] + upcoming[len(alone) :]
    unplaced += [pod for pod in pods if not pod.own_node and not _take_room(pod.cards, rooms)]
    return _increase_group(unplaced, snapshot, memory, timers) if unplaced else []


def _take_room(cards: int, rooms: list[int]) -> bool:
    for place, room in enumerate(rooms):
        if room >= cards:
            rooms[place] -= cards
            return True
    return False


def _increase_group(
    unplaced: Sequence[PendingView], snapshot: AutoscalerSnapshot, memory: AutoscalerMemory, timers: AutoscalerTimers
) -> list[ScalingAction]:
    for view in snapshot.groups:
        until, _ = memory.backoff.get(view.group.name, (0.0, 0.0))
        if snapshot.now < until:
            continue
        rooms: list[int] = []
        for pod in unplaced:
            if pod.own_node:
                rooms.append(0)
            elif pod.cards <= view.group.gpus and not _take_room(pod.cards, rooms):
                rooms.append(view.group.gpus - pod.cards)
        count = min(len(rooms), view.group.maximum - view.target)
        if count > 0:
            memory.requests[view.group.name] = _ScaleUpRequest(deadline=snapshot.now + timers.max_node_provision)
            memory.last_add = snapshot.now
            return [
                ScalingAction(
                    kind=ActionKind.INCREASE, group=view.group.name, count=count, why=_describe_waiting(len(unplaced))
                )
            ]
    return []


def _describe_waiting(pods: int) -> str:
    return "1 pod waits" if pods == 1 else f"{pods} pods wait"


def _scale_down(
    snapshot: AutoscalerSnapshot, memory: AutoscalerMemory, timers: AutoscalerTimers, spare: dict[str, int]
) -> list[ScalingAction]:
    actions = []
    for node in snapshot.nodes:
        reason = _removal_reason(node, snapshot.now, memory, timers)
        if reason and spare.get(node.group, 0) > 0:
            spare[node.group] -= 1
            actions.append(ScalingAction(kind=ActionKind.REMOVE, group=node.group, node=node.name, why=reason))
    registered = {node.name for node in snapshot.nodes}
    for remembered in (memory.unneeded, memory.unready):
        for name in set(remembered) - registered:
            del remembered[name]
    return actions


def _removal_reason(node: GroupNode, now: float, memory: AutoscalerMemory, timers: AutoscalerTimers) -> str:
    """Returns why a node may be removed now; empty if it may not."""
    safe = is_starting(node, now, timers) and _is_counted_on(node.group, now, memory)
    since, other, limit, reason = (
        (memory.unneeded, memory.unready, timers.unneeded, "unneeded")
        if is_started(node)
        else (memory.unready, memory.unneeded, timers.unready, "unready for too long")
    )
    other.pop(node.name, None)
    if safe or not node.empty:
        since.pop(node.name, None)
        return ""
    waited = now - since.setdefault(node.name, now)
    rested = now - memory.last_add >= timers.delay_after_add
    return reason if rested and waited >= limit else ""
