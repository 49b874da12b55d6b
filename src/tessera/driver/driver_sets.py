"""Pools and driver sets: nodes that can share a driver image, and the drivers of one DaemonSet.

A pool's key holds the whole kernel string. A shortened one would make nodes of two architectures look alike, and the
second would never get a driver.

A set never changes. Another image, strategy or setting is another set with another name, so a node changes its driver
by changing its label :data:`~tessera.api.nodes.node_marks.DRIVER_SET_LABEL`, and goes back the same way.
"""

import hashlib

import msgspec

from tessera.api.nodes.node_marks import DriverStrategy, RejectedStrategy
from tessera.gpu_operator.driver_policy import DriverPolicy, digest_parts


class PoolKey(msgspec.Struct, frozen=True, order=True, kw_only=True):
    """The properties that decide which image fits a node.

    Attributes:
        os_id: ``ID`` of os-release: ubuntu, rhel, rhcos, rocky …
        os_version: its ``VERSION_ID``: 22.04, 9.4, 4.15.
        kernel: ``uname -r`` in full: 5.15.0-69-generic, 5.14.0-284.54.1.el9_2.aarch64+64k.
        architecture: in the registries' spelling: amd64 or arm64.
        page_kib: size of a memory page in KiB, 4 or 64.
        ostree: version of RHCOS's image, which names the Driver Toolkit's images; empty on other systems.
    """

    os_id: str
    os_version: str
    kernel: str
    architecture: str
    page_kib: int = 4
    ostree: str = ""

    @property
    def text(self) -> str:
        """For messages: ``ubuntu22.04 5.15.0-69-generic amd64``."""
        pages = "" if self.page_kib == 4 else f" {self.page_kib}k pages"
        return f"{self.os_id}{self.os_version} {self.kernel} {self.architecture}{pages}"

    @property
    def digest(self) -> str:
        """Ten hexadecimal digits: a hash of the key for names and labels."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:10]


class DriverSet(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that one DaemonSet runs.

    Attributes:
        id: ten hexadecimal digits; a hash of everything that decides what runs, including settings of the pod.
        pool: the pool of nodes that it fits.
        strategy: the way in which its nodes get their driver; never pre-installed or blocked.
        image: its pods' image, by digest if a registry reported one.
        tag: the tag that was found.
        version: the version as requested.
        policy: the object that asks for it, ``ClusterPolicy/cluster-policy``.
        settings: a hash of its pods' settings; see ``DriverPolicy.settings_digest``.
        toolkit: the Driver Toolkit's image that builds on RHCOS; empty if nothing is built with it.
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
        """``sha256:…`` of the image; the whole reference if it has none."""
        return self.image.rpartition("@")[2]

    def same_driver(self, other: "DriverSet") -> bool:
        """True if nodes get exactly the same driver from the other set, even if its image is stored elsewhere."""
        return (self.pool, self.digest, self.settings) == (other.pool, other.digest, other.settings)


class DriverChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that a node should have.

    Attributes:
        strategy: the way to get it.
        set: the driver set; None for pre-installed and blocked.
        reason: why this one was chosen, in one sentence.
        rejected: better strategies with the reasons against them, best first.
    """

    strategy: DriverStrategy
    set: DriverSet | None
    reason: str
    rejected: tuple[RejectedStrategy, ...] = ()


def make_set(
    policy: DriverPolicy, pool: PoolKey, strategy: DriverStrategy, image: str, *, tag: str = "", toolkit: str = ""
) -> DriverSet:
    """The set for nodes of one pool that run one image under one policy.

    Its name does not depend on the policy object. So nothing moves when the object is deleted and made again, or
    renamed.
    """
    settings = policy.settings_digest
    parts = (pool, strategy is DriverStrategy.BUILT, image, settings, toolkit)
    return DriverSet(
        id=digest_parts(parts),
        pool=pool,
        strategy=strategy,
        image=image,
        tag=tag,
        version=policy.source.version,
        policy=policy.full_name,
        settings=settings,
        toolkit=toolkit,
    )
