"""Decides what the pods of the node are told about the health of their cards. Pure.

A pod that holds a part of a card with a fault gets the condition ``tessera.dev/GpuHealthy`` and an Event at each change
of it. ``False`` means that the card, or the pod's part of it, is given to no other pod; ``True`` that it is still
allocated (``GpuDegraded``), or well again (``GpuRecovered``). A pod whose cards were always well has no condition. The
condition stays when the fault has ended: Kubernetes' API conventions have a condition once observed change its status.

Rules:

- A fault of a GPU instance concerns the pods in it, a fault of a card all of its holders. The fault of a broken event
  watch is the agent's and concerns no pod; nor does a cordon, under which running pods stay, or
  the number of a card's falls.
- A pod is told nothing of other pods: neither names nor processes nor UUIDs, only the index of its own card.
- A pod whose holdings are not known keeps what it was told.
- A change for the worse is told at once, any other one :data:`PAUSE` after the last at the earliest.
- What a pod was told is in its condition, so a restarted agent neither repeats an Event nor loses one.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from tessera.agent.health.card_health import describe_error
from tessera.agent.health.fault import Fault
from tessera.agent.health.history import PastFault
from tessera.agent.inventory.device_state import DeviceScope, Reaction
from tessera.api.names import (
    GPU_CONDITION,
    GPU_NEEDS_REBOOT,
    GPU_NEEDS_RESET,
    GPU_RECOVERED,
    SYSTEM_NAMESPACE,
    SYSTEM_NAMESPACES,
    PodUid,
)
from tessera.api.nodes.health import LOST_DATA, describe_fault, name_source
from tessera.api.nodes.repairs import Repairs, is_made_anew, read_toleration
from tessera.clock import parse_time_or_zero, rfc3339
from tessera.kube.resources import Condition, Pod
from tessera.limits import CONDITION_MESSAGE
from tessera.text import list_names, one_line

#: The parts of cards that each pod holds.
Holdings = Mapping[PodUid, frozenset[DeviceScope]]
#: Seconds from what a pod was told to the next that is no change for the worse.
PAUSE = 10.0
#: What is done to a cordoned card.
_HANDS_OFF = Repairs()


class PodNotice(msgspec.Struct, frozen=True):
    """What a pod is told: its condition and the Event with the same reason and text.

    Attributes:
        pod: the pod.
        status: of the condition.
        reason: of both.
        message: of both.
        before: the condition that it replaces; None for the first.
    """

    pod: Pod
    status: Literal["True", "False"]
    reason: str
    message: str
    before: Condition | None = None

    @property
    def kind(self) -> Literal["Normal", "Warning"]:
        """The type of the Event."""
        return "Normal" if self.reason == GPU_RECOVERED else "Warning"

    @property
    def rank(self) -> int:
        """The larger, the worse."""
        return _rank(self.status, self.reason)


def has_open_condition(pod: Pod) -> bool:
    """True if the pod was told of a fault, and not of its end."""
    condition = pod.status.condition(GPU_CONDITION)
    return condition is not None and condition.reason != GPU_RECOVERED


class PodConditions:
    """What the pods of one node have to be told."""

    def __init__(self) -> None:
        #: When each pod was told something last, seconds of the caller's clock; only pods of the last round.
        self._told: dict[PodUid, float] = {}

    def decide(
        self,
        pods: Iterable[Pod],
        holdings: Holdings,
        faults: Iterable[Fault],
        *,
        spared: Collection[Fault],
        indexes: Mapping[str, int],
        repairs: Repairs,
        now: float,
        past: Sequence[PastFault] = (),
    ) -> tuple[list[PodNotice], float | None]:
        """Returns the notices that are due, and the seconds until the next one is.

        Args:
            pods: the pods of the node that have not ended.
            holdings: the parts that they hold, as far as known.
            faults: the faults that are not over.
            spared: those that the breaker spares.
            indexes: the driver's index of each card by UUID.
            repairs: what Tessera does about faults by itself.
            now: seconds of a monotonic clock.
            past: the faults that are over.
        """
        found = list(faults)
        hardware = [fault for fault in found if fault.of_hardware]
        cordoned = {fault.scope.gpu for fault in found if fault.by_hand}
        known = {PodUid(pod.metadata.uid): pod for pod in pods if pod.metadata.namespace not in SYSTEM_NAMESPACES}
        self._told = {uid: at for uid, at in self._told.items() if uid in known}
        due, pause = [], None
        for uid, pod in known.items():
            notice = _notice(
                pod,
                sorted(holdings.get(uid, ())),
                hardware,
                spared=spared,
                cordoned=cordoned,
                indexes=indexes,
                repairs=_repairs_for(pod, repairs),
                past=past,
            )
            if notice is None:
                continue
            left = self._told.get(uid, now - PAUSE) + PAUSE - now
            if left > 0 and notice.rank <= _rank_of(notice.before):
                pause = left if pause is None else min(pause, left)
            else:
                due.append(notice)
        return due, pause

    def note_told(self, notice: PodNotice, now: float) -> None:
        """Takes in that the API server has the notice."""
        self._told[PodUid(notice.pod.metadata.uid)] = now


def _notice(
    pod: Pod,
    parts: Sequence[DeviceScope],
    faults: Iterable[Fault],
    *,
    spared: Collection[Fault],
    cordoned: Collection[str],
    indexes: Mapping[str, int],
    repairs: Repairs,
    past: Sequence[PastFault],
) -> PodNotice | None:
    """The notice for one pod; None if it knows already, or has nothing to know."""
    before = pod.status.condition(GPU_CONDITION)
    if not parts:
        return None
    worst = _worst_faults(parts, faults, spared)
    if not worst and (before is None or before.reason == GPU_RECOVERED):
        return None
    names = list_names([_name(part, indexes) for part in parts])
    toleration = read_toleration(pod.metadata.annotations)
    errors = {
        part: describe_error(
            fault,
            spared=fault in spared,
            repairs=_HANDS_OFF if fault.scope.gpu in cordoned else repairs,
            toleration=toleration,
        )
        for part, fault in worst.items()
    }
    texts = [f"{_name(part, indexes)}: {describe_fault(error)}" for part, error in errors.items()]
    text = "; ".join([*(texts or [f"nothing is wrong with {names} any more"]), *_lost_data(pod, parts, past)])
    withheld = any(fault.reaction >= Reaction.WITHHOLD and fault not in spared for fault in worst.values())
    notice = PodNotice(
        pod,
        status="False" if withheld else "True",
        reason=(_withheld_reason(worst.values(), spared, cordoned) if withheld else "GpuDegraded")
        if worst
        else GPU_RECOVERED,
        message=one_line(text, CONDITION_MESSAGE),
        before=before,
    )
    same = before is not None and (before.status, before.reason, before.message) == (
        notice.status,
        notice.reason,
        notice.message,
    )
    return None if same else notice


def _lost_data(pod: Pod, parts: Sequence[DeviceScope], past: Iterable[PastFault]) -> Iterator[str]:
    """The last error that is over and by which the pod's program lost data: the card is well, its results are not."""
    began = parse_time_or_zero(pod.status.start_time)
    found = [
        each
        for each in past
        if each.source in LOST_DATA and 0 < began <= each.since and any(each.scope.covers(part) for part in parts)
    ]
    for last in found[-1:]:
        yield (
            f"its program may have lost data by {name_source(last.source)} of {rfc3339(last.since)}: restart it, unless"
            " it began later"
        )


def _repairs_for(pod: Pod, repairs: Repairs) -> Repairs:
    """What Tessera does for the card of a pod; it evicts none that nobody makes anew elsewhere."""
    owner = next((each.kind for each in pod.metadata.owner_references if each.controller), "")
    evicts = repairs.evict and is_made_anew(pod.metadata.namespace, owner, SYSTEM_NAMESPACE)
    return msgspec.structs.replace(repairs, evict=evicts)


def _withheld_reason(faults: Iterable[Fault], spared: Collection[Fault], cordoned: Collection[str]) -> str:
    """The reason of a pod on a card that is not allocated; nothing needs a card empty that a person has cordoned."""
    needs = {
        fault.reaction
        for fault in faults
        if fault not in spared
        and fault.scope.gpu not in cordoned
        and not (fault.reaction is Reaction.RESET and fault.reset)
    }
    if Reaction.REBOOT in needs:
        return GPU_NEEDS_REBOOT
    return GPU_NEEDS_RESET if Reaction.RESET in needs else "GpuUnhealthy"


def _worst_faults(
    parts: Sequence[DeviceScope], faults: Iterable[Fault], spared: Collection[Fault]
) -> dict[DeviceScope, Fault]:
    """The worst fault of each part that has one; parts of one card with the same fault count once."""
    found: dict[DeviceScope, Fault] = {}
    for part in parts:
        on_it = [fault for fault in faults if fault.scope.covers(part)]
        worst = min(on_it, key=lambda each: each.severity(spared=each in spared), default=None)
        if worst is not None and worst not in found.values():
            found[part if worst.scope.gi_id >= 0 else DeviceScope(part.gpu)] = worst
    return found


def _name(part: DeviceScope, indexes: Mapping[str, int]) -> str:
    """``GPU 0``, ``GPU 0 GPU instance 7``: the pod's own part, which is no secret to it."""
    card = f"GPU {indexes[part.gpu]}" if part.gpu in indexes else "its card"
    return card if part.gi_id < 0 else f"{card} GPU instance {part.gi_id}"


def _rank(status: str, reason: str) -> int:
    return 2 if status == "False" else 1 if reason != GPU_RECOVERED else 0


def _rank_of(condition: Condition | None) -> int:
    return 0 if condition is None else _rank(condition.status, condition.reason)
