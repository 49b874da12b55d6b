"""Signals for scaling as a satellite of the controller: keeps them, and shows them as metrics and as a page.

Nothing is written to the API server. A round every :data:`PERIOD` seconds costs a bounded number of steps; without
services it costs none.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from tessera.api.names import PodUid
from tessera.clock import Clock
from tessera.controller.leadership.satellite import Process, Task, Term
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.resources import Pod
from tessera.kube.watch.informer import EventKind, Informer, WatchEvent
from tessera.signals.page import SIGNALS, SIGNALS_PATH, SignalsPage
from tessera.signals.ready_times import ReadyTimes, image_of
from tessera.signals.services import ServiceKey, ServiceTable

#: Seconds between two rounds: a HorizontalPodAutoscaler asks as often.
PERIOD = 15.0
#: Kinds of owners whose pods end; they have no replicas to scale.
_ENDING = frozenset({"Job", "Node"})


class SignalsTask:
    """Keeps the signals of one term.

    Args:
        slicer: the state machine.
        pods: all pods; run by the caller.
        clock: the time.

    Attributes:
        page: what is known.
        ready_times: how long pods take to be ready.
    """

    def __init__(self, slicer: Slicer, pods: Informer[Pod], clock: Clock) -> None:
        self._slicer = slicer
        self._clock = clock
        self._table = ServiceTable(slicer)
        #: By pod that asks for cards, its service.
        self._owners: dict[PodUid, ServiceKey] = {}
        self.page = SignalsPage(leads=True)
        self.ready_times = ReadyTimes()
        pods.add_handler(self.observe)

    def observe(self, event: WatchEvent[Pod]) -> None:
        """Takes in a change of a pod."""
        pod, uid = event.object, PodUid(event.object.metadata.uid)
        if event.kind is EventKind.DELETED:
            self._owners.pop(uid, None)
            self.ready_times.drop(pod)
            return
        self.ready_times.observe(pod)
        kind, _, name = pod.workload.partition("/")
        if name and kind not in _ENDING and image_of(pod):
            self._owners[uid] = ServiceKey(pod.metadata.namespace, kind, name)

    async def run(self) -> None:
        """Keeps them until cancelled."""
        while True:
            if self._slicer.is_caught_up:
                self.page = self._table.refresh(self._owners, self._clock.now())
            await self._clock.sleep(PERIOD)


class SignalsCollector(Collector):
    """Shows the signals of the leading replica; another replica shows none.

    Args:
        task: returns the present term's; None while another replica leads.
    """

    def __init__(self, task: Callable[[], SignalsTask | None]) -> None:
        self._task = task

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yields the families."""
        task = self._task()
        page = SignalsPage() if task is None else task.page
        for name, text in SIGNALS.items():
            family = GaugeMetricFamily(name, text, labels=["namespace", "kind", "name"])
            for each in page.services:
                if name in each.values:
                    family.add_metric([each.namespace, each.kind, each.name], each.values[name])
            yield family
        yield GaugeMetricFamily("tessera_services_cut", "Services without signals, beyond the limit.", page.cut)
        ready = GaugeMetricFamily(
            "tessera_image_ready_seconds",
            "Time from a pod's node to Ready, of the last 50 starts of its image.",
            labels=["image", "quantile"],
        )
        for image, (half, most) in ({} if task is None else task.ready_times.quantiles()).items():
            ready.add_metric([image, "0.5"], half)
            ready.add_metric([image, "0.9"], most)
        yield ready


@dataclass(frozen=True, kw_only=True)
class SignalsSatellite:
    """Shows by what services can be scaled."""

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Callable[[Term], None]]:
        """See :class:`~tessera.controller.leadership.satellite.Satellite`."""
        #: The task of the present term; none while another replica leads.
        present: list[SignalsTask] = []

        def page() -> bytes:
            return msgspec.json.encode(present[-1].page if present else SignalsPage())

        def join(term: Term) -> None:
            task = SignalsTask(term.slicer, term.pods, term.runtime.clock)
            present.append(task)
            term.at_end.callback(present.clear)
            term.tasks.append(Task(name="signals for scaling", run=task.run))

        process.pages[SIGNALS_PATH] = page
        process.registry.register(SignalsCollector(lambda: present[-1] if present else None))
        yield join
