"""Why a node cannot take a pod, in kube-scheduler's words."""

import msgspec


class Refusal(msgspec.Struct, frozen=True):
    """One reason.

    Attributes:
        reason: the words.
        final: no pod's end would change it (``UnschedulableAndUnresolvable``), so preemption does not try.
    """

    reason: str
    final: bool = False
