"""Pools and driver sets: nodes that can share a driver image, and the drivers and names of a DaemonSet.

A pool's key holds the whole kernel string. A shortened one would make nodes of two architectures look alike, and the
second would never get a driver.

A set never changes. Another image, strategy or setting is another set with another name, so a node changes its driver
by changing its label :data:`~tessera.api.nodes.node_marks.DRIVER_SET_LABEL`, and goes back the same way.

No part of a kernel's name becomes part of an object's name or label: both restrict characters and length. An annotation
of the DaemonSet holds the whole driver set; a controller that has just started reads it there.
"""

import hashlib
from typing import Any

import msgspec

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.nodes.node_marks import DRIVER_APP, DRIVER_SET_LABEL, VALIDATION_APP, DriverStrategy, RejectedStrategy
from tessera.gpu_operator.driver_policy import DriverPolicy, digest_parts
from tessera.kube.resources.meta import ObjectMeta


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


NAMESPACE = SYSTEM_NAMESPACE
APP_LABEL = "app.kubernetes.io/name"
PART_OF = {"app.kubernetes.io/part-of": "tessera"}
#: The gpu-operator's label that says which driver a pod brings; its tools find driver pods by it.
COMPONENT = {"app.kubernetes.io/component": "nvidia-driver"}

#: Annotation of a DaemonSet: its :class:`~tessera.driver.driver_sets.DriverSet` as JSON.
SET_ANNOTATION = "tessera.dev/driver-set"
#: Annotation of a DaemonSet: hash of its whole spec. The controller writes the DaemonSet only if the hash differs.
SPEC_ANNOTATION = "tessera.dev/spec"

#: The service account of driver pods; the driver manager uses it to pause and label nodes.
DRIVER_ACCOUNT = "tessera-driver"
RUNTIME_CLASS = "nvidia"

#: Containers of a driver pod.
DRIVER_CONTAINER = "nvidia-driver-ctr"
MANAGER_CONTAINER = "k8s-driver-manager"
BUILD_CONTAINER = "openshift-driver-toolkit-ctr"

#: The container in the toolkit's pod.
TOOLKIT_CONTAINER = "nvidia-container-toolkit-ctr"

#: A value of the API, as JSON.
Json = dict[str, Any]


def set_labels(made: DriverSet) -> dict[str, str]:
    """Labels of a driver set's pods and of its DaemonSet."""
    return {APP_LABEL: DRIVER_APP, **PART_OF, **COMPONENT, DRIVER_SET_LABEL: made.id}


def app_labels(app: str) -> dict[str, str]:
    """Labels of the pods of another component."""
    return {APP_LABEL: app, **PART_OF}


def set_of(meta: ObjectMeta) -> DriverSet | None:
    """The driver set of a DaemonSet; None if the DaemonSet is not Tessera's, or its annotation cannot be read."""
    if meta.labels.get(APP_LABEL) != DRIVER_APP:
        return None
    try:
        found = msgspec.json.decode(meta.annotations.get(SET_ANNOTATION, ""), type=DriverSet)
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if found.name == meta.name else None


def set_text(made: DriverSet) -> str:
    """The annotation's value for a driver set."""
    return msgspec.json.encode(made).decode()


def validation_name(node_uid: str) -> str:
    """The name of a node's validation pod: constant over restarts, different if the Node object is made anew."""
    return f"{VALIDATION_APP}-{node_uid}"


def secrets(*names: str) -> Json:
    """The pod's ``imagePullSecrets``; an empty dict without names."""
    found = [{"name": name} for name in dict.fromkeys(names) if name]
    return {"imagePullSecrets": found} if found else {}
