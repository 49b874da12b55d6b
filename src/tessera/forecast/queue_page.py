"""The queue as values: each waiting pod's position, reason and expected start. The controller's page ``/queue`` has it.

Times are seconds since 1970. The words are those of the condition of a pod, of Events and of ``tessera why``.
"""

from collections.abc import Iterable
from math import ceil
from typing import Any

import msgspec

from tessera.clock import rfc3339
from tessera.nesting import decode_json
from tessera.reasons.reason import Blocker, Reason
from tessera.text import count_noun
from tessera.visibility import PodName, PodNamespace, PodText, Public, QueueName

#: The page, and the port of the controller that serves it.
QUEUE_PATH = "/queue"
CONTROLLER_PORT = 8081

#: What a forecast rests on.
DEADLINE, HISTORY, RATE, UNKNOWN = "deadline", "history", "rate", "unknown"
#: What a forecast rests on, as the end of a sentence.
_BASES = {
    DEADLINE: "by the deadlines of the pods before it",
    HISTORY: "from how long such pods ran before",
    RATE: "from the starts of pods that had waited, in the last hour",
}
#: The same where past waits are a part of it.
_WAITS = "from how long such pods ran and waited before"


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class ExpectedStart(_Wire, frozen=True):
    """When a pod starts.

    Attributes:
        p50: half of such pods start before; None if nothing is known.
        p90: nine of ten do; None if that is too far away to say.
        basis: deadline, history, rate or unknown.
        waits: True if past waits of such pods are a part of it.
        starts: pods with the same slices that started in the last hour.
    """

    p50: float | None = None
    p90: float | None = None
    basis: Public = UNKNOWN
    starts: int = 0
    waits: bool = False


class QueuedPod(_Wire, frozen=True):
    """A waiting pod.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        profiles: the slices that it needs.
        since: when it began to compete for room, seconds since 1970; its creation, as long as it does not.
        priority: a higher one goes first.
        position: its place in the order of the pods that compete with each other for room, from 1; 0 for a pod that
            none of them waits for: another gate holds it, its gang is incomplete, it never fits, no node lets it in,
            or another pod asks for its ResourceClaim.
        of: the number of pods in that order.
        ahead: those before it for which a node of its own might do; the others wait for other cards. None if the
            controller's version does not say it.
        reason: its ``case``, one word for scripts: ``full``, ``fragmented``, ``reserved``, ``other-gate``, ...
        detail: its sentence (:mod:`tessera.reasons.words`), which names no other pod.
        why: the reason as data; None if this version does not know it.
        start: when it starts.
    """

    namespace: PodNamespace
    name: PodName
    uid: PodName = ""
    profiles: tuple[Public, ...] = ()
    since: float = 0.0
    priority: int = 0
    position: int = 0
    of: int = 0
    ahead: int | None = None
    reason: Public = ""
    detail: PodText = ""
    why: Reason | None = None
    start: ExpectedStart = ExpectedStart()

    @property
    def blockers(self) -> tuple[Blocker, ...]:
        """What must end or start first."""
        return self.why.blockers if self.why is not None else ()

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class SpareSlices(_Wire, frozen=True):
    """Slices that a queue keeps free for pods of its services.

    Attributes:
        queue: the queue.
        profile: the slices.
        free: those that are free now.
        wanted: those that it should keep.
        fault: why there can be none; empty if there can.
        why: how the number came, if the queue leaves it to the controller.
    """

    queue: QueueName
    profile: Public
    free: int
    wanted: int
    fault: Public = ""
    why: Public = ""


class QueuePage(_Wire, frozen=True):
    """All waiting pods.

    Attributes:
        leads: False on a replica that does not lead: it knows nothing.
        taken: when it was made, by the controller's clock.
        age: seconds from then until the controller answered, by the same clock.
        pods: in the order in which they get room; last those that follow another pod or that another
            gate holds.
        omitted: number of further pods.
        spare: what queues keep free.
    """

    leads: bool = False
    taken: float = 0.0
    age: float = 0.0
    pods: tuple[QueuedPod, ...] = ()
    omitted: int = 0
    spare: tuple[SpareSlices, ...] = ()

    @property
    def answered(self) -> float:
        """When the controller answered, by its own clock: what waits has waited until then."""
        return self.taken + self.age


_PAGE = msgspec.json.Decoder(QueuePage)


def decode_page(body: bytes) -> QueuePage:
    """The page of a controller of any version: a reason that this version does not know is left to its sentence.

    Raises:
        msgspec.MsgspecError: it is no page.
    """
    try:
        return _PAGE.decode(body)
    except msgspec.ValidationError:
        return msgspec.convert(_without_reasons(decode_json(body)), QueuePage)


def _without_reasons(page: Any) -> Any:
    """Leaves out the reasons that cannot be read."""
    rows = page.get("pods") if isinstance(page, dict) else None
    for row in rows if isinstance(rows, list) else ():
        try:
            msgspec.convert(row.get("why") if isinstance(row, dict) else None, Reason | None)
        except msgspec.ValidationError:
            row.pop("why")
    return page


def encode_page(page: QueuePage) -> bytes:
    """The page as JSON."""
    return msgspec.json.encode(page)


def aged(page: QueuePage, now: float) -> QueuePage:
    """The page as it is answered at a time of the controller's clock."""
    return msgspec.structs.replace(page, age=max(0.0, now - page.taken)) if page.leads else page


def in_namespace(page: QueuePage, namespaces: Iterable[str]) -> QueuePage:
    """The page with the pods of these namespaces; positions stay those of the cluster."""
    wanted = frozenset(namespaces)
    return msgspec.structs.replace(page, pods=tuple(each for each in page.pods if each.namespace in wanted), omitted=0)


# In words


def queued_text(row: QueuedPod) -> str:
    """Reason, position and start of a pod in sentences; names no other pod."""
    parts = [row.detail, position_text(row), start_text(row.start)]
    return ". ".join(part[0].upper() + part[1:] for part in parts if part)


def position_text(row: QueuedPod) -> str:
    """``position 2 of 5 for the same room``; empty for a pod without a position."""
    if not row.position:
        return ""
    if row.of == 1:
        return "no other pod waits for its room"
    if row.ahead is None or row.ahead == row.position - 1:
        return f"position {row.position} of {row.of} for the same room"
    who = f"{row.ahead or 'none'} of the {row.position - 1} before it {'wait' if row.ahead > 1 else 'waits'}"
    return f"position {row.position} of {row.of}; {who} for cards that it may use"


def start_text(start: ExpectedStart) -> str:
    """When a pod starts, in absolute times, which stay true while time passes."""
    if start.p50 is None:
        return f"its start is unknown: {count_noun(start.starts, 'pod')} with such slices started in the last hour"
    basis = _WAITS if start.waits else _BASES.get(start.basis, "")
    if start.p90 is None:
        return f"starts after {_minute(start.p50)}, {basis}"
    first, last = _minute(start.p50), _minute(start.p90)
    if first == last:
        return f"starts about {first}, {basis}"
    return f"starts between {first} and {last}, {basis}"


def whole_minute(time: float) -> float:
    """The first whole minute that is not before a time: what is expected by then is told, and it has not passed.

    A forecast moves by seconds each time that it is made.
    """
    return 60.0 * ceil(time / 60)


def _minute(time: float) -> str:
    """``2026-11-24 15:04 UTC``."""
    return f"{rfc3339(whole_minute(time))[:16].replace('T', ' ')} UTC"


def condition_reason(case: str) -> str:
    """The reason of a pod's condition for the case of its reason: ``CardHeldBack`` for ``card-held-back``."""
    return "".join(part.capitalize() for part in case.split("-")) or "Waiting"


def case_of(reason: str) -> str:
    """``card-held-back`` for ``CardHeldBack``."""
    return "".join(f"-{each.lower()}" if each.isupper() else each for each in reason).lstrip("-")
