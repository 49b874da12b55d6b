"""The queue as a satellite of the controller: follows leases, forecasts starts, tells pods, and keeps the history.

A round runs every :data:`PERIOD`, or later where forecasts are expensive: at most a twentieth of the time is spent on
them. It works in pieces, and gives way to decisions after each. Between two rounds the page is brought up to date for
its readers, for as much of the time again: a tenant can have it read without end. The history is one ConfigMap, written
at most once in :data:`WRITE_PERIOD`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tessera.api.names import SLICE_PROMISED_CONDITION, PodUid
from tessera.clock import rfc3339
from tessera.controller.objects.pod_info import FINISHED
from tessera.controller.satellite import Process, Task, Term
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.events import EndsExpected
from tessera.forecast.calibration import Calibration
from tessera.forecast.history_text import HISTORY_KEY, HISTORY_NAME, History, decode_history, encode_history
from tessera.forecast.lives import LifeHistory
from tessera.forecast.past_times import StartTimes
from tessera.forecast.queue.forecaster import Forecaster
from tessera.forecast.queue.held_back import read_held_back
from tessera.forecast.queue.leases import JobReader
from tessera.forecast.queue.published_reasons import PROMISED, Announcement, Announcer
from tessera.forecast.queue_page import QUEUE_PATH, QueuePage, aged, encode_page
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.errors import ApiError
from tessera.kube.event_recorder import EventRecorder, make_reference
from tessera.kube.informer import Informer
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.persistent_config_map import PersistentConfigMap
from tessera.kube.resources import CONFIGMAPS, PODS, Node, Pod
from tessera.kube.retries import OutageLog
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

_log = logging.getLogger(__name__)

#: Least seconds between two forecasts, and share of the time that they may take; the page's updates have the same.
PERIOD, _SHARE = 15.0, 0.05
#: Seconds between two looks if the slicer has taken in all nodes and pods.
_CATCH_UP = 0.5
#: Seconds between two writes of the history.
WRITE_PERIOD = 300.0
#: Field manager of the condition; it owns no other.
MANAGER = "tessera-queue"
#: Conditions that are written at the same time.
_WRITES_AT_ONCE = 8


class QueueTask:
    """The controller's queue.

    Args:
        runtime: access to the cluster; ``may_act`` is True while this replica leads.
        slicer: the state machine; read, and told when leases are expected to end.
        pods: all pods; run by the caller, and passed to the slicer before.
        nodes: all nodes; run by the caller.
        events: records Events on pods.
        namespace: namespace of the ConfigMap, the deployment's.
    """

    def __init__(
        self,
        runtime: KubeRuntime,
        slicer: Slicer,
        *,
        pods: Informer[Pod],
        nodes: Informer[Node],
        events: EventRecorder,
        namespace: str,
    ) -> None:
        self._client = runtime.client
        self._clock = runtime.clock
        self._slicer = slicer
        self._pods = pods
        self._nodes = nodes
        self._events = events
        self._namespace = namespace
        self._announcer = Announcer()
        self._outages = OutageLog(_log, "conditions of waiting pods", runtime.clock)
        self._jobs = JobReader(runtime.client)
        self._history = self._new_history()
        self._forecaster = Forecaster(self._history)
        #: The page as it was brought up to date last, of which round, and when it may be next.
        self._page, self._page_of, self._page_due = QueuePage(), self._forecaster.current, 0.0
        self._written = 0
        #: Pods that have changed since the last round: how each was at first, and its slices; and how it is now. Only
        #: the end of a lease counts at once: the pod itself has the other times.
        self._changed: dict[PodUid, tuple[Pod, Sequence[str]]] = {}
        self._last: dict[PodUid, Pod] = {}
        #: Pods whose condition says that they wait; those whose write failed come last.
        self._told: dict[PodUid, None] = {}
        #: Pods that wait for what another asks for first, as of the last round.
        self._followers: set[PodUid] = set()
        self._map = PersistentConfigMap(
            runtime.client,
            runtime.clock,
            namespace=namespace,
            name=HISTORY_NAME,
            data=self._data,
            rng=runtime.rng,
            may_act=runtime.may_act,
        )

    @property
    def page(self) -> QueuePage:
        """The last forecast, brought up to date; of a long queue, as it was a second or two before."""
        current, began = self._forecaster.current, self._clock.monotonic()
        if current is not self._page_of or began >= self._page_due:
            self._page, self._page_of = current.read(self._slicer.state), current
            ended = self._clock.monotonic()
            self._page_due = ended + (ended - began) / _SHARE
        return self._page

    def follow(self) -> None:
        """Subscribes to the pods; called after the slicer has."""
        self._pods.add_handler(self._pod_changed)

    async def write(self) -> None:
        """Writes the history until cancelled."""
        await self._map.run()

    async def run(self) -> None:
        """Forecasts until cancelled; begins once everything is listed."""
        self._restore(await self._map.load())
        due = self._clock.monotonic() + WRITE_PERIOD
        while True:
            began = self._clock.monotonic()
            await self._round()
            now = self._clock.monotonic()
            if now >= due and self._history.lives.changes != self._written:
                self._written = self._history.lives.changes
                self._map.mark_changed()
                due = now + WRITE_PERIOD
            await self._clock.sleep(max(PERIOD, (now - began) / _SHARE))

    async def _round(self) -> None:
        self._track_changed(list(self._changed))
        jobs = self._forecaster.jobs
        await self._jobs.read(jobs.due(self._forecaster.tracker.started_of_jobs()), jobs)
        while not self._slicer.is_caught_up:  # the page stays as it is: waiting pods may be missing in the state
            await self._clock.sleep(_CATCH_UP)
        now = self._clock.now()
        begun = self._forecaster.begin(self._slicer.state, now)
        for _ in self._forecaster.expect_ends(begun):
            await asyncio.sleep(0)
        if ends := self._forecaster.ends.pop():
            self._slicer.handle(EndsExpected(ends))
        asking = self._slicer.kinds.having["followers"]
        followers = sorted((each for kind in asking for each in kind.followers()), key=lambda found: found[0].created)
        self._followers = {pod.uid for pod, _ in followers}
        for _ in self._forecaster.forecast(begun, read_held_back(self._nodes.cache.values()), followers):
            await asyncio.sleep(0)
        due = [*self._announcer.choose(self.page.pods, now), *self._ended_waits()]
        gate = asyncio.Semaphore(_WRITES_AT_ONCE)
        await asyncio.gather(*(self._announce(each, gate) for each in due))

    # Telling pods

    def _ended_waits(self) -> list[Announcement]:
        """Pods that have their slices, while their condition says that they wait."""
        state = self._slicer.state
        found: list[Announcement] = []
        for uid in list(self._told):
            pod = state.cluster.pods.get(uid)
            if pod is None:
                self._told.pop(uid, None)
            elif not (pod.gated or uid in state.waiting or uid in self._followers) and len(found) < _WRITES_AT_ONCE * 8:
                text, now = "it has its slices", self._clock.now()
                found.append(
                    Announcement(uid, pod.namespace, pod.name, waits=False, reason=PROMISED, text=text, since=now)
                )
        return found

    async def _announce(self, one: Announcement, gate: asyncio.Semaphore) -> None:
        message = one_line(one.text, CONDITION_MESSAGE)
        if one.waits and self._says_already(one, message):
            self._told[one.uid] = None
            return
        condition = {
            "type": SLICE_PROMISED_CONDITION,
            "status": "False" if one.waits else "True",
            "reason": one.reason,
            "message": message,
            "lastProbeTime": rfc3339(self._clock.now()),
            "lastTransitionTime": rfc3339(one.since),
        }
        body = {"metadata": {"uid": one.uid}, "status": {"conditions": [condition]}}
        async with gate:
            try:
                await self._client.with_field_manager(MANAGER).apply(
                    PODS, one.name, body, one.namespace, subresource="status"
                )
            except (ApiError, OSError) as error:
                if not self._outages.note_failure(error):
                    _log.info("condition of pod %s/%s: %s", one.namespace, one.name, error)
                self._announcer.note_failure(one.uid)
                if not one.waits and one.uid in self._told:
                    self._told[one.uid] = self._told.pop(one.uid)
                return
        self._outages.note_answer()
        if one.waits:
            self._told[one.uid] = None
        else:
            self._told.pop(one.uid, None)
        if one.event:
            about = make_reference(PODS, one.name, one.namespace, one.uid)
            self._events.record(about, "SliceForecast", message, action="Placing")

    def _says_already(self, one: Announcement, message: str) -> bool:
        """True if the pod has this condition from before, as after a change of the leader."""
        pod = self._pods.cache.get(f"{one.namespace}/{one.name}")
        conditions = () if pod is None else pod.status.conditions
        return any(
            (each.type, each.status, each.message) == (SLICE_PROMISED_CONDITION, "False", message)
            for each in conditions
        )

    # Following leases

    def _pod_changed(self, event: WatchEvent[Pod]) -> None:
        uid = PodUid(event.object.metadata.uid)
        if event.kind is not EventKind.DELETED and (used := self._used(uid)):
            first, _ = self._changed.get(uid, (event.object, used))
            self._changed[uid] = (first, used)
            self._last[uid] = event.object
        if event.kind is EventKind.DELETED or event.object.status.phase in FINISHED:
            self._track_changed([uid])
        if event.kind is EventKind.DELETED:
            self._forecaster.tracker.drop(uid, self._clock.now())
            self._told.pop(uid, None)

    def _track_changed(self, pods: Iterable[PodUid]) -> None:
        for uid in pods:
            if uid in self._changed:
                first, used = self._changed.pop(uid)
                self._track(first, used)
                self._track(self._last.pop(uid), used)

    def _used(self, uid: PodUid) -> Sequence[str]:
        """Returns the slices, cards or shares of a pod."""
        known = self._slicer.state.cluster.pods.get(uid)
        if known is None:
            return ()
        return known.profiles or (known.devices if self._slicer.state.devices.used else ())

    def _track(self, pod: Pod, used: Sequence[str]) -> None:
        self._forecaster.tracker.observe(pod, used, self._clock.now())
        if any((each.type, each.status) == (SLICE_PROMISED_CONDITION, "False") for each in pod.status.conditions):
            self._told[PodUid(pod.metadata.uid)] = None

    # The history

    def _new_history(self) -> History:
        return History(LifeHistory(self._clock.now()), StartTimes(), Calibration())

    def _restore(self, data: Mapping[str, str]) -> None:
        text = data.get(HISTORY_KEY, "")
        if text:
            try:
                self._history = decode_history(text)
            except ValueError as error:
                message = f"the history of leases cannot be read and begins anew: {one_line(str(error))}"
                _log.warning("ConfigMap %s/%s: %s", self._namespace, HISTORY_NAME, message)
                about = make_reference(CONFIGMAPS, HISTORY_NAME, self._namespace)
                self._events.record(about, "RecordsUnreadable", message, type="Warning")
        self._forecaster = Forecaster(self._history)
        for pod in list(self._pods.cache.values()):
            if used := self._used(PodUid(pod.metadata.uid)):
                self._track(pod, used)

    def _data(self) -> dict[str, str]:
        return {HISTORY_KEY: encode_history(self._history)}


@dataclass(frozen=True, kw_only=True)
class ForecastSatellite:
    """Publishes why each pod waits, its position, and when it may start."""

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        #: The queue of the present term; none while another replica leads.
        present: list[QueueTask] = []

        def page() -> bytes:
            found = present[-1].page if present else QueuePage()
            return encode_page(aged(found, process.clock.now()))

        def join(term: Term) -> None:
            queue = QueueTask(
                term.runtime,
                term.slicer,
                pods=term.pods,
                nodes=term.nodes,
                events=term.events,
                namespace=term.namespace,
            )
            queue.follow()
            present.append(queue)
            term.at_end.callback(present.clear)
            term.tasks.append(Task(name="queue", run=queue.run))
            term.tasks.append(Task(name="history of leases", run=queue.write))

        process.pages[QUEUE_PATH] = page
        return join
