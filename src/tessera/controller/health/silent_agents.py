"""Marks the conditions of silent agents on their Nodes, and shows in the metrics whose agents are silent.

Everything comes from the informers that the controller has anyway; an event costs the work of one node. Marks are at
most one node in :data:`PAUSE`, and :data:`_AT_A_TIME` nodes at a time: when all agents fall silent at once, after a
partition or without their DaemonSet, the API server sees a bounded number of writes, a slow one fewer, and those that
speak again meanwhile are left out.

A mark is written as the agent's own field manager, with the resourceVersion of the Node that was judged: an agent that
speaks at that moment wins. See docs/decisions/silent-agents.md.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.api.instaslice import Instaslice
from tessera.api.nodes.agent_pod import is_agent
from tessera.api.nodes.conditions import (
    AGENT_CONDITIONS,
    MARKED_BY_MANAGER,
    PROVISIONED,
    is_marked_silent,
    mark_silent,
)
from tessera.api.nodes.silence import SilentNode, find_silence
from tessera.clock import Clock, rfc3339
from tessera.controller.health.silence_marks import AgentObserved, MarkFailed, MarkWritten, SilenceMarks
from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError, NotFound
from tessera.kube.resources import NODES, Condition, Node, Pod
from tessera.kube.watch.cache import EventKind, WatchEvent
from tessera.kube.watch.informer import Informer
from tessera.limits.planning import SILENT_NODES_SHOWN

_log = logging.getLogger(__name__)

#: Least seconds between the marks of two nodes: 5,000 nodes that fall silent together are marked within two minutes, by
#: 100 to 150 writes a second. 5,000 kubelets alone renew 500 leases a second.
PAUSE = 0.02
#: Nodes that are written at the same time.
_AT_A_TIME = 10
#: Seconds after a write that failed.
_RETRY = 5.0


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
        #: Nodes with an Instaslice object.
        self._objects: set[str] = set()
        nodes.add_handler(lambda event: self._judge(event.object.metadata.name))
        pods.add_handler(self._pod_changed)
        objects.add_handler(self._object_changed)

    def _pod_changed(self, event: WatchEvent[Pod]) -> None:
        pod = event.object
        if not pod.spec.node_name or not is_agent(pod):
            return
        node = pod.spec.node_name
        if event.kind is not EventKind.DELETED:
            self._agents.setdefault(node, {})[pod.metadata.uid] = pod
        elif node in self._agents:
            self._agents[node].pop(pod.metadata.uid, None)
            if not self._agents[node]:
                del self._agents[node]
        self._judge(node)

    def _object_changed(self, event: WatchEvent[Instaslice]) -> None:
        name = event.object.metadata.name
        (self._objects.discard if event.kind is EventKind.DELETED else self._objects.add)(name)
        self._judge(name)

    def _judge(self, name: str) -> None:
        """Finds out whether a node's agent is silent now."""
        if not self._listed:
            return
        node = self._nodes.cache.get(name)
        agents = list(self._agents.get(name, {}).values())
        found = find_silence(name, node, agents, has_object=name in self._objects)
        if found is None:
            self.silent.pop(name, None)
        else:
            self.silent[name] = found
        marked = node is None or not any(_unmarked(node, AGENT_CONDITIONS | {PROVISIONED}))
        silent = found is not None and not found.speaks
        self._marks.handle(AgentObserved(name, silent, marked, self._clock.monotonic()))
        self._wake.set()

    async def run(self) -> None:
        """Marks until cancelled; begins once the informers have listed everything."""
        self._listed = True
        for name in {*self._nodes.cache.keys(), *self._agents, *self._objects}:
            self._judge(name)
        slots = asyncio.Semaphore(_AT_A_TIME)
        async with asyncio.TaskGroup() as group:
            while True:
                self._wake.clear()
                due = self._marks.take_due(self._clock.monotonic())
                if due is None:
                    await self._wait(self._marks.next_due)
                    continue
                await slots.acquire()
                group.create_task(self._mark(due)).add_done_callback(lambda _: slots.release())
                await self._clock.sleep(PAUSE)

    async def _wait(self, due: float | None) -> None:
        """Returns at a change, or when the next mark is due."""
        timer = None
        if due is not None:
            pause = max(0.0, due - self._clock.monotonic())
            timer = asyncio.get_running_loop().call_later(pause, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _mark(self, name: str) -> None:
        node, silence = self._nodes.cache.get(name), self.silent.get(name)
        if node is None or silence is None:
            return
        try:
            for manager, types in MARKED_BY_MANAGER.items():
                if any(_unmarked(node, types)):
                    node = await self._write(node, silence, manager, types)
        except NotFound:
            return
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("conditions of the silent agent of node %s cannot be set, tried again: %s", name, error)
            self._marks.handle(MarkFailed(name, self._clock.monotonic() + _RETRY))
            return
        _log.info("node %s: conditions of its agent are Unknown: %s", name, silence.reason)
        self._marks.handle(MarkWritten(name))

    async def _write(self, node: Node, silence: SilentNode, manager: str, types: Iterable[str]) -> Node:
        now = rfc3339(self._clock.now())
        shown = [each for each in node.status.conditions if each.type in types]
        listed = [mark_silent(each, silence.reason, node.metadata.name, now) for each in shown]
        body = {
            "metadata": {"uid": node.metadata.uid, "resourceVersion": node.metadata.resource_version},
            "status": {"conditions": listed},
        }
        writer = self._client.with_field_manager(manager)
        return await writer.apply(NODES, node.metadata.name, body, subresource="status")


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
