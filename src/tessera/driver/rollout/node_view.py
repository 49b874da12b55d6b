"""What the rollout knows of a node: plain values without the API's forms."""

from collections.abc import Mapping
from enum import Enum

import msgspec

from tessera.api.driver.node_status import DRAIN_SKIP_LABEL, PAUSED
from tessera.driver.nodes.upgrade_record import UpgradeRecord, UpgradeState


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that has not ended.

    Attributes:
        uid: this life of it.
        namespace: where it is.
        name: its name.
        labels: its labels.
        gpu: one of its containers asks for cards or parts of them.
        controlled: something makes another one when it goes.
        empty_dir: data goes with it.
        stays: nobody evicts it: a DaemonSet's, a static one, or one of ours.
        terminating: its end was asked for.
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
        """Whether people keep it out of drains."""
        return self.labels.get(DRAIN_SKIP_LABEL) == "true"

    @property
    def text(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


class DriverPodView(msgspec.Struct, frozen=True, kw_only=True):
    """A driver pod on the node.

    Attributes:
        set: the driver set.
        ready: its probes say so, and it is not ending.
        fault: why it will not become ready by itself; empty while it may.
    """

    set: str
    ready: bool = False
    fault: str = ""


class PullProgress(Enum):
    """How far an image is on its way to a node."""

    ABSENT = "absent"
    PULLING = "pulling"
    PRESENT = "present"
    FAILED = "failed"


class PullPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that brings an image to the node.

    Attributes:
        uid: this life of it.
        namespace: where it is.
        name: its name.
        set: whose image it brings.
        pull: how far that is.
        fault: why it does not come; empty while it may.
        until: when a registry in trouble is given up, seconds since 1970.
        terminating: its end was asked for.
    """

    uid: str
    namespace: str
    name: str
    set: str
    pull: PullProgress
    fault: str = ""
    until: float = 0.0
    terminating: bool = False


class WantedDriver(msgspec.Struct, frozen=True, kw_only=True):
    """What a node should have, as the rest of the controller decided.

    Attributes:
        policy: the object that asks for it, ``ClusterPolicy/cluster-policy``.
        set: the driver set's id; empty if the node is to have no driver of ours.
        image: what the set runs.
        pull_secrets: with which its image is pulled.
        restart_only: the set runs the same driver as the node's, only the pod differs.
        when_idle: a better way to the same driver, for which no pod is evicted.
        again: the node has the set, but its driver cannot come back while pods use the cards: they are asked to leave.
        obstacle: why the set's pods could not come, its DaemonSet being refused for instance: nothing begins before;
            empty if nothing is known.
        undecided: a registry is being asked what is wanted; a node that rests stays as it is told until then.
    """

    policy: str
    set: str = ""
    image: str = ""
    pull_secrets: tuple[str, ...] = ()
    restart_only: bool = False
    when_idle: bool = False
    reload: bool = False
    obstacle: str = ""
    undecided: bool = False


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node with cards.

    Attributes:
        name: its name.
        uid: this life of it.
        version: its resourceVersion.
        wanted: what it should have.
        current: the driver set that its label says; ``changing`` between two.
        state: of its upgrade.
        record: of its upgrade.
        unschedulable: it is cordoned.
        cordoned_by_us: and it was us.
        cordoned_before: it was when the upgrade began.
        ready: kubelet says so.
        keeps_out: why a person does not want it upgraded; empty if nobody minds.
        requested: a person asks for its upgrade.
        deploy: what the label that pauses users of cards says.
        offers: its kubelet offers cards to pods.
        held: its agent has the cards open, so that no driver can be unloaded.
        pods: that have not ended.
        drivers: the driver pods on it.
        validated: the driver that it has now was proven to work.
        pulls: pods that bring images.
    """

    name: str
    uid: str
    version: str
    wanted: WantedDriver
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
        """Whether users of cards were asked to let go."""
        return self.pause_label == PAUSED

    @property
    def foreign_cordon(self) -> bool:
        """Whether a person or another controller keeps pods away."""
        return self.unschedulable and not self.cordoned_by_us

    @property
    def gpu_pods(self) -> tuple[PodView, ...]:
        """Pods that hold cards and can be asked to go."""
        return tuple(pod for pod in self.pods if pod.gpu and not pod.stays)

    @property
    def failure(self) -> str:
        """Why the driver set that it was to get failed here; empty if it did not."""
        record = self.record
        return record.cause if self.state is UpgradeState.FAILED and record is not None and record.blames_set else ""

    @property
    def driver(self) -> DriverPodView | None:
        """The pod of the driver that the node is labelled for, once no other driver is there."""
        if len({pod.set for pod in self.drivers}) != 1:
            return None
        return next((pod for pod in self.drivers if pod.set == self.current), None)

    @property
    def works(self) -> bool:
        """Whether its driver runs and was proven."""
        return self.driver is not None and self.driver.ready and self.validated

    @property
    def pull_pod(self) -> PullPod | None:
        """The pod that brings the wanted image."""
        return next((each for each in self.pulls if each.set == self.wanted.set), None)

    @property
    def pull(self) -> PullProgress:
        """How far the wanted image is on its way."""
        return self.pull_pod.pull if self.pull_pod is not None else PullProgress.ABSENT
