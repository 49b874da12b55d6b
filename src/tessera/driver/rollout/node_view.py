"""The rollout's view of a node: plain values, independent of the API's types."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.api.nodes.driver_status import DRAIN_SKIP_LABEL, PAUSED
from tessera.driver.nodes.upgrade_record import UpgradeRecord, UpgradeState


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has not ended.

    Attributes:
        uid: its UID.
        namespace: its namespace.
        name: its name.
        labels: its labels.
        gpu: one of its containers requests GPUs or parts of them.
        controlled: a controller replaces it when it goes.
        empty_dir: it has an emptyDir, whose data is lost with the pod.
        stays: nobody evicts it: a DaemonSet's pod, a static pod, or one of Tessera's.
        terminating: its deletion has begun.
    """

    uid: str
    namespace: str
    name: str
    labels: Mapping[str, str] = {}
    gpu: bool = False
    controlled: bool = True
    empty_dir: bool = False
    stays: bool = False
    terminating: bool = False

    @property
    def drain_skip(self) -> bool:
        """True if people keep it out of drains."""
        return self.labels.get(DRAIN_SKIP_LABEL) == "true"

    @property
    def text(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class DriverPodView(msgspec.Struct, frozen=True, kw_only=True):
    """A driver pod on the node.

    Attributes:
        set: the driver set.
        ready: its probes succeed, and it is not terminating.
        fault: why it will not become ready by itself; empty while it may.
    """

    set: str
    ready: bool = False
    fault: str = ""


class PullProgress(Enum):
    """Progress of the pull of an image."""

    ABSENT = "absent"
    PULLING = "pulling"
    PRESENT = "present"
    FAILED = "failed"


class PullPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that pulls an image onto the node.

    Attributes:
        uid: its UID.
        namespace: its namespace.
        name: its name.
        set: the driver set whose image it pulls.
        pull: how far the pull has come.
        fault: why the image does not arrive; empty while it may.
        until: when a failing registry is given up, seconds since 1970.
        terminating: its deletion has begun.
    """

    uid: str
    namespace: str
    name: str
    set: str
    pull: PullProgress
    fault: str = ""
    until: float = 0.0
    terminating: bool = False


class DesiredDriver(msgspec.Struct, frozen=True, kw_only=True):
    """The driver that a node should have, as the planner decided.

    Attributes:
        policy: the object that asks for it, ``ClusterPolicy/cluster-policy``.
        set: the driver set's id; empty if the node should have no driver of Tessera's.
        image: the set's image.
        pull_secrets: the pull secrets for the image.
        when_idle: a better way to the same driver, for which no pod is evicted.
        reload: the node has the set, but its driver cannot load while pods use the GPUs: they are evicted.
        obstacle: why the set's pods could not start, such as a refused DaemonSet: no upgrade begins before it is gone;
            empty if nothing is known.
        undecided: a registry lookup is open; until it ends, the status of a node at rest does not change.
    """

    policy: str
    set: str = ""
    image: str = ""
    pull_secrets: tuple[str, ...] = ()
    when_idle: bool = False
    reload: bool = False
    obstacle: str = ""
    undecided: bool = False


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node with GPUs.

    Attributes:
        name: its name.
        uid: UID of the Node object.
        version: its resourceVersion.
        desired: the driver that it should have.
        current: the driver set that its label names; ``changing`` between two.
        state: state of its upgrade.
        record: record of its upgrade.
        unschedulable: it is cordoned.
        cordoned_by_us: Tessera cordoned it.
        cordoned_before: it was cordoned when the upgrade began.
        ready: kubelet reports it ready.
        skip_reason: why a person does not want it upgraded; empty if nobody objects.
        requested: a person requests its upgrade.
        pause_label: value of the label that pauses users of GPUs.
        offers_gpus: its kubelet offers GPUs to pods.
        agent_holds_gpus: its agent has the GPUs open, so no driver can be unloaded.
        pods: its pods that have not ended.
        drivers: the driver pods on it.
        validated: its present driver was proven to work.
        pulls: its pull pods.
    """

    name: str
    uid: str
    version: str
    desired: DesiredDriver
    current: str
    state: UpgradeState = UpgradeState.NONE
    record: UpgradeRecord | None = None
    unschedulable: bool = False
    cordoned_by_us: bool = False
    cordoned_before: bool = False
    ready: bool = True
    skip_reason: str = ""
    requested: bool = False
    pause_label: str = ""
    offers_gpus: bool = True
    agent_holds_gpus: bool = False
    pods: tuple[PodView, ...] = ()
    drivers: tuple[DriverPodView, ...] = ()
    validated: bool = False
    pulls: tuple[PullPod, ...] = ()

    @property
    def paused(self) -> bool:
        """True if users of GPUs were asked to release them."""
        return self.pause_label == PAUSED

    @property
    def foreign_cordon(self) -> bool:
        """True if a person or another controller keeps pods away."""
        return self.unschedulable and not self.cordoned_by_us

    @property
    def gpu_pods(self) -> tuple[PodView, ...]:
        """Pods that hold GPUs and can be evicted."""
        return tuple(pod for pod in self.pods if pod.gpu and not pod.stays)

    @property
    def failure(self) -> str:
        """Cause of the failure of its upgrade's target set here; empty if it did not fail."""
        record = self.record
        return record.cause if self.state is UpgradeState.FAILED and record is not None and record.blames_set else ""

    @property
    def driver(self) -> DriverPodView | None:
        """The pod of the set in the node's label, once no other driver is there."""
        if len({pod.set for pod in self.drivers}) != 1:
            return None
        return next((pod for pod in self.drivers if pod.set == self.current), None)

    @property
    def works(self) -> bool:
        """True if its driver runs and was proven to work."""
        return self.driver is not None and self.driver.ready and self.validated

    @property
    def pull_pod(self) -> PullPod | None:
        """The pod that pulls the desired image."""
        return next((each for each in self.pulls if each.set == self.desired.set), None)

    @property
    def pull(self) -> PullProgress:
        """Progress of the pull of the desired image."""
        return self.pull_pod.pull if self.pull_pod is not None else PullProgress.ABSENT
