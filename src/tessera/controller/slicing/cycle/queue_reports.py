"""The status of Queue objects: what their pods hold, their decayed usage, and fields that are wrong.

Decayed usage must survive the controller, so it is in the status. It changes all the time; so each status is written at
most once in :data:`REPORT_SECONDS`, and only if what people see has changed, or the usage by more than a slot.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from tessera.api.names import QUEUE_LABEL, PodUid
from tessera.api.queues import QUEUE_MODELS, Queue
from tessera.controller.slicing.state.instructions import ReportQueue
from tessera.controller.slicing.state.reservation_rules import count_spares
from tessera.controller.slicing.state.slicer_state import SlicerState

#: Least seconds between two writes of one status.
REPORT_SECONDS = 60.0


class QueueReports:
    """Decides when the status of a queue is written.

    Args:
        state: the slicer's state, which this class only reads.
    """

    def __init__(self, state: SlicerState) -> None:
        self._state = state
        #: By queue, when its status was last written.
        self._written: dict[str, float] = {}
        #: Time of the next look at the queues.
        self._next = 0.0

    @property
    def next_due(self) -> float | None:
        """Time of the next look, seconds since 1970; None while the time is unknown."""
        return self._next if self._state.now else None

    def pop(self) -> Iterator[ReportQueue]:
        """Yields the writes that are due."""
        state = self._state
        if not state.now or state.now < self._next:
            return
        self._next = state.now + REPORT_SECONDS
        waiting = Counter(state.cluster.queue_of(pod) for pod in map(self._pod, state.waiting) if pod is not None)
        for name, queue in state.cluster.queues.items():
            if ("queue", name) in state.busy or self._written.get(name, 0.0) + REPORT_SECONDS > state.now:
                continue
            status = self._status(queue, waiting[name])
            if _differ(status, queue.recorded):
                self._written[name] = state.now
                yield ReportQueue(name=name, status={**status, "usageTime": f"{state.now:.0f}"})
        for name in self._written.keys() - state.cluster.queues.keys():
            del self._written[name]

    def _pod(self, uid: PodUid) -> Any:
        return self._state.cluster.pods.get(uid)

    def _status(self, queue: Queue, waiting: int) -> dict[str, Any]:
        account, now = self._state.ledger.account(queue.name), self._state.now
        used = account.used(queue.half_life, now)
        largest = sorted(used, key=lambda model: (-used[model], model))[:QUEUE_MODELS]
        share = self._state.ledger.share(queue.name, self._state.inventory.totals, now) * queue.weight
        return {
            "held": f"{account.gib}Gi",
            "slots": account.held.total(),
            "share": f"{100 * min(share, 99):.1f}%",
            "waiting": waiting,
            **({"spare": spare} if (spare := self._spare(queue)) else {}),
            "usage": {model: f"{used[model]:.3f}" for model in largest if used[model] >= 0.0005},
            "faults": [each[:512] for each in (*queue.faults, *self._namesake(queue.name))],
        }

    def _spare(self, queue: Queue) -> str:
        """The spare slices that are free, of those that are wanted; empty if the queue keeps none."""
        found = count_spares(self._state).get(queue.name, {})
        return ", ".join(f"{free} of {wanted} {profile}" for profile, (free, wanted) in found.items())

    def _namesake(self, name: str) -> Iterator[str]:
        if self._state.cluster.is_namesake(name):
            yield (
                f"namespace {name} has the name of this Queue and does not count for it: if it should, add it to"
                f" spec.namespaces, or kubectl label namespace {name} {QUEUE_LABEL}={name}"
            )


def _differ(status: dict[str, Any], recorded: dict[str, Any]) -> bool:
    """True if people would see another status, or the usage differs by more than a slot."""
    usage, before = status["usage"], recorded.get("usage", {})
    before = before if isinstance(before, dict) else {}
    if any(abs(_slots(usage.get(model)) - _slots(before.get(model))) > 1 for model in {*usage, *before}):
        return True
    before = {"faults": [], **recorded}
    return any(status.get(name) != before.get(name) for name in (status.keys() | before.keys()) - {"usage", "share"})


def _slots(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0
