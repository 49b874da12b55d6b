"""A driver set: one DaemonSet's worth of drivers, and a node's way to it.

A set never changes. Another image, strategy or setting is another set with another name, so a node changes its driver
by changing its label :data:`~tessera.api.driver.node_status.DRIVER_SET_LABEL`, and goes back the same way.
"""

import hashlib
from typing import Any

import msgspec

from tessera.api.driver.driver_policy import DriverPolicy
from tessera.api.driver.node_status import DriverStrategy, RejectedStrategy
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
        settings: stands for the settings of its pods, see :func:`settings_digest`.
        toolkit: the Driver Toolkit's image that builds on RHCOS; empty where nothing is built with it.
    """

    id: str
    pool: PoolKey
    strategy: DriverStrategy
    image: str
    tag: str = ""
    version: str = ""
    policy: str = ""
    settings: str = ""
    toolkit: str = ""

    @property
    def name(self) -> str:
        """The DaemonSet's name."""
        return f"tessera-driver-{self.id}"

    @property
    def digest(self) -> str:
        """``sha256:…`` of the image; the whole reference where it has none."""
        return self.image.rpartition("@")[2]

    def same_driver(self, other: "DriverSet") -> bool:
        """Whether nodes get the very same driver from the other one, wherever its image is stored."""
        return (self.pool, self.digest, self.settings) == (other.pool, other.digest, other.settings)


class DriverChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a node should have.

    Attributes:
        strategy: how.
        set: which set; None for pre-installed and blocked.
        reason: why, in one sentence.
        rejected: better strategies and why they were not taken, best first.
    """

    strategy: DriverStrategy
    set: DriverSet | None
    reason: str
    rejected: tuple[RejectedStrategy, ...] = ()


def make_set(
    policy: DriverPolicy, pool: PoolKey, strategy: DriverStrategy, image: str, *, tag: str = "", toolkit: str = ""
) -> DriverSet:
    """The set of nodes of one pool that run one image under one policy.

    Its name does not depend on where the policy stands: an object that is deleted and made again, or renamed, moves
    nothing.
    """
    settings = settings_digest(policy)
    parts = (pool, strategy is DriverStrategy.BUILT, image, settings, toolkit)
    return DriverSet(
        id=_digest(parts),
        pool=pool,
        strategy=strategy,
        image=image,
        tag=tag,
        version=policy.source.version,
        policy=f"{policy.kind}/{policy.name}",
        settings=settings,
        toolkit=toolkit,
    )


def settings_digest(policy: DriverPolicy) -> str:
    """Ten hexadecimal digits for all settings of a policy that its driver pods are made of, the image apart."""
    return _digest(
        (
            policy.kernel_module_type,
            policy.source.pull_policy,
            policy.source.pull_secrets,
            policy.startup_probe,
            policy.rdma,
            policy.rdma_host_mofed,
            policy.env,
            policy.args,
            policy.resources,
            policy.host_network,
            policy.config_maps,
            policy.licensing_secret,
            policy.secret_env,
            policy.manager,
            policy.labels,
            policy.annotations,
            policy.tolerations,
            policy.priority_class,
            policy.driver_root,
        )
    )


def _digest(parts: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()[:10]
