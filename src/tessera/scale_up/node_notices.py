"""Events on waiting pods: that new nodes were asked for, and that none is asked for since the last ones did not help.

The events about pauses are their only record: a new leader reads them (:mod:`tessera.api.nodes.node_groups`). It takes
events under its own name in the pod's namespace: whoever else may write such events can cause pauses in that namespace
only. An API server keeps an event for an hour, so they are recorded again before that, as long as the pause lasts.
"""

import logging
from collections.abc import Mapping, Sequence

from tessera.api.names import PodUid
from tessera.api.nodes.node_groups import NEW_NODE_REASON, NO_HELP_REASON, Pause, pause_text, read_pause
from tessera.controller.objects.pod_info import PodInfo
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import EVENTS, PODS
from tessera.scale_up.new_nodes import NewNodes
from tessera.scale_up.useless_nodes import UselessNodes, request_kind
from tessera.text import count_noun

_log = logging.getLogger(__name__)

#: Seconds after which the event about a pause is recorded again. It is less than the hour for which an API server
#: keeps an event.
_AGAIN = 2_700.0


class NodeNotices:
    """Tells pods about new nodes.

    Args:
        runtime: access to the cluster; its identity needs list of events.
        events: records the events.

    Attributes:
        due: when a pause is told again, seconds since 1970; None if none is.
    """

    def __init__(self, runtime: KubeRuntime, events: EventRecorder) -> None:
        self.due: float | None = None
        self._is_restored = False
        self._runtime, self._events = runtime, events
        #: Keys of waiting pods that know of the request for nodes.
        self._asked: set[str] = set()
        #: By pod and group, the pause that was told, and when.
        self._paused: dict[tuple[PodUid, str], tuple[Pause, float]] = {}

    async def restore(self, useless: UselessNodes, pods: Mapping[PodUid, PodInfo]) -> bool:
        """Takes over the pauses that a former leader told, once; returns False if it has to be tried again."""
        if self._is_restored:
            return True
        try:
            found = await self._runtime.client.list(EVENTS, field_selector=f"reason={NO_HELP_REASON}")
        except (ApiError, ConnectionError, TimeoutError) as error:
            _log.warning("events about new nodes cannot be listed, tried again: %s", error)
            return False
        for event in found.items:
            pod = pods.get(PodUid(event.involved_object.uid))
            if pod is None or (event.metadata.namespace, event.reporting_component) != (
                pod.namespace,
                self._events.component,
            ):
                continue
            told = read_pause(event.message, self._runtime.clock.now())
            if told is not None:
                useless.add(told[0], request_kind(pod), told[1])
        self._is_restored = True
        return True

    def tell_requests(self, waiting: Sequence[PodInfo], needed: Mapping[str, NewNodes]) -> None:
        """Records an event on each pod for which nodes are asked for, once."""
        asked = {key: (name, each.count) for name, each in needed.items() for key in each.pods}
        self._asked &= asked.keys()
        for pod in waiting if asked.keys() - self._asked else ():
            if pod.key not in asked or pod.key in self._asked:
                continue
            name, count = asked[pod.key]
            text = (
                f"asked the autoscaler for {count_noun(count, 'new node')} of group {name}; the pod waits for"
                f" {'cards' if pod.devices else 'slices'}, and the present nodes have no room for it"
            )
            self._record(pod, NEW_NODE_REASON, text)
            self._asked.add(pod.key)

    def tell_pauses(self, waiting: Sequence[PodInfo], useless: UselessNodes) -> None:
        """Records an event on each pod for which no node is asked for, now and again while its pause lasts."""
        now = self._runtime.clock.now()
        before, self._paused = self._paused, {}
        for pod, group, pause in useless.paused(waiting, now):
            told = before.get((pod.uid, group))
            if told is None or told[0] != pause or now >= told[1] + _AGAIN:
                self._record(pod, NO_HELP_REASON, pause_text(group, pause))
                told = (pause, now)
            self._paused[pod.uid, group] = told
        self.due = min((at + _AGAIN for _, at in self._paused.values()), default=None)

    def _record(self, pod: PodInfo, reason: str, text: str) -> None:
        self._events.record(make_reference(PODS, pod.name, pod.namespace, pod.uid), reason, text)
