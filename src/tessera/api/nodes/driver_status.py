"""The driver status of a node: the annotation ``tessera.dev/driver``, its labels and marker files.

The controller writes them; ``tessera driver status``, ``tessera why node/…`` and the provisioning records read them.
"""

from enum import Enum

import msgspec

#: Annotation of a node: a :class:`DriverStatus` as JSON.
DRIVER_ANNOTATION = "tessera.dev/driver"
#: Condition of a node: its driver is the wanted one and answers.
DRIVER_CONDITION = "GpuDriverReady"
#: Condition of a node, set by its agent: the node's allocatable shows the cards; False while the agent waits for a
#: driver or releases one.
ADVERTISED_CONDITION = "GpuNodeReady"
#: Reason while kubelet has the cards and its status does not show them yet; the agent has the driver open.
WAITING_FOR_KUBELET = "WaitingForKubelet"
#: Annotation of a node, set by its agent: the version of the host's own driver, while that is the one in use. It stays
#: while the agent is away or waits, and goes when the agent uses the driver of a container.
HOST_DRIVER_ANNOTATION = "tessera.dev/host-driver"
#: Reasons of :data:`ADVERTISED_CONDITION` with which an agent says that it has no driver open.
WITHOUT_OPEN_DRIVER = frozenset({"WaitingForDriver", "PausedForDriver", "StateOfNewerVersion"})
#: Seconds for which nodes wait for the one build of their kernel's image before they build for themselves; also the
#: longest time for which a startup deadline is suspended. NVIDIA's CI takes about 19 min for a build.
BUILD_TIMEOUT = 2400.0
#: Label of a node: the driver set whose DaemonSet runs on it.
DRIVER_SET_LABEL = "tessera.dev/driver-set"

#: Labels of pods that this project runs on nodes.
AGENT_APP = "tessera-agent"
DRIVER_APP = "tessera-driver"
TOOLKIT_APP = "tessera-container-toolkit"
VALIDATION_APP = "tessera-validation"

#: Label of a node that NVIDIA's operator and driver manager set during a driver replacement; GPU users must stop.
PAUSE_LABEL = "nvidia.com/gpu.deploy.device-plugin"
PAUSED = "paused-for-driver-upgrade"

#: Label of a node with the state of its upgrade; the values are upstream's.
UPGRADE_STATE_LABEL = "nvidia.com/gpu-driver-upgrade-state"
UPGRADE_SKIP_LABEL = "nvidia.com/gpu-driver-upgrade.skip"
DRAIN_SKIP_LABEL = "nvidia.com/gpu-driver-upgrade-drain.skip"

#: Folder on the node in which parts of the stack show that they are ready; folder and names are upstream's.
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

    WAITING = "waiting"  # for facts about the node, or a registry's answer
    PULLING = "pulling"
    STARTING = "starting"  # loads, or builds and loads
    READY = "ready"
    UPGRADING = "upgrading"
    FAILED = "failed"
    BLOCKED = "blocked"


class RejectedStrategy(msgspec.Struct, frozen=True, kw_only=True):
    """A better strategy that was rejected, and the reason."""

    strategy: DriverStrategy
    reason: str


class DriverStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's driver.

    Attributes:
        strategy: the way in which the node gets it.
        image: the image by digest; empty if there is none.
        tag: the tag that was found.
        version: the version or branch that was requested of this driver.
        wanted: the driver that the policy names now, while the node has another; empty if it has the wanted one.
        pool: the node's pool, as text.
        set: the driver set's id.
        phase: its progress.
        since: RFC 3339, when the phase began.
        reason: one sentence: why this strategy, or the awaited event.
        rejected: better strategies, best first.
        leaving: no policy asks for the driver any more; it is removed when the pods that use it have ended.
        offered: a better strategy that has become possible; taken when the node is idle or reboots.
        boot: the node's boot in which Tessera found all this.
        proven: the boot in which a driver was last proven to work; empty if none ever was.
    """

    strategy: DriverStrategy
    phase: DriverPhase
    since: str
    image: str = ""
    tag: str = ""
    version: str = ""
    wanted: str = ""
    pool: str = ""
    set: str = ""
    reason: str = ""
    rejected: tuple[RejectedStrategy, ...] = ()
    leaving: bool = False
    offered: str = ""
    boot: str = ""
    proven: str = ""

    @property
    def serves(self) -> bool:
        """True if a driver works on the node, be it the wanted one or not."""
        return self.phase is DriverPhase.READY

    @property
    def outdated(self) -> str:
        """The difference if a driver works and the policy names another one; empty if there is none."""
        if not self.serves or not self.wanted:
            return ""
        return f"The policy names {self.wanted}, the node has {self.version or self.image}."

    @property
    def text(self) -> str:
        """The reason, after the difference to the wanted driver."""
        return f"{self.outdated} {self.reason}".strip()

    @property
    def shared(self) -> bool:
        """True if the status is about the pool: another node of the pool would get the same."""
        return self.strategy is DriverStrategy.BLOCKED and bool(self.pool)

    @property
    def awaits_shared(self) -> bool:
        """True if it waits for an event that the whole pool waits for: the one build, a registry's answer."""
        return self.shared and self.phase is DriverPhase.WAITING
