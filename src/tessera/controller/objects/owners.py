"""The owners that pods name, and what the API server says of them."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple


class Owner(NamedTuple):
    """The owner that a pod names: namespace, kind and name as in :attr:`PodInfo.maker`, and UID."""

    namespace: str
    maker: str
    uid: str


class Workload(NamedTuple):
    """What an owner belongs to, as the API server said.

    Attributes:
        top: UID of the topmost owner: the Deployment of a ReplicaSet that has one, else the owner itself; of the
            workers of a LeaderWorkerSet's group one of the group.
        wanted: the pods that the topmost owner wants; 0 for one that is being deleted, and for a Job.
        revision: the revision of a Deployment's ReplicaSet, the newest has the highest; 0 for others.
        name: the Deployment's name; empty for others.
        keeps_old: an update ends no old pod before a new one is available.
        ready_for: seconds for which a new pod must be ready before it counts (``minReadySeconds``).
        deadline: seconds that a new pod may take until it is ready (``progressDeadlineSeconds``).
    """

    top: str
    wanted: int
    revision: int = 0
    name: str = ""
    keeps_old: bool = False
    ready_for: int = 0
    deadline: int = 600


#: Reads what an owner belongs to; None if the object of its name is another. It raises ApiError and OSError.
OwnerReader = Callable[[Owner], Awaitable[Workload | None]]
