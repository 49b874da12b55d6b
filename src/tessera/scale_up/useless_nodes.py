"""Nodes that came for waiting pods and did not help; how long no other is asked for. Pure.

Rules:

1. A node that registers while pods count on new nodes of its group is on trial for their requests. The trial ends when
   a pod has cards of it, its time to start is over, or it is gone.
2. A request that still waits then has a pause, if the node would not take it even without other pods, or took no pod at
   all. For requests that the node took, and for those that it only had no room left for, the pause is over.
3. A node that refuses a request which it was not asked for makes a pause longer, and begins none. Its size says nothing
   about such a request: Karpenter makes nodes of many sizes.
4. While a node of a group takes a request, other nodes of the group on trial do not count against the request: the
   fault is theirs.
5. The pause is for one group and one kind of requests of one namespace, since pods of others are judged by what they
   ask for themselves. It begins with some minutes and about doubles with each further node.
6. After a pause the group is on trial itself: all requests with a former pause get one node together.

A pod with other requests is of another kind and counts at once. Whoever changes the requests of each new pod gets a
node for each. That is no new power: pods that run would bring as many nodes.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import Enum

import msgspec

from tessera.api.names import NodeName
from tessera.api.nodes.node_groups import LONGEST_PAUSE, Pause, next_pause
from tessera.controller.cluster.filters import device_shortages, shortages
from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_constraints import NodeConstraints, find_refusal
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.limits import DECISION_STEPS
from tessera.placement.demand import StepBudget
from tessera.placement.node_fit import NodeShapes, Shape, none_could_hold
from tessera.reasons.node_rules import NodeRule, name_rule
from tessera.scale_up.patterns import Pace

#: Taints of nodes that an autoscaler removes: Cluster Autoscaler's, and Karpenter's of two versions.
_REMOVED_BY = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted", "karpenter.sh/disruption"})


class NewNodeLook(msgspec.Struct, frozen=True):
    """A node at one time.

    Attributes:
        info: its values.
        offered: the profiles that its cards can make, and its devices; none before it has listed its cards.
        shape: its cards.
        fault: what is wrong with its object.
    """

    info: NodeInfo
    offered: frozenset[str]
    shape: Shape
    fault: str

    @property
    def is_leaving(self) -> bool:
        """True if it is about to be removed, or does not answer: what it was like before says more."""
        keys = {taint.key for taint in self.info.taints}
        return not self.info.ready or self.info.cordoned or bool(keys & _REMOVED_BY)

    def refusal(self, pod: PodInfo) -> NodeRule | str:
        """Returns what keeps the pod off the node, other pods left aside: a rule, or a text; empty if nothing does."""
        return next(self._refusals(pod), "")

    def _refusals(self, pod: PodInfo) -> Iterator[NodeRule | str]:
        if self.fault:
            yield f"its object breaks a rule: {self.fault}"
        if why := find_refusal(pod.constraints, self.info):
            yield why
        yield from shortages(pod.amounts, {}, self.info)
        yield from device_shortages(pod.amounts, {}, self.info)
        missing = sorted(set(pod.profiles) - self.offered)
        if missing:
            yield f"its cards offer no {missing[0]}"
        elif not pod.devices and none_could_hold([self.shape], pod.profiles, StepBudget(int(DECISION_STEPS))):
            yield "its cards cannot hold the pod's slices together"


def look_at(state: SlicerState, node: NodeName) -> NewNodeLook | None:
    """Returns what the node is like now; None if it is gone, or was not read yet."""
    info = state.cluster.nodes.get(node)
    if info is None:
        return None
    fleet = state.inventory.fleet
    cards = [card.geometry for card in fleet.cards(node)] if node in fleet.nodes else []
    offered = state.profiles_by_node.get(node, frozenset())
    return NewNodeLook(info, offered, NodeShapes().shape(cards), state.faults.get(node, ""))


#: Most pauses: kinds of requests for which no new node is asked for, as one came and did not help; the oldest pause
#: ends. Ten times the pods that count at a time; each may have requests of its own.
NODE_PAUSES = 10_000

#: Namespace, slices or devices, constraints and amounts: pods that agree in these have the same use of a node.
RequestKind = tuple[str, tuple[str, ...], NodeConstraints, tuple[tuple[str, int], ...]]


def request_kind(pod: PodInfo) -> RequestKind:
    """Returns the kind of a pod's request."""
    return (pod.namespace, pod.profiles, pod.constraints, tuple(sorted(pod.amounts.items())))


class Standing(Enum):
    """What a kind of requests may ask of a group; no restriction without one."""

    PAUSED = "no node"
    ON_TRIAL = "one node together"


class NewNode(msgspec.Struct, frozen=True):
    """A node that may still take its first pods.

    Attributes:
        uid: its UID.
        name: its name.
        group: its group.
        look: what it is like now; None if it was not read yet.
    """

    uid: str
    name: NodeName
    group: str
    look: NewNodeLook | None

    @property
    def key(self) -> tuple[str, str]:
        """Names it among the trials: a node may be of two groups."""
        return self.uid, self.group


class _Trial(msgspec.Struct):
    """A new node and the requests that count on it.

    Attributes:
        node: the node as it was last, before it began to leave.
        kinds: the requests.
    """

    node: NewNode
    kinds: set[RequestKind]

    def see(self, node: NewNode) -> None:
        """Takes in what the node is like now."""
        if node.look is not None and (self.node.look is None or not node.look.is_leaving):
            self.node = node

    def refusal(self, pod: PodInfo) -> NodeRule | str:
        """Returns why the node would not have taken a pod; empty if nothing was against it."""
        look = self.node.look
        return "it was gone before it was read" if look is None else look.refusal(pod)


class UselessNodes:
    """The trials and the pauses.

    Attributes:
        pauses: by group and kind, the last pause, also one that is over; forgotten a day after that.
    """

    def __init__(self) -> None:
        self.pauses: dict[tuple[str, RequestKind], Pause] = {}
        self._trials: dict[tuple[str, str], _Trial] = {}

    def begin_trials(self, starting: Iterable[NewNode], counting: Mapping[str, Iterable[PodInfo]]) -> None:
        """Puts nodes on trial that were not seen before.

        Args:
            starting: the nodes that may still take their first pods.
            counting: by group, the pods that would run on these nodes or on further ones.
        """
        for node in starting:
            if node.key not in self._trials:
                self._trials[node.key] = _Trial(node, {request_kind(pod) for pod in counting.get(node.group, ())})

    async def judge(
        self,
        starting: Iterable[NewNode],
        waiting: Iterable[PodInfo],
        taken: Callable[[NodeName], Collection[PodInfo]],
        look: Callable[[NodeName], NewNodeLook | None],
        now: float,
    ) -> None:
        """Looks at the nodes on trial, and ends trials.

        Args:
            starting: the nodes that may still take their first pods.
            waiting: the pods that could start on a node with room.
            taken: returns the pods that have cards of a node.
            look: returns what a node is like now; None if it is gone.
            now: seconds since 1970.
        """
        self._forget(now)
        present = {node.key: node for node in starting}
        ended = [self._trials.pop(key) for key in self._trials.keys() - present.keys()]
        for key, trial in self._trials.items():
            trial.see(present[key])
        for trial in ended:
            trial.see(msgspec.structs.replace(trial.node, look=look(trial.node.name)))
            self._note_use(trial.node.group, map(request_kind, taken(trial.node.name)), ended)
        kinds = {request_kind(pod): pod for pod in waiting} if ended else {}
        for trial in ended:
            await self._end(trial, kinds, now, is_used=bool(taken(trial.node.name)))

    def _note_use(self, group: str, kinds: Iterable[RequestKind], ended: Iterable[_Trial]) -> None:
        """Ends pauses and trials of requests that a node of the group has taken."""
        for kind in kinds:
            self.pauses.pop((group, kind), None)
            for trial in (*self._trials.values(), *ended):
                if trial.node.group == group:
                    trial.kinds.discard(kind)

    async def _end(self, trial: _Trial, waiting: Mapping[RequestKind, PodInfo], now: float, *, is_used: bool) -> None:
        group, pace = trial.node.group, Pace(StepBudget(sys.maxsize))
        kinds = trial.kinds | {kind for of, kind in self.pauses if of == group}
        for kind, pod in waiting.items():
            await pace.step()
            if kind not in kinds:
                continue
            why = trial.refusal(pod)
            if is_used and not why:
                self.pauses.pop((group, kind), None)
            elif kind in trial.kinds or (why and not (isinstance(why, NodeRule) and why.is_shortage)):
                said = f"cannot take the pod: {_name(why)}" if why else "got no pod in planning"
                text = f"node {trial.node.name} came and {said}"
                self.add(group, kind, next_pause(self.pauses.get((group, kind)), now, text))

    def add(self, group: str, kind: RequestKind, pause: Pause) -> None:
        """Adds a pause; of two for the same requests, the one that lasts longer stays."""
        before = self.pauses.pop((group, kind), pause)
        self.pauses[group, kind] = max(before, pause, key=lambda each: each.until)
        if len(self.pauses) > NODE_PAUSES:
            del self.pauses[next(iter(self.pauses))]

    def clear(self) -> None:
        """Ends all pauses."""
        self.pauses.clear()

    def standings(self, now: float) -> Mapping[str, Mapping[RequestKind, Standing]]:
        """Returns the restrictions of requests, by group."""
        found: dict[str, dict[RequestKind, Standing]] = {}
        for (group, kind), pause in self.pauses.items():
            found.setdefault(group, {})[kind] = Standing.PAUSED if now < pause.until else Standing.ON_TRIAL
        return found

    def paused(self, pods: Iterable[PodInfo], now: float) -> Iterator[tuple[PodInfo, str, Pause]]:
        """Yields the pods that have a pause, with its group."""
        by_kind: dict[RequestKind, list[tuple[str, Pause]]] = {}
        for (group, kind), pause in self.pauses.items():
            if now < pause.until:
                by_kind.setdefault(kind, []).append((group, pause))
        for pod in pods if by_kind else ():
            yield from ((pod, group, pause) for group, pause in by_kind.get(request_kind(pod), ()))

    def next_end(self, now: float) -> float | None:
        """Returns when the next pause ends; None without one."""
        return min((each.until for each in self.pauses.values() if each.until > now), default=None)

    def _forget(self, now: float) -> None:
        over = [key for key, each in self.pauses.items() if each.until + LONGEST_PAUSE < now]
        for key in over:
            del self.pauses[key]


def _name(why: NodeRule | str) -> str:
    return name_rule(why) if isinstance(why, NodeRule) else why
