"""The health of a card, and what is wrong with a pod's use of it, as agents report them on the page ``/usage``.

:func:`describe_fault` is the one sentence about an error: conditions, Events, commands and the page all show it.

Times are Unix times in seconds. Texts are for people; words that programs compare are listed with their field. A reader
of another agent's page trusts nothing: types here bound numbers and texts,
:mod:`tessera.access.agent_pages` the page, and who shows a text escapes it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

import msgspec

from tessera.clock import rfc3339
from tessera.limits import CARD_SLOTS, NAMES, NODE_INDEXES, SHARING_REPLICAS
from tessera.nvml.errors import XIDS, Remedy
from tessera.text import age

#: Most units: a measured value or a time on the page `/usage` of an agent, in base units. A million times the memory of
#: the largest card in bytes; sums of all cards stay finite.
USAGE_VALUES = 10**18
#: Most characters: a text for people on the page `/usage` of an agent. The longest of an agent has some hundred.
USAGE_TEXT = 2_000

#: A memory slot, or a number of them.
Slots = Annotated[int, msgspec.Meta(ge=0, le=int(CARD_SLOTS))]
#: A part of a card.
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
#: A measured value, or a time.
Value = Annotated[float, msgspec.Meta(ge=-int(USAGE_VALUES), le=int(USAGE_VALUES))]
Index = Annotated[int, msgspec.Meta(ge=0, le=int(NODE_INDEXES))]
Replicas = Annotated[int, msgspec.Meta(ge=1, le=int(SHARING_REPLICAS))]
#: A name or an identifier.
Name = Annotated[str, msgspec.Meta(max_length=int(NAMES))]
#: A text for people.
Words = Annotated[str, msgspec.Meta(max_length=int(USAGE_TEXT))]


#: What an administrator does about a lost card and about one that needs a reboot: after it, and in all.
REBOOTED_STEP = "if the error returns after the reboot, the card or its slot is broken"
BOOT_STEP = f"drain and reboot the node; {REBOOTED_STEP}"


class CardState(StrEnum):
    """State of a card; the worst of its faults decides."""

    #: Nothing is wrong.
    HEALTHY = "healthy"
    #: Something is wrong, and the card is still allocated.
    DEGRADED = "degraded"
    #: Still allocated, and is to be replaced: it fell too often, or its memory cannot be repaired.
    REPLACE = "replace"
    #: Not allocated until the person who cordoned it uncordons it; nothing is wrong with it.
    CORDONED = "cordoned"
    #: Not allocated until probes have succeeded for a while.
    WITHHELD = "withheld"
    #: Not allocated before the card is reset.
    NEEDS_RESET = "needs_reset"
    #: Not allocated before the node is booted.
    NEEDS_REBOOT = "needs_reboot"
    #: The driver cannot reach the card.
    LOST = "lost"
    #: The agent has not probed the card yet, or is too old to tell.
    UNKNOWN = "unknown"


#: States in which nothing of a card is allocated.
TAKEN = frozenset(
    {CardState.LOST, CardState.NEEDS_REBOOT, CardState.NEEDS_RESET, CardState.WITHHELD, CardState.CORDONED}
)


#: Values of :attr:`Evidence.asks` by which a card, or a part of it, is not allocated because of an error.
TAKE_AWAY = frozenset({"withhold", "drain", "reset", "reboot"})


class Evidence(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One error of a card that is not over.

    Attributes:
        source: ``XID 79``, ``double-bit-ecc``, ``probe``, ``driver``, ``events``, ``unreadable``, ``cordon``, or one of
            :data:`MEASURED_ERRORS`.
        text: the error in words.
        asks: ``attention``, ``replace``, ``preflight``, ``uncordon``, ``withhold``, ``reset`` or ``reboot``. Agents of
            earlier versions have ``drain`` for ``withhold``.
        part: the GPU instance with the error, ``GPU instance 7``; empty for the whole card.
        since: time of the first error.
        last: time of the last error.
        count: number of errors.
        spared: True if the error would take the card away, and the breaker of the cluster prevents it.
        lost: True if the driver cannot reach the card.
        reset: True if the card was reset since.
        evicted: Unix time from which Tessera evicts pods with an owner from the card; 0 if it evicts none.
        reboot: how Tessera has the node rebooted for the card, a :class:`tessera.api.nodes.repairs.RebootWay`; empty if
            it does not.
    """

    source: Name
    text: Words = ""
    asks: Name = "attention"
    part: Name = ""
    since: Value = 0.0
    last: Value = 0.0
    count: int = 1
    spared: bool = False
    lost: bool = False
    reset: bool = False
    evicted: Value = 0.0
    reboot: Name = ""


#: Sources of the errors that the card's row remapper reports: a row waits for a reset, and there is none left.
ROW_REMAPPING, NO_SPARE_ROW = "row-remapping", "no-spare-row"
#: Sources of the errors of its on-chip memory, of its NVLink fabric, and of its NVLinks.
SRAM_ECC, FABRIC, NVLINK_ERRORS = "sram-ecc", "fabric", "nvlink-errors"
#: The source of the faults of cards that fell too often (:mod:`tessera.agent.health.history`).
FELL_TOO_OFTEN = "replace"
#: Sources of errors for which the card has to be replaced: no reset and no reboot ends them.
REPLACE_ERRORS = frozenset({FELL_TOO_OFTEN, NO_SPARE_ROW, SRAM_ECC})
#: Source of the error of a card that the driver lists with an error. It does not end while the card is listed so.
UNREADABLE = "unreadable"
#: Sources of errors that a card measures itself; the error is over once the card no longer measures it.
MEASURED_ERRORS = frozenset(
    {ROW_REMAPPING, NO_SPARE_ROW, SRAM_ECC, FABRIC, NVLINK_ERRORS}
    | {"hw-slowdown", "sw-thermal", "hw-thermal", "hw-power-brake"}
)
#: Sources of errors by which a program on the card lost data: the card may be well again, and its results are not.
LOST_DATA = frozenset({"XID 48", "XID 94", "XID 95", "double-bit-ecc"})
#: Sources in words, where a screen names them alone; an XID is its own word.
SOURCE_WORDS: Mapping[str, str] = {
    "cordon": "cordon",
    "double-bit-ecc": "ECC error of two bits",
    "driver": "recovery action of the driver",
    "events": "errors cannot be heard",
    FABRIC: "NVLink fabric",
    FELL_TOO_OFTEN: "repeated faults",
    "hw-power-brake": "power brake",
    "hw-slowdown": "slowed down by the hardware",
    "hw-thermal": "slowed down by the hardware for heat",
    NO_SPARE_ROW: "no spare memory row",
    NVLINK_ERRORS: "NVLink errors",
    "pod-preflight": "failed preflight of a pod",
    "preflight": "preflight",
    "probe": "failed probes",
    ROW_REMAPPING: "memory row waits for a reset",
    SRAM_ECC: "errors of on-chip memory",
    "sw-thermal": "slowed down by the driver for heat",
    UNREADABLE: "card cannot be read",
}
#: Stands in :attr:`CardHealth.next` for the card, which an agent knows by its index alone: readers put the name there,
#: so that nobody learns a node's name who may not see it.
CARD_PLACE = "NODE/INDEX"
#: What the owners of the pods on a card can do, where the card has to be empty.
_EMPTY_IT = "delete the pods on it, so that their owners start them on other cards"
#: Who reboots a node, by the way that the administrator has chosen.
_REBOOTS: Mapping[str, str] = {
    "systemctl": ", which Tessera does once no pod holds any card of it",
    "sentinel": ", for which Tessera asks by /var/run/reboot-required",
    "annotation": ", for which Tessera asks by an annotation of the Node",
    "command": ", for which Tessera runs the administrator's command once no pod holds any card of it",
}
#: Remedies that say nothing to do.
_NO_REMEDY = frozenset({Remedy.IGNORE, Remedy.UNSTATED, Remedy.DRIVER_DECIDES})


def name_source(source: str) -> str:
    """The source of an error in words, such as ``NVLink errors``; XIDs, and what a newer agent knows, stay."""
    return SOURCE_WORDS.get(source, source)


def fill_card(text: str, node: str, index: int) -> str:
    """A next step with the card's name in it, so that it can be copied."""
    return text.replace(CARD_PLACE, f"{node}/{index}")


def describe_fault(error: Evidence) -> str:
    """The sentence about an error: class and number, meaning, and what happens next."""
    return f"{_name_error(error)}; {next_step(error)}"


def _name_error(error: Evidence) -> str:
    """The error with its class; an XID with its number, also if an agent of another version left it out of the text."""
    if error.source.startswith("XID ") and not error.text.startswith(error.source):
        return f"{error.source}, {error.text}" if error.text else error.source
    return error.text or name_source(error.source)


def next_step(error: Evidence) -> str:
    """What happens to the card, or to its part, because of an error, and what the owners of its pods can do."""
    if error.spared:
        return "still allocated, spared by the breaker: many cards of the cluster report this error"
    match error.asks:
        case "withhold" | "drain" if error.source == UNREADABLE:
            return "not allocated until it can be read again"
        case "replace":
            slot = ", or find out what its slot lacks" if error.source == FELL_TOO_OFTEN else ""
            return f"still allocated if nothing else is wrong with it; replace the card{slot}"
        case "preflight":
            return "not allocated until it passes its preflight"
        case "uncordon":
            return "not allocated until it is uncordoned; the pods on it keep running"
        case "withhold" | "drain":
            return f"not allocated until its probes succeed for a while{_remedy(error.source)}"
        case "reset" if error.reset:
            return "not allocated until its probes succeed for a while; it was reset"
        case "reset":
            return f"not allocated until it is reset, which needs it empty: {_empty_it(error)}"
        case "reboot":
            return f"not allocated until the node is rebooted{_REBOOTS.get(error.reboot, '')}: {_empty_it(error)}"
        case _ if error.source in MEASURED_ERRORS:
            return "still allocated; the fault ends when the card stops reporting it"
        case "attention":
            return "still allocated"
        case _:
            return f"asks for {error.asks}, which this version of Tessera does not know; use that of the agent"


def _empty_it(error: Evidence) -> str:
    """Who empties the card."""
    if not error.evicted:
        return _EMPTY_IT
    return f"Tessera evicts pods with an owner from {rfc3339(error.evicted)} on; delete the others"


def describe_xid(number: int) -> str:
    """An XID with its meaning: ``XID 48, memory lost data: an ECC error of two bits``."""
    known = XIDS.get(number)
    return f"XID {number}" if known is None else f"XID {number}, {known.text}"


def _remedy(source: str) -> str:
    """What NVIDIA's catalogue asks for after an XID; empty for other errors."""
    number = source.removeprefix("XID ")
    known = XIDS.get(int(number)) if number.isdecimal() and source != number else None
    return "" if known is None or known.remedy in _NO_REMEDY else f"; NVIDIA's remedy: {known.remedy.value}"


class Holder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod that holds a card that is not allocated; a process without a pod, if the card must be reset or booted.

    Attributes:
        namespace: of the pod; empty for a process of the host.
        pod: name of the pod; empty for a process of the host.
        pid: of the process of the host; 0 for a pod.
        process: its name.
    """

    namespace: Name = ""
    pod: Name = ""
    pid: int = 0
    process: Name = ""


class CardHealth(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The health of a card.

    Attributes:
        state: a value of :class:`CardState`; a reader takes any other word for ``unknown``.
        since: when the state began; 0 for a healthy card.
        evidence: its errors, worst first.
        next: what happens next, and what a person has to do; empty for a healthy card.
        holders: for a card that is not allocated, who holds it.
        cut: evidence and holders beyond those listed.
        test: result of the card's last preflight; empty if it had none.
    """

    state: Name = CardState.UNKNOWN
    since: Value = 0.0
    evidence: tuple[Evidence, ...] = ()
    next: Words = ""
    holders: tuple[Holder, ...] = ()
    cut: int = 0
    test: Words = ""


#: Seconds from which on a finding says how long it lasts.
_WORTH_SAYING = 60.0


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that is wrong with a container's use of its device.

    Attributes:
        kind: a word, see :mod:`tessera.agent.monitoring.findings`.
        text: the measurements that show it.
        advice: what the owner of the pod can do.
        window: seconds over which it was measured.
        lasts: seconds since it began; the agent knows no more than since its own start.
    """

    kind: Name
    text: Words = ""
    advice: Words = ""
    window: Value = 0.0
    lasts: Value = 0.0

    @property
    def name(self) -> str:
        """The kind in words: ``memory nearly full``."""
        return self.kind.replace("_", " ")

    @property
    def sentence(self) -> str:
        """What is wrong, since when, by which measurements, and what to do."""
        since = f" for {age(self.lasts)}" if self.lasts >= _WORTH_SAYING else ""
        return f"{self.name}{since}: {self.text}. {self.advice}"
