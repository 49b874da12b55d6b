"""A driver set: one DaemonSet's worth of drivers, and a node's way to it.

A set never changes. Another image, strategy or setting is another set with another name, so a node changes its driver
by changing its label :data:`~tessera.api.driver.status.DRIVER_SET_LABEL`, and goes back the same way.
"""

import msgspec

from tessera.api.driver.status import Rejected, Strategy
from tessera.driver.pool import PoolKey


class DriverSet(msgspec.Struct, frozen=True, kw_only=True):
    """What one DaemonSet runs.

    Attributes:
        id: ten hexadecimal digits; from everything that decides what runs, settings of the pod included.
        pool: the nodes it fits.
        strategy: how its nodes come to their driver; never pre-installed or blocked.
        image: what its pods run, by digest where a registry told one.
        tag: the tag that was found.
        version: as asked for.
        policy: the object that asks for it, ``ClusterPolicy/cluster-policy``.
    """

    id: str
    pool: PoolKey
    strategy: Strategy
    image: str
    tag: str = ""
    version: str = ""
    policy: str = ""

    @property
    def name(self) -> str:
        """The DaemonSet's name."""
        return f"tessera-driver-{self.id}"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What a node should have.

    Attributes:
        strategy: how.
        set: which set; None for pre-installed and blocked.
        reason: why, in one sentence.
        rejected: better strategies and why they were not taken, best first.
    """

    strategy: Strategy
    set: DriverSet | None
    reason: str
    rejected: tuple[Rejected, ...] = ()
