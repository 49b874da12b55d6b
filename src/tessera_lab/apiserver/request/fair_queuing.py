"""The order in which waiting requests are served: by levels and users in turn, so that nobody waits for one who floods.

kube-apiserver bounds the requests that it serves at the same time, and takes the next one from priority levels by their
shares, and in a level from its flows in turn (API Priority and Fairness, KEP-1040). Without it, the 20 creations and
the thousands of events of a burst of pods are all ready together in the one thread of the lab, and every step of a pod
waits until each of them has run once.

Rules:

1. A request waits in the queue of its user. It is released once; what it waits for afterwards, a webhook for instance,
   delays no other request. So requests that wait for each other cannot block each other.
2. A request has a width: 1, or more for a list (:func:`width_of`). Requests of about :data:`RELEASED_AT_ONCE` together
   are released in one turn of the event loop.
3. The next request is from the level that has had the least width for its share, and in it from the user who has had
   the least (start-time fair queuing). Who was idle begins at the present: nothing is saved up.
4. Requests of one user keep their order. One whose client has given up costs nothing.

Levels, shares, widths and the first rules for users are those that kube-apiserver makes by itself; FlowSchemas add to
them. Different are: nobody is exempt, since one thread has no capacity to spare; flows of a level are told apart by
user only; and queues have no limit, so no request is refused with 429.
"""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping

from tessera_lab.apiserver.interfaces import UserInfo
from tessera_lab.apiserver.request.flow_schemas import SHARES, level_of
from tessera_lab.apiserver.request.routing import Route

#: Width that is released in one turn of the event loop. With one, every watcher would be woken for every change by
#: itself, which doubles the CPU time of a burst; with all of them, each would wait for all others (bench/slices.py).
RELEASED_AT_ONCE = 4

#: Objects that a list reads for each unit of its width, and the largest width (k8s.io/apiserver/pkg/util/flowcontrol/
#: request/config.go: objectsPerSeat, maximumSeatsLimit).
OBJECTS_PER_WIDTH, LARGEST_WIDTH = 100, 10


def width_of(objects: int) -> int:
    """Returns the width of a request that reads so many objects."""
    return min(max(1, -(-objects // OBJECTS_PER_WIDTH)), LARGEST_WIDTH)


class _Waiting:
    """A request: ``turn`` is done when it is released, or when its client has given up."""

    __slots__ = ("turn", "width")

    def __init__(self, turn: asyncio.Future[None], width: int) -> None:
        self.turn = turn
        self.width = width


class _Level:
    """The waiting requests of a level.

    Attributes:
        queues: by user, never empty ones.
        served: the width released, divided by the share; the measure by which levels take turns.
    """

    def __init__(self, share: int) -> None:
        self.queues: dict[str, deque[_Waiting]] = {}
        self.served = 0.0
        self._share = share
        #: Users who wait, by the width that they have had; the number keeps the order of those with equal ones.
        self._users: list[tuple[int, int, str]] = []
        self._number = itertools.count()
        #: The measure of the user who was served last, before that.
        self._present = 0

    def put(self, user: str, request: _Waiting, present: float) -> None:
        if not self.queues:
            self.served = max(self.served, present)
        queue = self.queues.get(user)
        if queue is None:
            queue = self.queues[user] = deque()
            heapq.heappush(self._users, (self._present, next(self._number), user))
        queue.append(request)

    def pop(self) -> _Waiting | None:
        """Takes the next request; None if every client of this level has given up."""
        while self._users:
            had, _, user = heapq.heappop(self._users)
            queue = self.queues[user]
            while queue and queue[0].turn.done():
                queue.popleft()
            if not queue:
                del self.queues[user]
                continue
            request = queue.popleft()
            self._present = had
            if queue:
                heapq.heappush(self._users, (had + request.width, next(self._number), user))
            else:
                del self.queues[user]
            self.served += request.width / self._share
            return request
        return None


class FairQueues:
    """The waiting requests of one server.

    Args:
        level_of: returns the level of a user's request, one of those with shares.
        shares: the levels.
    """

    def __init__(
        self,
        level_of: Callable[[UserInfo, Route | None], str] = level_of,
        shares: Mapping[str, int] = SHARES,
    ) -> None:
        self._level_of = level_of
        self._levels = {name: _Level(share) for name, share in shares.items()}
        #: :attr:`_Level.served` of the level that was served last, before it was.
        self._present = 0.0
        #: True while :meth:`_release` is due in the event loop.
        self._releasing = False

    async def wait_turn(self, user: UserInfo, route: Route | None = None, *, width: int = 1) -> None:
        """Returns when a request of this user is to be served; never before the next turn of the event loop."""
        loop = asyncio.get_running_loop()
        request = _Waiting(loop.create_future(), width)
        self._levels[self._level_of(user, route)].put(user.name, request, self._present)
        if not self._releasing:
            self._releasing = True
            loop.call_soon(self._release, loop)
        await request.turn

    def _release(self, loop: asyncio.AbstractEventLoop) -> None:
        released = 0
        while released < RELEASED_AT_ONCE:
            busy = [level for level in self._levels.values() if level.queues]
            if not busy:
                self._releasing = False
                return
            level = min(busy, key=lambda each: each.served)
            present = level.served
            request = level.pop()
            if request is not None:
                self._present = present
                request.turn.set_result(None)
                released += request.width
        loop.call_soon(self._release, loop)
