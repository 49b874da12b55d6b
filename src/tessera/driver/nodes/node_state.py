"""The state of one node as the planner reads it, and the progress of its driver. Pure."""

from collections.abc import Mapping

import msgspec

from tessera.api.driver.node_status import DriverPhase, DriverStatus, DriverStrategy
from tessera.driver.driver_sets import DriverSet
from tessera.driver.nodes.node_facts import DriverNodeFacts
from tessera.driver.nodes.pod_facts import DriverPod, DriverPodProgress, NodePods
from tessera.driver.nodes.upgrade_record import CHANGING, UpgradeRecord


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node and what stands on it.

    Attributes:
        facts: what the node says.
        pods: what its pods say.
        told: its status as it was told last.
        record: of the rollout, if it has not finished with the node.
        rollout: what the rollout says of the node; empty if nothing.
        sets: all driver sets by id that have a DaemonSet.
        toolkit: the container toolkit is Tessera's to run.
        user: a pod that uses the node's cards and can be asked to go, ``namespace/name``; empty if there is none, or
            nobody looked since the driver serves.
    """

    facts: DriverNodeFacts
    pods: NodePods = NodePods()
    status: DriverStatus | None = None
    record: UpgradeRecord | None = None
    rollout_note: str = ""
    sets: Mapping[str, DriverSet] = {}
    toolkit: bool = True
    gpu_pod: str = ""

    @property
    def current_set(self) -> DriverSet | None:
        """The set that the node's label names, if there is such a one."""
        return self.sets.get(self.facts.driver_set)

    @property
    def fitting_set(self) -> DriverSet | None:
        """The current set, if it fits the node."""
        current = self.current_set
        return current if current is not None and current.pool == self.facts.pool else None

    @property
    def upgrade_target(self) -> DriverSet | None:
        """The set that the rollout set out to bring to the node."""
        return self.sets.get(self.record.target) if self.record is not None else None

    @property
    def upgrading_set(self) -> DriverSet | None:
        """The set that the rollout is bringing to the node, or back, if it is one that fits the node."""
        if self.record is None:
            return None
        if self.facts.driver_set == CHANGING:
            return (
                self.upgrade_target
                if self.upgrade_target is not None and self.upgrade_target.pool == self.facts.pool
                else None
            )
        return self.fitting_set

    @property
    def driver_pod(self) -> DriverPod | None:
        """The pod of the current set."""
        return self.pods.driver_pod(self.facts.driver_set)

    @property
    def rebooted(self) -> bool:
        """Whether the node booted since it was last told something."""
        return self.status is not None and self.status.boot != self.facts.boot_id

    @property
    def in_use(self) -> bool:
        """Whether pods hold a driver that no longer serves: it cannot be unloaded under them.

        In this boot one was proven to work, before which pods wait for cards and hold none; or it is tried in vain.
        """
        proven = self.status is not None and self.status.proven == self.facts.boot_id
        return bool(self.gpu_pod) and (proven or self.unload_blocked)

    @property
    def unload_blocked(self) -> bool:
        """Whether the driver cannot come, since pods use what another one left, or itself."""
        return (
            bool(self.gpu_pod) and not self.rebooted and self.driver_pod is not None and self.driver_pod.unload_blocked
        )

    @property
    def status_boot(self) -> str:
        """The boot that the node is told of: the old one, as long as its pods may be those of before."""
        if self.rebooted and self.status is not None and self.pods.validated(self.facts.driver_set):
            return self.status.boot
        return self.facts.boot_id

    @property
    def serves(self) -> bool:
        """Whether pods may be using the driver of the current set."""
        if self.fitting_set is None:
            return False
        if self.pods.validated(self.facts.driver_set):
            return True  # also after a boot: these may be its pods, or still those of before
        told = self.status
        if told is None or told.set != self.facts.driver_set or self.rebooted:
            return False
        return told.phase in {DriverPhase.READY, DriverPhase.UPGRADING}


def driver_progress(state: NodeState, current: DriverSet) -> tuple[DriverPhase, str]:
    """How far the driver of a set is on the node, and what is awaited."""
    driver = state.pods.driver_pod(current.id)
    if driver is None:
        return DriverPhase.PULLING, "Its pod is not there yet."
    if driver.progress is DriverPodProgress.FAILED:
        return DriverPhase.FAILED, driver_fault(state)
    if driver.fault:
        return DriverPhase.FAILED, f"{driver.fault}."
    if driver.progress is DriverPodProgress.PULLING:
        return DriverPhase.PULLING, ""
    if driver.progress is DriverPodProgress.STARTING:
        what = "It is built and loaded." if current.strategy is DriverStrategy.BUILT else "It is loaded."
        return DriverPhase.STARTING, what
    if state.pods.validated(current.id):
        return DriverPhase.READY, ""
    toolkit = state.pods.toolkit_of(current.id)
    if state.toolkit and (toolkit is None or not toolkit.ready):
        fault = toolkit.fault if toolkit is not None else ""
        return (
            (DriverPhase.FAILED, f"{fault}.")
            if fault
            else (DriverPhase.STARTING, "The container toolkit is not ready yet.")
        )
    proof = state.pods.validation
    if proof is not None and proof.set == current.id and proof.fault:
        return DriverPhase.FAILED, f"{proof.fault}."
    return DriverPhase.STARTING, "No program has run on its cards yet."


def can_validate(state: NodeState, current: DriverSet) -> bool:
    """Whether the driver of a set can be proven now: it is ready, as is the container runtime, and was not proven."""
    driver = state.pods.driver_pod(current.id)
    ready = driver is not None and driver.progress is DriverPodProgress.READY
    toolkit = state.pods.toolkit_of(current.id)
    configured = not state.toolkit or (toolkit is not None and toolkit.ready)
    return ready and configured and not state.pods.validated(current.id)


def driver_fault(state: NodeState) -> str:
    """What is wrong with the driver that the node has, in a sentence; empty if nothing is known."""
    driver = state.driver_pod
    return f"{driver.fault}." if driver is not None and driver.fault else ""
