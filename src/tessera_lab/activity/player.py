"""Plays a scenario on a running lab: creates its pods, lets pods use their cards, breaks and mends cards.

Rules:

- What fails is counted and named in the status; the scenario goes on. A pod whose device has too little memory left
  keeps what it has.
- At its end a scenario leaves the lab as it is. :meth:`ScenarioPlayer.stop` removes its pods, mends the cards that it
  broke, and ends the use that it set.
- A scenario with an end is a simulated wait: a lab on virtual time leaps through it.
"""

import logging
from contextlib import suppress
from typing import Any

import msgspec

from tessera.kube.client import Client
from tessera.kube.errors import AlreadyExists, ApiError, NotFound
from tessera.kube.resources import NAMESPACES, PODS
from tessera.nvml.errors import NvmlError
from tessera.text import age, one_line
from tessera_lab.activity.lab_cards import LabCards
from tessera_lab.activity.scenario import PodSeries, Scenario, Step
from tessera_lab.activity.use import Use, activity_at, memory_at, parse_span
from tessera_lab.kubelet.containers.gpu_processes import GpuContainer
from tessera_lab.simulation.virtual_time import CountedClock

#: Seconds between two changes of load and memory.
TICK = 5.0
#: Seconds for which the end of a deleted pod is awaited, and between two looks.
GONE, _PAUSE = 60.0, 0.2
#: Label of the pods that a scenario creates; its value is the scenario's name.
SCENARIO_LABEL = "lab.tessera.dev/scenario"

_log = logging.getLogger(__name__)


class _OwnPod(msgspec.Struct, frozen=True):
    """A pod that the scenario created, and when it is deleted."""

    series: PodSeries
    namespace: str
    name: str
    until: float | None


class ScenarioPlayer:
    """Plays one scenario.

    Args:
        name: its name, for the status and the label of its pods.
        scenario: the scenario.
        cards: the lab's cards and pods.
        client: creates and deletes its pods.
        clock: the lab's time; a scenario with an end counts as a wait on it.

    Attributes:
        ended: true once a scenario with an end is over.
    """

    def __init__(self, name: str, scenario: Scenario, *, cards: LabCards, client: Client, clock: CountedClock) -> None:
        self.ended = False
        self._name = name
        self._scenario = scenario
        self._cards = cards
        self._client = client
        self._clock = clock
        self._began = clock.monotonic()
        #: Time up to which steps and creations were carried out.
        self._played = 0.0
        self._pods: dict[tuple[str, str], _OwnPod] = {}
        #: Number of pods that each series has created.
        self._created: dict[tuple[str, str], int] = {}
        #: Container, by identity, and when it began to follow its use; exactly the running ones that follow one.
        self._followed: dict[int, tuple[GpuContainer, float]] = {}
        self._broken: set[str] = set()
        self._problems = 0
        self._last_problem = ""

    async def run(self) -> None:
        """Plays the scenario to its end, or until cancelled."""
        lasts = parse_span(self._scenario.lasts) if self._scenario.lasts else None
        # Without an end it must not count as a wait: virtual time would leap for ever.
        sleep = self._clock.rest if lasts is None else self._clock.sleep
        while lasts is None or self._played < lasts:
            now = self._clock.monotonic() - self._began + TICK
            await self._play(now if lasts is None else min(now, lasts))
            await sleep(TICK)
        self.ended = True

    async def stop(self) -> None:
        """Removes what the scenario made and changed; it must not run any more."""
        for place in sorted(self._broken):
            with suppress(ValueError):  # its node is gone
                self._cards.mend_card(place)
        for container, _ in self._followed.values():
            for device in container.devices:
                with suppress(NvmlError, MemoryError):
                    container.use(device, activity=0.0)
        pods = list(self._pods.values())
        for pod in pods:
            await self._delete(pod)
        for pod in pods:  # the next scenario may use the same names
            await self._wait_for_deletion(pod)

    def status(self) -> str:
        """Says in a line what runs since when, and the last problem."""
        state = "is over" if self.ended else "runs"
        problem = f"; {self._problems} problems, the last: {self._last_problem}" if self._problems else ""
        return f"scenario {self._name} {state}, {age(self._played)} of it played{problem}"

    async def _play(self, until: float) -> None:
        """Plays the time from the last call until then."""
        first, self._played = self._played, until
        for step in self._scenario.steps_between(first, until):
            self._carry_out(step)
        for pod in [each for each in self._pods.values() if each.until is not None and each.until < until]:
            await self._delete(pod)
        for series in self._scenario.pods:
            for _ in range(_creations(series, first, until)):
                await self._create(series, first)
        self._set_use(until)

    def _carry_out(self, step: Step) -> None:
        try:
            if step.mend:
                self._cards.mend_card(step.card)
                self._broken.discard(step.card)
            else:
                self._cards.break_card(step.card, fault=step.fault, xid=step.xid)
                self._broken.add(step.card)
        except ValueError as error:
            self._note(error)

    # Pods

    async def _create(self, series: PodSeries, now: float) -> None:
        if series.namespace != "default":
            with suppress(AlreadyExists):
                await self._client.create(NAMESPACES.as_dicts(), {"metadata": {"name": series.namespace}})
        key = series.namespace, series.name
        until = now + parse_span(series.lasts) if series.lasts else None
        for _ in range(series.count):
            number = self._created[key] = self._created.get(key, 0) + 1
            pod = _OwnPod(series, series.namespace, f"{series.name}-{number}", until)
            try:
                await self._client.create(PODS.as_dicts(), self._manifest(pod), series.namespace)
                self._pods[pod.namespace, pod.name] = pod
            except ApiError as error:
                self._note(error)

    def _manifest(self, pod: _OwnPod) -> dict[str, Any]:
        limits = {name: str(amount) for name, amount in pod.series.request.items()}
        container = {
            "name": "main",
            "image": "simulated",
            "command": ["sleep", "infinity"],
            "resources": {"limits": limits},
        }
        return {
            "metadata": {"name": pod.name, "labels": {**pod.series.labels, SCENARIO_LABEL: self._name}},
            "spec": {"terminationGracePeriodSeconds": 1, "restartPolicy": "Never", "containers": [container]},
        }

    async def _delete(self, pod: _OwnPod) -> None:
        del self._pods[pod.namespace, pod.name]
        try:
            await self._client.delete(PODS, pod.name, pod.namespace)
        except NotFound:
            pass  # somebody else deleted it
        except ApiError as error:
            self._note(error)

    async def _wait_for_deletion(self, pod: _OwnPod) -> None:
        """Returns once a deleted pod is gone, or after :data:`GONE` seconds."""
        until = self._clock.monotonic() + GONE
        with suppress(NotFound):
            while self._clock.monotonic() < until:
                await self._client.get(PODS, pod.name, pod.namespace)
                await self._clock.rest(_PAUSE)

    # Use of cards

    def _set_use(self, now: float) -> None:
        followed: dict[int, tuple[GpuContainer, float]] = {}
        for container in list(self._cards.containers()):
            use = self._find_use(container)
            if use is not None:
                _, since = followed[id(container)] = self._followed.get(id(container), (container, now))
                self._apply(container, use, now - since)
        self._followed = followed

    def _find_use(self, container: GpuContainer) -> Use | None:
        owner = container.owner
        own = self._pods.get((owner.namespace, owner.pod))
        if own is not None:
            return own.series.use
        rules = self._scenario.use
        return next((rule.use for rule in rules if rule.matches(owner.namespace, owner.pod)), None)

    def _apply(self, container: GpuContainer, use: Use, elapsed: float) -> None:
        owner, growth = container.owner, use.growth()
        seed = f"{self._scenario.seed}/{owner.namespace}/{owner.pod}/{owner.container}"
        activity = activity_at(use.curve(), elapsed, seed)
        for device in container.devices:
            try:
                memory = None if growth is None else memory_at(growth, elapsed, container.memory_size(device))
                container.use(device, memory_bytes=memory, activity=activity, work=use.work)
            except (NvmlError, MemoryError) as error:
                self._note(error)

    def _note(self, error: Exception) -> None:
        self._problems += 1
        self._last_problem = one_line(error)
        _log.info("scenario %s: %s", self._name, self._last_problem)


def _creations(series: PodSeries, first: float, until: float) -> int:
    """Number of times at which a series creates pods, from ``first`` on and before ``until``."""
    at, every = parse_span(series.at), parse_span(series.every) if series.every else 0.0
    if not every:
        return int(first <= at < until)
    return _passed(until, at, every) - _passed(first, at, every)


def _passed(time: float, at: float, every: float) -> int:
    """Number of creations before a time."""
    return max(0, int(-(-(time - at) // every)))
