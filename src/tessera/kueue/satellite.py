"""Kueue's admission check as a satellite of the controller: watches Workloads and checks, and writes Tessera's answers.

Where Kueue is not installed, its kinds are looked for once a minute, and nothing else is done. An answer is a
server-side apply of our own check's entry, at the version of the Workload that was tested: if Kueue has changed the
Workload since, the server refuses it, and the watch brings the Workload again.

Kueue 0.13 has no field for the delay; its API server refuses an answer with it, which is then written without.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter

from tessera.api.nodes.node_cards import UndecidedNodes
from tessera.clock import Clock, rfc3339, until_set
from tessera.controller.satellite import Process, Task, Term
from tessera.controller.slicing.slicer import Slicer
from tessera.kube.cache import EventKind, WatchEvent
from tessera.kube.client import Client
from tessera.kube.errors import ApiError, Conflict, NotFound
from tessera.kube.informer import LOOK_AGAIN, OptionalKind
from tessera.kube.retries import Backoff
from tessera.kueue.check_decisions import Answer, CheckDecisions
from tessera.kueue.objects import (
    ADMISSION_CHECKS,
    CHECK_CONTROLLER,
    RESOURCE_FLAVORS,
    WORKLOADS,
    AdmissionCheck,
    ResourceFlavor,
    Workload,
    served_resource,
)
from tessera.kueue.queued_workload import read_workload

_log = logging.getLogger(__name__)

#: Seconds in which changes are collected before one round of tests.
SETTLE = 0.5
#: Most characters of a reason in a Workload's status; Kueue's schema allows 32,768.
_REASON = 1_000
_DELAY = "requeueAfterSeconds"


class AdmissionChecks:
    """Answers the admission checks whose controller is :data:`~tessera.kueue.objects.CHECK_CONTROLLER`.

    Args:
        client: the API server.
        slicer: the controller's state; only read.
        count: called with the state of each answer that was written.
        after_step: events to set after each step of the slicer; has this one's while a Workload waits for room, or for
            the slicer, so that its next step may decide it.
        nodes_may_come: tells if an autoscaler's node groups are known, or a new node may turn out to have GPUs.
        clock: the time.
        rng: for jitter.
    """

    def __init__(
        self,
        client: Client,
        slicer: Slicer,
        *,
        count: Callable[[str], None],
        after_step: set[asyncio.Event],
        nodes_may_come: Callable[[], bool],
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._after_step = after_step
        self._client = client
        self._count = count
        self._clock = clock
        self._backoff = Backoff(rng)
        self._is_managed = slicer.state.cluster.is_managed
        self._decisions = CheckDecisions(slicer, nodes_may_come=nodes_may_come)
        self._wake = asyncio.Event()
        #: Our checks by name, and the node labels of each flavor.
        self._checks: dict[str, AdmissionCheck] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        #: Workloads with reserved quota that are not admitted, by UID, as the watch has them; others need no look.
        self._reserved: dict[str, Workload] = {}
        #: UIDs of those for which the decisions had no place yet, the first come first.
        self._left_out: dict[str, None] = {}
        #: True while the server is believed to know the field of the delay.
        self._knows_delay = True
        look: dict[str, Any] = {"clock": clock, "rng": rng, "look_seldom": LOOK_AGAIN}
        self._workloads = OptionalKind(client, WORKLOADS, on_event=self._workload_changed, **look)
        self._kinds: tuple[OptionalKind[Any], ...] = (
            OptionalKind(client, ADMISSION_CHECKS, on_event=self._check_changed, **look),
            OptionalKind(client, RESOURCE_FLAVORS, on_event=self._flavor_changed, **look),
            self._workloads,
        )

    async def run(self) -> None:
        """Answers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for kind in self._kinds:
                group.create_task(kind.run())
            while True:
                until = self._decisions.next_time()
                left = None if until is None else until - self._clock.monotonic()
                await until_set(self._wake, left)
                self._wake.clear()
                complete = await self._activate()
                answers = self._decisions.decide(self._clock.monotonic())
                # Before the writes: a step of the slicer that comes while they last counts.
                (self._after_step.add if self._decisions.undecided else self._after_step.discard)(self._wake)
                for answer in answers:
                    complete = await self._write(answer) and complete
                if self._decisions.left_some:
                    self._wake.set()
                if complete:
                    self._backoff.reset()
                    await self._clock.sleep(SETTLE)
                else:
                    self._wake.set()
                    await self._clock.sleep(self._backoff.next())

    # Watches

    def _check_changed(self, event: WatchEvent[AdmissionCheck]) -> None:
        name = event.object.metadata.name
        ours = event.object.spec.controller_name == CHECK_CONTROLLER
        if ours and event.kind is not EventKind.DELETED:
            self._checks[name] = event.object
        else:
            self._checks.pop(name, None)
        self._read_again()

    def _flavor_changed(self, event: WatchEvent[ResourceFlavor]) -> None:
        name = event.object.metadata.name
        if event.kind is EventKind.DELETED:
            self._labels.pop(name, None)
        else:
            self._labels[name] = event.object.spec.node_labels
        self._read_again()

    def _workload_changed(self, event: WatchEvent[Workload]) -> None:
        item = event.object
        uid = item.metadata.uid
        if event.kind is EventKind.DELETED or not item.is_true("QuotaReserved") or item.is_true("Finished"):
            self._reserved.pop(uid, None)
            self._decisions.drop(uid)
        elif item.is_true("Admitted"):
            self._reserved.pop(uid, None)
            self._decisions.put(uid, None)
        else:
            self._reserved[uid] = item
            self._read(uid)
        while self._left_out and self._decisions.has_place:
            self._read(next(iter(self._left_out)))

    def _read(self, uid: str) -> None:
        self._left_out.pop(uid, None)
        item = self._reserved.get(uid)
        if item is None:
            return
        if not self._decisions.put(uid, read_workload(item, self._checks, self._labels, self._is_managed)):
            self._left_out[uid] = None
        self._wake.set()

    def _read_again(self) -> None:
        for uid in self._reserved:
            self._read(uid)
        self._wake.set()

    # Writes

    async def _activate(self) -> bool:
        """Tells Kueue that our checks are answered; returns false if a write failed."""
        complete = True
        for name, check in list(self._checks.items()):
            if any((each.type, each.status) == ("Active", "True") for each in check.status.conditions):
                continue
            condition = {
                "type": "Active",
                "status": "True",
                "reason": "Active",
                "message": "Tessera tests whether the slices of a workload can be placed",
                "lastTransitionTime": rfc3339(self._clock.now()),
                "observedGeneration": check.metadata.generation,
            }
            patch = {"status": {"conditions": [condition]}}
            try:
                version = self._workloads.resource.version
                await self._client.apply(served_resource(ADMISSION_CHECKS, version), name, patch, subresource="status")
            except NotFound:
                continue
            except (ApiError, ConnectionError, TimeoutError) as error:
                _log.warning("admission check %s: cannot be made active, tried again: %s", name, error)
                complete = False
        return complete

    async def _write(self, answer: Answer) -> bool:
        """Writes an answer; returns false if that failed and has to be tried again."""
        workload = answer.workload
        try:
            try:
                await self._apply(answer)
            except ApiError as error:
                if not (self._knows_delay and answer.delay and _DELAY in str(error)):
                    raise
                self._knows_delay = False
                await self._apply(answer)
        except (Conflict, NotFound):
            self._decisions.forget_answer(workload.uid)  # the watch brings the change
        except (ApiError, ConnectionError, TimeoutError) as error:
            self._decisions.forget_answer(workload.uid)
            _log.warning("workload %s/%s: not answered, tried again: %s", workload.namespace, workload.name, error)
            return False
        else:
            self._count(answer.state)
        return True

    async def _apply(self, answer: Answer) -> None:
        workload = answer.workload
        state = {
            "state": answer.state,
            "message": answer.text[:_REASON],
            "lastTransitionTime": (answer.state == "Pending" and workload.since) or rfc3339(self._clock.now()),
            **({_DELAY: answer.delay} if answer.delay and self._knows_delay else {}),
        }
        body = {
            "metadata": {"uid": workload.uid, "resourceVersion": workload.version},
            "status": {"admissionChecks": [{"name": name, **state} for name in workload.checks]},
        }
        version = self._workloads.resource.version
        await self._client.apply(
            served_resource(WORKLOADS, version), workload.name, body, workload.namespace, subresource="status"
        )


@dataclass(frozen=True, kw_only=True)
class CheckSatellite:
    """Answers Kueue's admission checks; does nothing where Kueue is not installed."""

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""
        answers = Counter(
            "tessera_admission_checks",
            "Answers to Kueue's admission check, by the state that was written.",
            ["state"],
            registry=process.registry,
        )

        def join(term: Term) -> None:
            undecided = UndecidedNodes(term.runtime.clock.now)
            term.nodes.add_handler(undecided.node_changed)
            term.may_bring_nodes.append(undecided.any_undecided)
            checks = AdmissionChecks(
                term.runtime.client,
                term.slicer,
                count=lambda state: answers.labels(state).inc(),
                after_step=term.after_step,
                nodes_may_come=lambda: any(each() for each in term.may_bring_nodes),
                clock=term.runtime.clock,
                rng=term.runtime.rng,
            )
            term.tasks.append(Task(name="admission checks of Kueue", run=checks.run))

        return join
