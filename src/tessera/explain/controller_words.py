"""What the controller says of a waiting pod: by its page, if the reader may read it, else by the pod's condition.

The condition is a copy, written at most once a minute, and only when position, reason or start changed. It is shown
with its age, and without the position where that can be counted anew.
"""

from collections.abc import Iterator
from typing import NamedTuple

from tessera.api.names import SLICE_PROMISED_CONDITION
from tessera.clock import parse_time_or_zero
from tessera.explain.snapshot import ClusterView
from tessera.forecast.queue_page import QueuedPod
from tessera.forecast.queue_text import place_of_text, position_text, reason_of_text, start_text
from tessera.kube.resources import Condition, Pod
from tessera.placement.demand import Reserved
from tessera.text import age

#: Seconds up to which the page counts as the present: the controller makes it every 15 s.
_PRESENT = 20.0


class ControllerWord(NamedTuple):
    """What the controller says.

    Attributes:
        reason: why the pod waits, in one word.
        detail: the same in a sentence.
        said: how the sentence begins: ``the controller says``, or when it said it.
    """

    reason: str
    detail: str
    said: str

    @property
    def text(self) -> str:
        """The sentence."""
        return f"{self.said}: {self.detail}"


def controller_word(view: ClusterView, pod: Pod) -> ControllerWord | None:
    """Why a pod waits in the controller's words; None if it has not said so."""
    row = view.queue_row(pod)
    if row is not None:
        return ControllerWord(row.reason, row.detail, _says(view)) if row.detail else None
    told = _told(pod)
    detail = reason_of_text(told.message) if told is not None else ""
    if told is None or not detail:
        return None
    return ControllerWord(told.reason.lower(), detail, f"the controller told it {_since(view, told)}")


def is_reserved_for_others(view: ClusterView, pod: Pod) -> bool:
    """True if the controller says that the free cards are reserved for others.

    It records reservations of slices in Instaslice objects, and those of whole cards and shares nowhere else.
    """
    row, told = view.queue_row(pod), _told(pod)
    if row is not None:
        return row.reason == Reserved.WORD
    return told is not None and told.reason == Reserved.WORD.capitalize()


def place_facts(view: ClusterView, pod: Pod) -> Iterator[str]:
    """Position and expected start of a pod that waits in the controller's queue."""
    row = view.queue_row(pod)
    if row is not None:
        told = _said_of(row)
        if told:
            yield f"its place in the queue, {_says(view)}: {told}"
        return
    condition = _told(pod)
    place = "" if condition is None else place_of_text(condition.message, position=view.slicer is None)
    if condition is not None and place:
        yield f"its place in the queue, as it was told {_since(view, condition)}: {place[0].lower()}{place[1:]}"


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
