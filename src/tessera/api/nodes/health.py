"""The health of a card, and what is wrong with a pod's use of it, as agents report them on the page ``/usage``.

Times are Unix times in seconds. Texts are for people; words that programs compare are listed with their field. A reader
of another agent's page trusts nothing: :mod:`tessera.api.nodes.bounds` bounds numbers and texts,
:mod:`tessera.usage.agent_pages` the page, and who shows a text escapes it.
"""

from enum import StrEnum

import msgspec

from tessera.api.nodes.bounds import Name, Value, Words

#: Consequences of a fault, in messages of the condition ``GpuHealthy``: the beginning of each, and the one of a card
#: that needs a reboot.
WITHHELD = "not allocated"
UNTIL_BOOT = f"{WITHHELD} until the node is rebooted"
#: Next step of a lost card, and of one that needs a reboot.
BOOT_STEP = "drain and reboot the node; if the error returns after that, the card or its slot is broken"


class CardState(StrEnum):
    """State of a card; the worst of its faults decides."""

    #: Nothing is wrong.
    HEALTHY = "healthy"
    #: Something is wrong, and the card is still allocated.
    DEGRADED = "degraded"
    #: Not allocated until probes have succeeded for a while.
    DRAINING = "draining"
    #: Not allocated before the card is reset.
    NEEDS_RESET = "needs_reset"
    #: Not allocated before the node is booted.
    NEEDS_REBOOT = "needs_reboot"
    #: The driver cannot reach the card.
    LOST = "lost"
    #: The agent has not probed the card yet, or is too old to tell.
    UNKNOWN = "unknown"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One error of a card that is not over.

    Attributes:
        source: ``XID 79``, ``double-bit-ecc``, ``probe``, ``driver``, ``events``, ``row remapping`` or a throttle
            reason such as ``hw_thermal``.
        text: the error in words.
        asks: ``attention``, ``drain``, ``reset`` or ``reboot``.
        part: the GPU instance with the error, ``GPU instance 7``; empty for the whole card.
        since: time of the first error.
        last: time of the last error.
        count: number of errors.
        spared: True if the error would take the card away, and the breaker of the cluster prevents it.
    """

    source: Name
    text: Words = ""
    asks: Name = "attention"
    part: Name = ""
    since: Value = 0.0
    last: Value = 0.0
    count: int = 1
    spared: bool = False


class Holder(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A pod, or a process that no pod has, which holds a card that must be reset or booted.

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
        holders: for a card that must be reset or booted, who holds it.
        cut: evidence and holders beyond those listed.
    """

    state: Name = CardState.UNKNOWN
    since: Value = 0.0
    evidence: tuple[Evidence, ...] = ()
    next: Words = ""
    holders: tuple[Holder, ...] = ()
    cut: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Something that is wrong with a container's use of its device.

    Attributes:
        kind: a word, see :mod:`tessera.agent.monitoring.findings`.
        text: the measurements that show it.
        advice: what the owner of the pod can do.
        window: seconds over which it was measured.
    """

    kind: Name
    text: Words = ""
    advice: Words = ""
    window: Value = 0.0
