"""Decides when the conditions of a silent agent become ``Unknown``. Pure.

An agent that is away for seconds, as in an update of its DaemonSet, changes nothing: its conditions are marked after
:data:`GRACE` of silence, one time only. The agent takes them over when it returns.

An agent may speak although Kubernetes reports it as dead: kubelet has failed and the agent has not, or it writes and
crashes again and again. Then it overwrites the mark. The next one waits twice as long each time, up to
:data:`LONGEST`, so that two writers who disagree do not keep an API server busy.

Times are monotonic seconds of this process: clocks of nodes are not compared. A new leader counts from its start.
"""

import heapq

import msgspec

#: Seconds of silence after which conditions are marked. Kubernetes gives kubelet 40 s before its Ready becomes Unknown
#: (``--node-monitor-grace-period``; 50 s since 1.32). A container that is started again is Ready within 20 s: 10 s of
#: kubelet's first back-off, the probes' periods of 5 and 10 s. And a minute is the most that a reader shall be wrong.
GRACE = 40.0
#: The most seconds between two marks of one silence.
LONGEST = 3600.0


class AgentObserved(msgspec.Struct, frozen=True):
    """The state of a node's agent.

    Attributes:
        node: the node's name.
        silent: True if the agent should speak and does not.
        marked: True if nothing is left to mark.
        at: monotonic seconds.
    """

    node: str
    silent: bool
    marked: bool
    at: float


class MarkWritten(msgspec.Struct, frozen=True):
    """The conditions of a node's agent were marked."""

    node: str


class MarkFailed(msgspec.Struct, frozen=True):
    """They could not be marked; to be tried again at ``again``, monotonic seconds."""

    node: str
    again: float


class _Episode(msgspec.Struct):
    """A silence of one agent.

    Attributes:
        marks: the marks that were written.
        due: time of the next one; None while nothing is left to mark.
    """

    marks: int = 0
    due: float | None = None


class SilenceMarks:
    """The silent agents, and the nodes whose conditions are due."""

    def __init__(self) -> None:
        #: By node, the present silence; a node whose agent speaks has none.
        self._episodes: dict[str, _Episode] = {}
        #: Times and nodes; each due node has an entry with its time, other entries are outdated.
        self._queue: list[tuple[float, str]] = []

    def handle(self, event: AgentObserved | MarkWritten | MarkFailed) -> None:
        """Takes an event in."""
        match event:
            case AgentObserved(silent=False):
                self._episodes.pop(event.node, None)
            case AgentObserved():
                self._observe(event)
            case MarkWritten(node):
                if node in self._episodes:
                    self._episodes[node].marks += 1
                    self._episodes[node].due = None
            case MarkFailed(node, again):
                if node in self._episodes:
                    self._schedule(node, again)

    def _observe(self, event: AgentObserved) -> None:
        episode = self._episodes.setdefault(event.node, _Episode())
        if event.marked:
            episode.due = None
        elif episode.due is None:
            self._schedule(event.node, event.at + min(LONGEST, GRACE * 2.0 ** min(episode.marks, 16)))

    def _schedule(self, node: str, due: float) -> None:
        self._episodes[node].due = due
        heapq.heappush(self._queue, (due, node))

    @property
    def next_due(self) -> float | None:
        """Time of the next mark; None if none is due while nothing changes."""
        while self._queue and not self._is_due(*self._queue[0]):
            heapq.heappop(self._queue)
        return self._queue[0][0] if self._queue else None

    def _is_due(self, due: float, node: str) -> bool:
        return node in self._episodes and self._episodes[node].due == due

    def take_due(self, now: float) -> str | None:
        """The node to mark now; None if none is due. The caller answers by :class:`MarkWritten` or `MarkFailed`."""
        due = self.next_due
        if due is None or due > now:
            return None
        node = heapq.heappop(self._queue)[1]
        self._episodes[node].due = None
        return node
