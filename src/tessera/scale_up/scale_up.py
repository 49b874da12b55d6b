"""Keeps as many placeholders as new nodes are needed, as long as a term of leadership lasts.

It waits for changes of pods, nodes and the groups' file, lets the slicer decide about them first, and sends nothing
while the placeholders are as they should be. A placeholder that is bound is deleted at once: its node exists then, and
counts as one that starts.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from tessera.api.names import HOSTNAME_LABEL, NODE_GROUPS_KEY, NODE_GROUPS_MAP, NodeName
from tessera.api.nodes.node_groups import NodeGroup, parse_node_groups
from tessera.clock import parse_time_or_zero, until_set
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts
from tessera.controller.slicing.cycle.order import FairOrder
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.allocation import Allocation
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.event_recorder import EventRecorder
from tessera.kube.informer import Informer, ObjectInformer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, ConfigMap, Node, Pod
from tessera.kube.retries import Backoff
from tessera.scale_up.new_nodes import NewNodes, plan_new_nodes
from tessera.scale_up.node_notices import NodeNotices
from tessera.scale_up.node_requests import (
    PASSED_HOSTS,
    NodeAsker,
    NodeRequest,
    PlaceholderPods,
    ProvisioningRequests,
    ScaleUpMethod,
    ScaleUpOptions,
    SteadyAmounts,
    asks_for_cards,
    can_exclude,
    group_version,
    is_karpenters,
    pod_spec,
)
from tessera.scale_up.useless_nodes import NewNode, UselessNodes, look_at

_log = logging.getLogger(__name__)

#: Seconds in which changes are collected before one decision; the slicer has decided about them by then.
SETTLE = 5.0
#: Seconds between two looks at the state of ProvisioningRequests.
_POLL = 30.0
#: Seconds between two looks if the cluster serves ProvisioningRequests.
_LOOK_AGAIN = 600.0
#: Begin of a request's name; the group and a number follow.
_NAME = "tessera-new-node-"


class ScaleUp:
    """Asks autoscalers for new nodes.

    Args:
        runtime: access to the cluster; its identity needs create and delete of pods in Tessera's namespace.
        slicer: has the pods that wait, and the nodes whose cards are listed.
        nodes: the nodes.
        pods: the pods, placeholders among them.
        events: records events on the waiting pods.
        namespace: Tessera's own.
        options: the settings.
        startup: seconds from a node's registration for which its cards are awaited.
        show: is told how many nodes of each group are asked for.

    Attributes:
        nodes_may_come: groups are known, their file has a mistake, or it was not read yet.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        slicer: Slicer,
        *,
        nodes: Informer[Node],
        pods: Informer[Pod],
        events: EventRecorder,
        namespace: str,
        options: ScaleUpOptions,
        startup: float,
        show: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._runtime = runtime
        self._slicer, self._state = slicer, slicer.state
        #: A pod that present nodes are too small for counts as one that may start: new nodes may be larger.
        self._order = FairOrder(slicer.state)
        self._nodes, self._pods = nodes, pods
        self._namespace = namespace
        self._options = options
        self._startup = startup
        self._show = show
        #: False until the slicer has decided about all pods once: before, placeholders of a former leader stay.
        self._decided = False
        self._wake = asyncio.Event()
        #: End the following of nodes and pods; empty while nothing is followed.
        self._unfollow: list[Callable[[], None]] = []
        self._groups: tuple[NodeGroup, ...] = ()
        self.nodes_may_come = options.method is not ScaleUpMethod.OFF
        self._by_pods = PlaceholderPods(runtime, pods, namespace)
        self._by_requests = ProvisioningRequests(runtime, namespace)
        #: The cluster serves ProvisioningRequests; when to look again.
        self._served, self._look_at = False, 0.0
        #: Inputs and result of the last planning.
        self._planned: tuple[object, Mapping[str, NewNodes]] = (None, {})
        self._amounts = SteadyAmounts()
        #: By group, the largest amounts of its nodes; of groups that the file names.
        self._seen: Mapping[str, Amounts] = {}
        self._useless = UselessNodes()
        self._notices = NodeNotices(runtime, events)
        #: The version of the groups' file.
        self._file_version = ""
        self._file = ObjectInformer(
            runtime.client, CONFIGMAPS, NODE_GROUPS_MAP, namespace=namespace, clock=runtime.clock, rng=runtime.rng
        )

    async def run(self) -> None:
        """Decides and writes until cancelled; the informers of nodes and pods have listed."""
        self._file.add_handler(lambda _event: self._wake.set())
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._file.run())
                await self._file.wait_synced()
                self._wake.set()
                await self._keep()
        finally:
            self._show({})

    async def _keep(self) -> None:
        backoff = Backoff(self._runtime.rng)
        while True:
            await self._wait_for_change()
            await self._runtime.clock.sleep(SETTLE)
            self._wake.clear()
            if await self._update():
                backoff.reset()
            else:
                self._wake.set()
                await self._runtime.clock.sleep(backoff.next())

    async def _wait_for_change(self) -> None:
        """Waits for a change, the end of the time in which a node may start or of a pause, or the next poll."""
        times = [*self._startup_times(), *([_POLL] if self._by_requests.present else [])]
        now = self._runtime.clock.now()
        dues = (self._useless.next_end(now), self._notices.due)
        times += [max(0.0, due - now) for due in dues if due is not None]
        if self._amounts.due is not None:
            times.append(max(0.0, self._amounts.due - self._runtime.clock.monotonic()))
        await until_set(self._wake, min(times, default=None))

    async def _update(self) -> bool:
        """Brings the placeholders to the number that is needed; returns False if it has to be tried again."""
        if not self._runtime.may_act():
            return True
        self._read_groups()
        try:
            asker = await self._choose_asker()
            askers: list[NodeAsker] = [self._by_pods, self._by_requests]
            others = [each for each in askers if each is not asker]
            present = await asker.list_requests()
            outdated = [(each, request) for each in others for request in await self._list(each)]
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("requests for new nodes cannot be listed, tried again: %s", error)
            return False
        self._follow(needed=bool(self._groups or present or outdated))
        if not (self._groups or present or outdated):
            self._show({})
            self._notices.tell_pauses((), self._useless)
            return True
        if not self._slicer.is_caught_up:  # pods that need a node may be missing in the state
            return False
        if not await self._notices.restore(self._useless, self._state.cluster.pods):
            return False
        self._decided |= all(one.reason is not None for one in self._state.waiting.values())
        waiting = self._waiting_pods()
        needed = self._amounts.hold(await self._plan(waiting), self._runtime.clock.monotonic())
        self._show({group.name: needed.get(group.name, NewNodes(0)).count for group in self._groups})
        if not self._runtime.may_act():
            return True
        self._notices.tell_requests(waiting, needed)
        self._notices.tell_pauses(waiting, self._useless)
        surplus = list(self._find_surplus(present, needed)) if self._decided else []
        # A request of an outdated form or kind is deleted now and made anew once it is gone, so that no autoscaler
        # counts it twice.
        outdated += [(asker, request) for request in [*surplus, *self._find_outdated(present, needed)]]
        complete = True
        for each, request in outdated:
            complete &= await self._delete(each, request)
        names = {request.name for request in present} | {request.name for _, request in outdated}
        for group in self._groups:
            have = sum(request.open and request.group == group.name for request in present)
            have += sum(each is not asker and request.group == group.name for each, request in outdated)
            for name in _free_names(group.name, names, needed.get(group.name, NewNodes(0)).count - have):
                complete &= await self._create(asker, group, name, needed[group.name].least)
        return complete

    def _follow(self, *, needed: bool) -> None:
        """Wakes at changes of nodes and pods while they matter: there are groups, or requests to keep or to end."""
        if needed and not self._unfollow:
            self._unfollow = [each.add_handler(lambda _event: self._wake.set()) for each in (self._nodes, self._pods)]
        elif not needed:
            for each in self._unfollow:
                each()
            self._unfollow = []

    async def _choose_asker(self) -> NodeAsker:
        """Returns the way of asking; looks for the kind of ProvisioningRequests only while nodes may be asked for."""
        method = self._options.method
        if method is ScaleUpMethod.PROVISIONING_REQUEST:
            return self._by_requests
        if method is not ScaleUpMethod.AUTO or self._by_requests.ignored or not self._groups:
            return self._by_pods
        if not self._by_requests.present and self._runtime.clock.monotonic() >= self._look_at:
            self._look_at = self._runtime.clock.monotonic() + _LOOK_AGAIN
            self._served = await self._by_requests.is_served()
        return self._by_requests if self._served else self._by_pods

    async def _list(self, asker: NodeAsker) -> Sequence[NodeRequest]:
        """Lists the requests of the other kind, if there may be any: of a former leader, or of a former setting."""
        if asker is self._by_requests and not (self._served or self._by_requests.present or not self._decided):
            return ()
        return await asker.list_requests()

    def _read_groups(self) -> None:
        file = self._file.object or ConfigMap()
        if self._options.method is ScaleUpMethod.OFF:
            return
        try:
            groups = parse_node_groups(file.data.get(NODE_GROUPS_KEY, ""))
        except ValueError as error:
            _log.warning("%s; no node is asked for until then", error)
            self._groups = ()
            self.nodes_may_come = True
        else:
            self._groups = tuple(each for each in groups if self._can_grow(each))
            self.nodes_may_come = bool(groups)
        self._note_version(file.metadata.resource_version)

    def _note_version(self, version: str) -> None:
        """Ends all pauses once somebody has changed the file: a group may be right now."""
        if self._file_version not in {"", version}:
            self._useless.clear()
        self._file_version = version

    def _can_grow(self, group: NodeGroup) -> bool:
        """True if a new node of a group can be asked for."""
        nodes = sum(1 for _ in self._nodes_of(group))
        if can_exclude(group, nodes):
            return True
        _log.warning("group %s has %d nodes, no more are asked for: at most %d", group.name, nodes, PASSED_HOSTS)
        return False

    async def _plan(self, waiting: Sequence[PodInfo]) -> Mapping[str, NewNodes]:
        """Returns the nodes to ask for; plans anew only if the pods, the groups or their nodes have changed."""
        starting, now = tuple(self._starting_nodes()), self._runtime.clock.now()
        self._look_at_sizes()
        await self._useless.judge(starting, waiting, self._takers, partial(look_at, self._state), now)
        counts = Counter(node.group for node in starting)
        inputs = (waiting, self._groups, counts, self._seen, self._useless.standings(now))
        if inputs != self._planned[0]:
            self._planned = (inputs, await plan_new_nodes(*inputs) if self._groups else {})
        found, by_key = self._planned[1], {pod.key: pod for pod in waiting}
        self._useless.begin_trials(
            starting, {name: [by_key[key] for key in each.pods if key in by_key] for name, each in found.items()}
        )
        return {name: each for name, each in found.items() if each.count}

    def _look_at_sizes(self) -> None:
        """Keeps the largest amounts of each group's nodes, also of nodes that are gone: the next one will be alike."""
        found: dict[str, Amounts] = {}
        for group in self._groups:
            if is_karpenters(group):
                continue
            ready = (NodeName(node.metadata.name) for node in self._nodes_of(group) if node.status.is_ready)
            sizes = [self._state.cluster.nodes[name].allocatable for name in ready if name in self._state.cluster.nodes]
            known = [size for size in (self._seen.get(group.name), *sizes) if size]
            if known:
                names = {name for size in known for name in size}
                found[group.name] = {name: max(size.get(name, 0) for size in known) for name in names}
        self._seen = found

    # The cluster as it is

    def _waiting_pods(self) -> Sequence[PodInfo]:
        state = self._state
        refused = (
            state.cluster.pods[uid]
            for uid, one in state.waiting.items()
            if one.reason is not None and uid in state.cluster.pods and not one.dependent
        )
        able = [pod for pod in refused if pod.ready_to_place]
        return self._order.first(able, len(able))[0]

    def _nodes_of(self, group: NodeGroup) -> Iterator[Node]:
        for node in self._nodes.cache.values():
            labels = node.metadata.labels
            if all(labels.get(key) == value for key, value in group.selector.items()):
                yield node

    def _starting_nodes(self) -> Iterator[NewNode]:
        for group in self._groups:
            for node in filter(self._is_starting, self._nodes_of(group)):
                name = NodeName(node.metadata.name)
                yield NewNode(node.metadata.uid, name, group.name, look_at(self._state, name))

    def _is_starting(self, node: Node) -> bool:
        """True if the node may still take its first pods."""
        taken = self._taken(NodeName(node.metadata.name))
        return node.metadata.deletion_timestamp is None and not taken and self._seconds_left(node) > 0

    def _taken(self, node: NodeName) -> Sequence[Allocation]:
        """Returns what pods have of the node's cards. A placeholder that is bound there is none of them."""
        own = f"{self._namespace}/{_NAME}"
        return [each for each in self._state.allocations.on(node) if not each.owner.startswith(own)]

    def _takers(self, node: NodeName) -> Sequence[PodInfo]:
        pods = self._state.cluster.pods
        return [pods[each.uid] for each in self._taken(node) if each.uid in pods]

    def _seconds_left(self, node: Node) -> float:
        registered = parse_time_or_zero(node.metadata.creation_timestamp or "")
        return registered + self._startup - self._runtime.clock.now()

    def _startup_times(self) -> Iterator[float]:
        for group in self._groups:
            yield from (left for node in self._nodes_of(group) if (left := self._seconds_left(node)) > 0)

    @staticmethod
    def _find_surplus(present: Sequence[NodeRequest], needed: Mapping[str, NewNodes]) -> Iterator[NodeRequest]:
        """Yields requests that are over, or not needed any more."""
        left = {name: each.count for name, each in needed.items()}
        for request in present:
            if not request.open or left.get(request.group, 0) == 0:
                yield request
            else:
                left[request.group] -= 1

    def _find_outdated(self, present: Sequence[NodeRequest], needed: Mapping[str, NewNodes]) -> Iterator[NodeRequest]:
        """Yields requests that would be others now: their group, its autoscaler or its pods have changed."""
        forms = {
            group.name: (
                self._asks_for_cards(group),
                group_version(group, needed.get(group.name, NewNodes(0)).least),
            )
            for group in self._groups
        }
        for request in present:
            cards, version = forms.get(request.group, (request.cards, ""))
            changed = bool(version and request.version) and request.version != version
            if request.open and (request.cards != cards or changed):
                yield request

    def _asks_for_cards(self, group: NodeGroup) -> bool:
        return asks_for_cards(group, has_ready=any(each.status.is_ready for each in self._nodes_of(group)))

    # Writes

    async def _create(self, asker: NodeAsker, group: NodeGroup, name: str, least: Amounts) -> bool:
        nodes = list(self._nodes_of(group))
        has_ready = any(each.status.is_ready for each in nodes)
        spec = pod_spec(group, self._options.image, map(_hostname, nodes), has_ready=has_ready, least=least)
        cards, version = self._asks_for_cards(group), group_version(group, least)
        try:
            await asker.create(group.name, name, spec, cards=cards, version=version)
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("request for a node, %s, cannot be created, tried again: %s", name, error)
            return False
        _log.info("group %s: asked for a new node by %s", group.name, name)
        return True

    async def _delete(self, asker: NodeAsker, request: NodeRequest) -> bool:
        try:
            await asker.delete(request)
        except NotFound:
            return True
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("request for a node, %s, cannot be deleted, tried again: %s", request.name, error)
            return False
        return True


def _hostname(node: Node) -> str:
    return node.metadata.labels.get(HOSTNAME_LABEL, node.metadata.name)


def _free_names(group: str, taken: set[str], count: int) -> Iterator[str]:
    number = 0
    while count > 0:
        name = f"{_NAME}{group}-{number}"
        if name not in taken:
            count -= 1
            yield name
        number += 1
