"""What the controller says of a waiting pod: by its page, if the reader may read it, else by the pod's condition.

The condition is a copy, written at most once a minute, and only when position, reason or start changed. It is shown
as it is, with its age.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.clock import parse_time_or_zero
from tessera.explain.snapshot import ClusterView
from tessera.forecast.queue_page import QueuedPod, case_of, position_text, start_text
from tessera.kube.resources import Condition, Pod
from tessera.text import age

#: Seconds up to which the page counts as the present: the controller makes it every 15 s.
_PRESENT = 20.0


class Told(NamedTuple):
    """What the pod was told by its condition.

    Attributes:
        case: the reason in one word.
        text: the whole message, and when it was told.
    """

    case: str
    text: str


def told_by_condition(view: ClusterView, pod: Pod) -> Told | None:
    """The controller's last word to a pod that the page does not list; None if it has not said any."""
    condition = _told(pod)
    if condition is None or not condition.message or view.queue_row(pod) is not None:
        return None
    message = condition.message[:1].lower() + condition.message[1:]
    return Told(case_of(condition.reason), f"the controller told it {_since(view, condition)}: {message}")


def place_facts(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Position and expected start of a pod that waits in the controller's queue."""
    row = view.queue_row(pod)
    told = _said_of(row) if row is not None else ""
    if told:
        yield f"its place in the queue, {_says(view)}: {told}"


def _said_of(row: QueuedPod) -> str:
    return "; ".join(filter(None, (position_text(row), start_text(row.start) if row.position else "")))


def _says(view: ClusterView) -> str:
    page = view.snapshot.page
    old = page.age if page is not None else 0.0
    return "the controller says" if old <= _PRESENT else f"the controller said {age(old)} ago"


def _told(pod: Pod) -> Condition | None:
    found = pod.status.condition(SLICE_PROMISED_CONDITION)
    return found if found is not None and found.status == "False" else None


def _since(view: ClusterView, told: Condition) -> str:
    """How long ago, in whole minutes: the live page shows this text, and must not change every second."""
    at = parse_time_or_zero(told.last_probe_time or told.last_transition_time)
    minutes = int((view.snapshot.now - at) / 60)
    if not at:
        return "some time ago"
    return f"{age(60.0 * minutes)} ago" if minutes > 1 else "in the last two minutes"
