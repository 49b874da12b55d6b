"""The owners that pods name, and what the API server says of them."""

from typing import NamedTuple


class Owner(NamedTuple):
    """The owner that a pod names: namespace, kind and name as in :attr:`PodInfo.maker`, and UID."""

    namespace: str
    maker: str
    uid: str


class Workload(NamedTuple):
    """What an owner belongs to, as the API server said.

    Attributes:
        top: UID of the topmost owner: the Deployment of a ReplicaSet that has one, else the owner itself.
        wanted: the pods that the topmost owner wants; 0 for one that is being deleted, and for a Job.
        revision: the revision of a Deployment's ReplicaSet, the newest has the highest; 0 for others.
    """

    top: str
    wanted: int
    revision: int = 0
