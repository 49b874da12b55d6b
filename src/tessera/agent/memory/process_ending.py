"""Ends a process that takes too much memory, after everything that led to the decision was looked at again.

Between a sample and the deed time passes: the process may have ended and its PID be another's, it may have given memory
back, NVML may have stopped telling the truth. So a pidfd is opened first, and then start time, pod and memory are read
anew; only if all still hold is the signal sent, through the pidfd. Nothing is tried again here: what is still over at
the next sample is decided on anew.
"""

import signal
from collections.abc import Awaitable, Callable
from enum import Enum

from tessera.agent.base.processes import ProcessId, ProcessTable
from tessera.agent.memory.policy import Act, Card, Decision, plausible, used_by_pod

#: Reads a card as it is now, ``None`` if it cannot be read.
ReadCard = Callable[[str], Awaitable[Card | None]]

_SIGNALS = {Act.TERMINATE: signal.SIGTERM, Act.KILL: signal.SIGKILL}


class Outcome(Enum):
    """What became of a decision."""

    SENT = "sent"
    #: The process has ended.
    ENDED = "ended"
    #: The process is not proven to be of the pod.
    NOT_OF_POD = "not-of-pod"
    #: The process no longer holds memory on the card.
    NOT_ON_CARD = "not-on-card"
    #: The pod is within its limit again.
    WITHIN_LIMIT = "within-limit"
    #: The card cannot be read, or its numbers cannot be true.
    UNREADABLE = "unreadable"
    #: The kernel did not let us, or knows no pidfds.
    NOT_PERMITTED = "not-permitted"


async def carry_out(decision: Decision, *, processes: ProcessTable, read_card: ReadCard) -> Outcome:
    """Sends the signal of a decision if it still holds.

    Args:
        decision: ``TERMINATE`` or ``KILL``.
        processes: the machine's.
        read_card: reads the card that the decision is about.

    Raises:
        ValueError: the decision is of another kind.
    """
    number = _SIGNALS.get(decision.act)
    process = decision.process
    if number is None or process is None:
        raise ValueError(f"decision {decision.act.value} on pod {decision.pod}: only a process can be signalled")
    try:
        with processes.hold(process) as held:
            if held is None:
                return Outcome.ENDED
            against = await still_holds(decision, process, processes=processes, read_card=read_card)
            if against is not None:
                return against
            return Outcome.SENT if held.send(number) else Outcome.ENDED
    except OSError:
        return Outcome.NOT_PERMITTED


async def still_holds(
    decision: Decision, process: ProcessId | None, *, processes: ProcessTable, read_card: ReadCard
) -> Outcome | None:
    """What speaks against a decision now; ``None`` if nothing does. Without a process only the pod's use is judged."""
    if process is not None:
        residence = processes.residence(process)
        if residence is None or residence.pod != decision.pod:
            return Outcome.NOT_OF_POD
    card = await read_card(decision.device)
    if card is None or not plausible(card):
        return Outcome.UNREADABLE
    if process is not None and not any((use.process, use.pod) == (process, decision.pod) for use in card.uses):
        return Outcome.NOT_ON_CARD
    return None if used_by_pod(card.uses).get(decision.pod, 0) > decision.limit else Outcome.WITHIN_LIMIT
