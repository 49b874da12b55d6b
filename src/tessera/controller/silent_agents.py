"""Marks the conditions of silent agents on their Nodes, and shows in the metrics whose agents are silent.

From a node that a label keeps the agent off, all that its agent said goes instead: nobody keeps it true any more. The
label of its MPS host and its Instaslice object go once no pod there has a card.

Everything comes from the informers that the controller has anyway; an event costs the work of one node. Marks are at
most one node in :data:`PAUSE`, and :data:`_AT_A_TIME` nodes at a time: when all agents fall silent at once, after a
partition or without their DaemonSet, the API server sees a bounded number of writes, a slow one fewer, and those that
speak again meanwhile are left out.

A mark is written as the agent's own field manager, with the resourceVersion of the Node that was judged: an agent that
speaks at that moment wins. See docs/decisions/silent-agents.md.

When the conditions of a silent agent become ``Unknown``: an agent that is away for seconds, as in an update of its
DaemonSet, changes nothing: its conditions are marked after :data:`GRACE` of silence, one time only. The agent takes
them over when it returns.

An agent may speak although Kubernetes reports it as dead: kubelet has failed and the agent has not, or it writes and
crashes again and again. Then it overwrites the mark. The next one waits twice as long each time, up to :data:`LONGEST`,
so that two writers who disagree do not keep an API server busy.

Times are monotonic seconds of this process: clocks of nodes are not compared. A new leader counts from its start.
"""

import asyncio
import heapq
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.api.instaslice import INSTASLICES, Instaslice
from tessera.api.names import INSTASLICE_NAMESPACE, MPS_HOST_LABEL, OWN_DOMAIN, QUOTA_RESOURCE
from tessera.api.nodes.node_cards import brings_agent, keep_off_label
from tessera.api.nodes.node_marks import (
    AGENT_CONDITIONS,
    CARDS_MANAGER,
    MARKED_BY_MANAGER,
    PROVISIONED,
    REMOVAL_ANNOTATION,
    is_agent,
    is_marked_silent,
    mark_silent,
)
from tessera.api.nodes.silence import SilentNode, find_silence, has_traces
from tessera.api.slice_requests import requests_gpus
from tessera.clock import Clock, rfc3339, until_set
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, NotFound
from tessera.kube.informer import EventKind, Informer, WatchEvent, read_nothing, read_parts
from tessera.kube.resources import NODES, Condition, Node, Pod

#: Seconds of silence after which conditions are marked. Kubernetes gives kubelet 40 s before its Ready becomes Unknown
#: (``--node-monitor-grace-period``; 50 s since 1.32). A container that is started again is Ready within 20 s: 10 s of
#: kubelet's first back-off, the probes' periods of 5 and 10 s. And a minute is the most that a reader shall be wrong.
GRACE = 40.0
#: The most seconds between two marks of one silence.
LONGEST = 3600.0


class AgentObserved(msgspec.Struct, frozen=True):
    """The state of a node's agent.

    Attributes:
        node: the node's name.
        silent: True if the agent should speak and does not.
        marked: True if nothing is left to mark.
        at: monotonic seconds.
    """

    node: str
    silent: bool
    marked: bool
    at: float


class MarkWritten(msgspec.Struct, frozen=True):
    """The conditions of a node's agent were marked."""

    node: str


class MarkFailed(msgspec.Struct, frozen=True):
    """They could not be marked; to be tried again at ``again``, monotonic seconds."""

    node: str
    again: float


class _Episode(msgspec.Struct):
    """A silence of one agent.

    Attributes:
        marks: the marks that were written.
        due: time of the next one; None while nothing is left to mark.
    """

    marks: int = 0
    due: float | None = None


class SilenceMarks:
    """The silent agents, and the nodes whose conditions are due."""

    def __init__(self) -> None:
        #: By node, the present silence; a node whose agent speaks has none.
        self._episodes: dict[str, _Episode] = {}
        #: Times and nodes; each due node has an entry with its time, other entries are outdated.
        self._queue: list[tuple[float, str]] = []

    def handle(self, event: AgentObserved | MarkWritten | MarkFailed) -> None:
        """Takes an event in."""
        match event:
            case AgentObserved(silent=False):
                self._episodes.pop(event.node, None)
            case AgentObserved():
                self._observe(event)
            case MarkWritten(node):
                if node in self._episodes:
                    self._episodes[node].marks += 1
                    self._episodes[node].due = None
            case MarkFailed(node, again):
                if node in self._episodes:
                    self._schedule(node, again)

    def _observe(self, event: AgentObserved) -> None:
        episode = self._episodes.setdefault(event.node, _Episode())
        if event.marked:
            episode.due = None
        elif episode.due is None:
            self._schedule(event.node, event.at + min(LONGEST, GRACE * 2.0 ** min(episode.marks, 16)))

    def _schedule(self, node: str, due: float) -> None:
        self._episodes[node].due = due
        heapq.heappush(self._queue, (due, node))

    @property
    def next_due(self) -> float | None:
        """Time of the next mark; None if none is due while nothing changes."""
        while self._queue and not self._is_due(*self._queue[0]):
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def _is_due(self, due: float, node: str) -> bool:
        return node in self._episodes and self._episodes[node].due == due

    def take_due(self, now: float) -> str | None:
        """The node to mark now; None if none is due. The caller answers by :class:`MarkWritten` or `MarkFailed`."""
        due = self.next_due
        if due is None or due > now:
            return None
        node = heapq.heappop(self._queue)[1]
        self._episodes[node].due = None
        return node


#: Most nodes with a series of their own in the controller's metric of nodes whose agent does not answer. An alert for
#: each of more tells nobody more; the others are one series, `other`.
SILENT_NODES_SHOWN = 100

_log = logging.getLogger(__name__)

#: Least seconds between the marks of two nodes: 5,000 nodes that fall silent together are marked within two minutes, by
#: 100 to 150 writes a second. 5,000 kubelets alone renew 500 leases a second.
PAUSE = 0.02
#: Nodes that are written at the same time.
_AT_A_TIME = 10
#: Seconds after a write that failed.
_RETRY = 5.0

_annotations = read_parts(annotations=(OWN_DOMAIN,))


class SilentAgents:
    """Follows the agents, and marks the conditions of the silent ones.

    Args:
        client: the API server; its identity needs ``patch`` on nodes/status.
        nodes: all nodes.
        pods: all pods.
        objects: all Instaslice objects.
        clock: the time.

    Attributes:
        silent: the nodes whose agents should answer and do not, by name.
    """

    def __init__(
        self,
        client: Client,
        *,
        nodes: Informer[Node],
        pods: Informer[Pod],
        objects: Informer[Instaslice],
        clock: Clock,
    ) -> None:
        self.silent: dict[str, SilentNode] = {}
        self._client = client
        self._clock = clock
        self._nodes = nodes
        self._marks = SilenceMarks()
        self._wake = asyncio.Event()
        #: False until everything is listed: before that every node seems to lack its agent.
        self._listed = False
        #: By node, the pods of its agents by UID.
        self._agents: dict[str, dict[str, Pod]] = {}
        self._pods = pods
        self._objects = objects
        #: Nodes on which something waits for the end of the pods that have cards there.
        self._held: set[str] = set()
        #: True once a node was held; before, no pods but agents are followed.
        self._follows_holders = False
        nodes.add_handler(lambda event: self._judge(event.object.metadata.name), reads=_read_node)
        pods.add_handler(self._agent_changed, only=is_agent)
        objects.add_handler(lambda event: self._judge(event.object.metadata.name), reads=read_nothing)

    def _agent_changed(self, event: WatchEvent[Pod]) -> None:
        pod = event.object
        node = pod.spec.node_name
        if not node:
            return
        if event.kind is not EventKind.DELETED:
            self._agents.setdefault(node, {})[pod.metadata.uid] = pod
        elif node in self._agents:
            self._agents[node].pop(pod.metadata.uid, None)
            if not self._agents[node]:
                del self._agents[node]
        self._judge(node)

    def _object_of(self, node: str) -> Instaslice | None:
        return self._objects.cache.get(f"{INSTASLICE_NAMESPACE}/{node}")

    def _is_held(self, node: str) -> bool:
        """True if a pod has cards on a node and has not ended. The end of the last one lets the node be cleared."""
        pods = (each for each in self._pods.cache.values() if each.spec.node_name == node)
        held = any(each.status.phase not in {"Succeeded", "Failed"} and requests_gpus(each) for each in pods)
        (self._held.add if held else self._held.discard)(node)
        if held and not self._follows_holders:
            self._follows_holders = True
            self._pods.add_handler(self._holder_changed)
        return held

    def _holder_changed(self, event: WatchEvent[Pod]) -> None:
        pod = event.object
        ended = event.kind is EventKind.DELETED or pod.status.phase in {"Succeeded", "Failed"}
        if ended and pod.spec.node_name in self._held:
            self._judge(pod.spec.node_name)

    def _judge(self, name: str) -> None:
        """Finds out whether a node's agent is silent now."""
        if not self._listed:
            return
        node = self._nodes.cache.get(name)
        agents = list(self._agents.get(name, {}).values())
        found = find_silence(name, node, agents, has_object=self._object_of(name) is not None)
        if found is None:
            self.silent.pop(name, None)
        else:
            self.silent[name] = found
        kept_off = node is not None and not agents and _is_kept_off(node)
        if node is not None and kept_off:
            marked = not self._is_left_over(node)
        else:
            marked = node is None or not any(_unmarked(node, AGENT_CONDITIONS | {PROVISIONED}))
        silent = kept_off or (found is not None and not found.speaks)
        self._marks.handle(AgentObserved(name, silent, marked, self._clock.monotonic()))
        self._wake.set()

    async def run(self) -> None:
        """Marks until cancelled; begins once the informers have listed everything."""
        self._listed = True
        objects = (each.metadata.name for each in self._objects.cache.values())
        for name in {*self._nodes.cache.keys(), *self._agents, *objects}:
            self._judge(name)
        slots = asyncio.Semaphore(_AT_A_TIME)
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                due = self._marks.take_due(self._clock.monotonic())
                if due is None:
                    at = self._marks.next_due
                    await until_set(self._wake, None if at is None else at - self._clock.monotonic())
                    continue
                await slots.acquire()
                group.create_task(self._mark(due)).add_done_callback(lambda _: slots.release())
                await self._clock.sleep(PAUSE)

    async def _mark(self, name: str) -> None:
        node, silence = self._nodes.cache.get(name), self.silent.get(name)
        kept_off = node is not None and name not in self._agents and _is_kept_off(node)
        if node is None or (silence is None and not kept_off):
            return
        try:
            if silence is None:
                await self._clear(node)
            else:
                for manager, types in MARKED_BY_MANAGER.items():
                    if any(_unmarked(node, types)):
                        node = await self._write(node, silence, manager, types)
        except NotFound:
            return
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("conditions of the silent agent of node %s cannot be set, tried again: %s", name, error)
            self._marks.handle(MarkFailed(name, self._clock.monotonic() + _RETRY))
            return
        why = f"are Unknown: {silence.reason}" if silence is not None else "are gone: a label keeps the agent off"
        _log.info("node %s: conditions of its agent %s", name, why)
        self._marks.handle(MarkWritten(name))

    def _is_left_over(self, node: Node) -> bool:
        """True if something of an agent is left on a node that it is kept off, and may go now."""
        name = node.metadata.name
        later = MPS_HOST_LABEL in node.metadata.labels or QUOTA_RESOURCE in node.status.capacity
        later = later or self._object_of(name) is not None
        return has_traces(node) or (later and not self._is_held(name))

    async def _clear(self, node: Node) -> None:
        """Removes all that an agent wrote, as its field manager."""
        name, labels = node.metadata.name, node.metadata.labels
        for manager, types in MARKED_BY_MANAGER.items():
            if any(each.type in types for each in node.status.conditions):
                node = await self._apply_status(node, manager, {})
        held, item = self._is_held(name), self._object_of(name)
        stays = {"labels": {MPS_HOST_LABEL: labels[MPS_HOST_LABEL]}} if held and MPS_HOST_LABEL in labels else {}
        body = {"metadata": {**stays, **_judged(node)}}
        await self._client.with_field_manager(CARDS_MANAGER).apply(NODES, name, body)
        if not held and QUOTA_RESOURCE in {**node.status.capacity, **node.status.allocatable}:
            gone = dict.fromkeys([QUOTA_RESOURCE])
            patch = {"status": {"capacity": gone, "allocatable": gone}}
            await self._client.merge_patch(NODES, name, patch, subresource="status")
        if not held and item is not None:
            await self._client.delete(INSTASLICES, name, INSTASLICE_NAMESPACE, uid=item.metadata.uid)

    async def _write(self, node: Node, silence: SilentNode, manager: str, types: Iterable[str]) -> Node:
        now = rfc3339(self._clock.now())
        shown = [each for each in node.status.conditions if each.type in types]
        listed = [mark_silent(each, silence.reason, node.metadata.name, now) for each in shown]
        return await self._apply_status(node, manager, {"conditions": listed})

    async def _apply_status(self, node: Node, manager: str, status: Mapping[str, Any]) -> Node:
        """Applies a status as an agent's field manager, if the Node is still the one that was judged."""
        writer = self._client.with_field_manager(manager)
        body = {"metadata": _judged(node), "status": status}
        return await writer.apply(NODES, node.metadata.name, body, subresource="status")


def _read_node(node: Node) -> object:
    """What a judgement reads of a Node: it is made anew once this changes."""
    labels, status = node.metadata.labels, node.status
    words = brings_agent(labels), keep_off_label(labels), MPS_HOST_LABEL in labels, QUOTA_RESOURCE in status.capacity
    return words, _annotations(node), status.conditions


def _judged(node: Node) -> dict[str, str]:
    return {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version}


def _is_kept_off(node: Node) -> bool:
    return bool(keep_off_label(node.metadata.labels)) and REMOVAL_ANNOTATION not in node.metadata.annotations


def _unmarked(node: Node, types: Iterable[str]) -> Iterator[Condition]:
    return (
        each
        for each in node.status.conditions
        if each.type in types
        and not is_marked_silent(each)
        and not (each.type == PROVISIONED and each.status != "True")  # its deadline is the controller's own finding
    )


class SilenceCollector(Collector):
    """Shows the silent nodes of the leading replica; another replica shows none.

    Args:
        silent: returns them by name.
    """

    def __init__(self, silent: Callable[[], Mapping[str, SilentNode]]) -> None:
        self._silent = silent

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the family."""
        family = GaugeMetricFamily(
            "tessera_silent_nodes",
            "Nodes whose agent should answer and does not, by reason: 1 for each; those beyond a bound as node other.",
            labels=["node", "reason"],
        )
        found = self._silent()
        for name, each in islice(found.items(), int(SILENT_NODES_SHOWN)):
            family.add_metric([name, each.kind.value], 1)
        if len(found) > SILENT_NODES_SHOWN:
            family.add_metric(["other", "other"], len(found) - SILENT_NODES_SHOWN)
        yield family
