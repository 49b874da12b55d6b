"""How long kubelet waits before it starts a container again.

The first restart is immediate, then 10 s, 20 s, ... up to five minutes; a run of ten minutes makes the next restart
immediate again (``pkg/kubelet/kubelet.go``: ``backOffPeriod``, ``MaxContainerBackOff``). A container that could not
even be created is tried again after 10 s, without growth (the pod workers' ``backOffPeriod``).
"""

#: Seconds.
FIRST = 10.0
LONGEST = 300.0
FORGIVEN_AFTER = 600.0
CREATE_RETRY = 10.0


class CrashBackoff:
    """The back-off of one container."""

    def __init__(self) -> None:
        self._next = 0.0

    def after(self, ran: float) -> float:
        """Seconds to wait after a run of ``ran`` seconds."""
        if ran >= FORGIVEN_AFTER:
            self._next = 0.0
        pause = self._next
        self._next = min(LONGEST, pause * 2 or FIRST)
        return pause


class PullBackoff:
    """The back-off of one container's image: 10 s after the first failure, then twice as long, up to five minutes.

    Attributes:
        due: when the next pull may begin, monotonic seconds.
        why: what the last one failed with.
    """

    def __init__(self) -> None:
        self.due = 0.0
        self.why = ""
        self._next = FIRST

    def failed(self, now: float, why: str) -> None:
        """A pull failed."""
        self.due, self.why = now + self._next, why
        self._next = min(LONGEST, self._next * 2)
