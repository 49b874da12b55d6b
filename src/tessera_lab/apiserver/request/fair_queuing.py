"""The order in which waiting requests are served: by levels and users in turn, so that nobody waits for one who floods.

kube-apiserver bounds the requests that it serves at the same time, and takes the next one from priority levels by their
shares, and in a level from its flows in turn (API Priority and Fairness, KEP-1040). Without it, the 20 creations and
the thousands of events of a burst of pods are all ready together in the one thread of the lab, and every step of a pod
waits until each of them has run once.

Rules:

1. A request waits in the queue of its user. It is released once; what it waits for afterwards, a webhook for instance,
   delays no other request. So requests that wait for each other cannot block each other.
2. At most :data:`RELEASED_AT_ONCE` requests are released in one turn of the event loop.
3. The next request is from the level that has had the least for its share (start-time fair queuing). A level that was
   empty begins at the present: it gets nothing for the time in which it asked for nothing.
4. In a level the users take turns. Requests of one user keep their order.

Levels and the rules for users are those that kube-apiserver makes by itself, with two simplifications: nobody is
exempt, since one thread has no capacity to spare, and the shares are the lab's own.
"""

import asyncio
from collections import deque
from collections.abc import Mapping

from tessera_lab.apiserver.interfaces import UserInfo

#: Requests that are released in one turn of the event loop. With one, every watcher would be woken for every change by
#: itself, which doubles the CPU time of a burst; with all of them, each would wait for all others (bench/slices.py).
RELEASED_AT_ONCE = 4

#: Levels with their shares. Nodes and control plane report and carry out what was decided before, mostly with events;
#: people and controllers in pods wait for their answers.
SHARES: Mapping[str, int] = {"system": 10, "workload-high": 10, "workload-low": 200, "global-default": 50}

_CONTROL_PLANE = frozenset({"system:kube-controller-manager", "system:kube-scheduler"})

_Queue = deque[asyncio.Future[None]]


def level_of(user: UserInfo) -> str:
    """Returns the priority level of a user's requests."""
    if "system:nodes" in user.groups:
        return "system"
    if "system:serviceaccounts" in user.groups:
        return "workload-low"
    return "workload-high" if user.name in _CONTROL_PLANE else "global-default"


class _Level:
    """The waiting requests of a level.

    Attributes:
        queues: by user, never empty ones; the user whose turn is next comes first.
        served: the requests released, divided by the share; the measure by which levels take turns.
    """

    def __init__(self, share: int) -> None:
        self.queues: dict[str, _Queue] = {}
        self.served = 0.0
        self._cost = 1.0 / share

    def put(self, user: str, request: asyncio.Future[None], present: float) -> None:
        if not self.queues:
            self.served = max(self.served, present)
        self.queues.setdefault(user, deque()).append(request)

    def pop(self) -> asyncio.Future[None]:
        user = next(iter(self.queues))
        queue = self.queues.pop(user)
        request = queue.popleft()
        if queue:
            self.queues[user] = queue
        self.served += self._cost
        return request


class FairQueues:
    """The waiting requests of one server."""

    def __init__(self, shares: Mapping[str, int] = SHARES) -> None:
        self._levels = {name: _Level(share) for name, share in shares.items()}
        #: :attr:`_Level.served` of the level that was served last, before it was.
        self._present = 0.0
        #: True while :meth:`_release` is due in the event loop.
        self._releasing = False

    async def wait_turn(self, user: UserInfo) -> None:
        """Returns when a request of this user is to be served; never before the next turn of the event loop."""
        loop = asyncio.get_running_loop()
        request: asyncio.Future[None] = loop.create_future()
        self._levels[level_of(user)].put(user.name, request, self._present)
        if not self._releasing:
            self._releasing = True
            loop.call_soon(self._release, loop)
        await request

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        released = 0
        while released < RELEASED_AT_ONCE:
            busy = [level for level in self._levels.values() if level.queues]
            if not busy:
                self._releasing = False
                return
            level = min(busy, key=lambda each: each.served)
            self._present = level.served
            request = level.pop()
            if not request.done():  # its client has given up
                request.set_result(None)
                released += 1
        loop.call_soon(self._release, loop)
