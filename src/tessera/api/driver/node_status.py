"""The driver status of a node: the annotation ``tessera.dev/driver``, its labels and marker files.

Written by the controller, read by ``tessera driver status``, ``tessera why node/…`` and the records of provisioning.
"""

from enum import Enum

import msgspec

#: Annotation of a node: a :class:`DriverStatus` as JSON.
DRIVER_ANNOTATION = "tessera.dev/driver"
#: Condition of a node: its driver is what it should be and answers.
DRIVER_CONDITION = "GpuDriverReady"
#: Condition of a node, by its agent: the node's allocatable shows the cards; False while the agent waits for a driver
#: or lets go of one.
ADVERTISED_CONDITION = "GpuNodeReady"
#: Its reason while kubelet has the cards, and its status does not show them yet; the agent has the driver open.
WAITING_FOR_KUBELET = "WaitingForKubelet"
#: Seconds that nodes wait for the one build of their kernel's image before they build for themselves, and for which a
#: startup deadline stands still at most. NVIDIA's CI takes about 19 min for a build.
BUILD_PATIENCE = 2400.0
#: Label of a node: the driver set whose DaemonSet runs on it.
DRIVER_SET_LABEL = "tessera.dev/driver-set"

#: Labels of pods that this project runs on nodes.
AGENT_APP = "tessera-agent"
DRIVER_APP = "tessera-driver"
TOOLKIT_APP = "tessera-container-toolkit"
VALIDATION_APP = "tessera-validation"

#: Label of a node that NVIDIA's operator and driver manager set while a driver is replaced; whoever uses cards lets go.
PAUSE_LABEL = "nvidia.com/gpu.deploy.device-plugin"
PAUSED = "paused-for-driver-upgrade"

#: Label of a node with the state of its upgrade; the values are upstream's.
UPGRADE_STATE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
UPGRADE_SKIP_LABEL = "nvidia.com/gpu-driver-upgrade.skip"
DRAIN_SKIP_LABEL = "nvidia.com/gpu-driver-upgrade-drain.skip"

#: Where parts of the stack tell each other on the node that they are ready; the folder and names are upstream's.
MARKER_FOLDER = "/run/nvidia/validations"
DRIVER_CONTAINER_READY = ".driver-ctr-ready"
DRIVER_READY = "driver-ready"
TOOLKIT_READY = "toolkit-ready"
CUDA_READY = "cuda-ready"
PLUGIN_READY = "plugin-ready"


class DriverStrategy(Enum):
    """Ways in which a node gets its driver, best first."""

    PREINSTALLED = "pre-installed"
    PRECOMPILED = "precompiled"
    PRECOMPILED_BRANCH = "precompiled-branch"
    MIRROR = "mirror"
    BUILT = "built"
    BLOCKED = "blocked"


class DriverPhase(Enum):
    """Progress of a node's driver."""

    WAITING = "waiting"  # for facts about the node, or for an answer of a registry
    PULLING = "pulling"
    STARTING = "starting"  # loads, or builds and loads
    READY = "ready"
    UPGRADING = "upgrading"
    FAILED = "failed"
    BLOCKED = "blocked"


class RejectedStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """A better strategy that was not taken, and why."""

    strategy: DriverStrategy
    reason: str


class DriverStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's driver.

    Attributes:
        strategy: how it comes.
        image: the image by digest; empty if there is none.
        tag: the tag that was found.
        version: the driver's version or branch, as asked for.
        pool: the node's pool, as text.
        set: the driver set's id.
        phase: how far it is.
        since: RFC 3339, when the phase began.
        reason: one sentence: why this strategy, or what is awaited.
        rejected: better strategies, best first.
        leaving: nobody asks for the driver any more; it goes when the pods that use it have ended.
        offered: a better strategy that has become possible and is taken when the node is idle or reboots.
        boot: the boot of the node in which all this was found.
        proven: the boot in which a driver was last proven to work; empty if none ever was.
    """

    strategy: DriverStrategy
    phase: DriverPhase
    since: str
    image: str = ""
    tag: str = ""
    version: str = ""
    pool: str = ""
    set: str = ""
    reason: str = ""
    rejected: tuple[RejectedStrategy, ...] = ()
    leaving: bool = False
    offered: str = ""
    boot: str = ""
    proven: str = ""

    @property
    def shared(self) -> bool:
        """Whether another node in this one's place would be told the same: it is said of the pool, not of the node."""
        return self.strategy is DriverStrategy.BLOCKED and bool(self.pool)

    @property
    def awaits_shared(self) -> bool:
        """Whether it waits for what another node would wait for, too: the one build, an answer of a registry."""
        return self.shared and self.phase is DriverPhase.WAITING
