"""The state of one node as the planner reads it, and the progress of its driver. Pure."""

from collections.abc import Mapping

import msgspec

from tessera.api.driver.node_status import DriverPhase, DriverStatus, DriverStrategy
from tessera.driver.driver_sets import DriverSet
from tessera.driver.nodes.node_facts import DriverNodeFacts
from tessera.driver.nodes.pod_facts import DriverPod, DriverPodProgress, NodePods
from tessera.driver.nodes.upgrade_record import CHANGING, UpgradeRecord


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node and its pods.

    Attributes:
        facts: the facts from the Node object.
        pods: its driver-related pods.
        status: its status as last written.
        record: the rollout's record, while its upgrade is not finished.
        rollout_note: the rollout's note on the node; empty for none.
        sets: all driver sets with a DaemonSet, by id.
        toolkit: True if Tessera runs the container toolkit.
        gpu_pod: a pod that uses the node's GPUs and can be evicted, ``namespace/name``; empty if there is none, or if
            nobody checked since the driver serves.
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
        """The set that the node's label names, if it exists."""
        return self.sets.get(self.facts.driver_set)

    @property
    def fitting_set(self) -> DriverSet | None:
        """The current set, if it fits the node."""
        current = self.current_set
        return current if current is not None and current.pool == self.facts.pool else None

    @property
    def upgrade_target(self) -> DriverSet | None:
        """The set that the rollout's upgrade of the node aims at."""
        return self.sets.get(self.record.target) if self.record is not None else None

    @property
    def upgrading_set(self) -> DriverSet | None:
        """The set that the rollout is bringing to the node, or back to it, if the set fits the node."""
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
        """True if the node booted since its status was last written."""
        return self.status is not None and self.status.boot != self.facts.boot_id

    @property
    def in_use(self) -> bool:
        """True if pods hold a driver that no longer serves: it cannot be unloaded under them.

        A driver was validated in this boot, since pods hold no GPU before that; or a driver pod fails to unload it.
        """
        proven = self.status is not None and self.status.proven == self.facts.boot_id
        return bool(self.gpu_pod) and (proven or self.unload_blocked)

    @property
    def unload_blocked(self) -> bool:
        """True if the driver cannot load, since pods use one that an earlier pod loaded."""
        return (
            bool(self.gpu_pod) and not self.rebooted and self.driver_pod is not None and self.driver_pod.unload_blocked
        )

    @property
    def status_boot(self) -> str:
        """The boot that the status names: the old one, as long as the node's pods may be from before the boot."""
        if self.rebooted and self.status is not None and self.pods.validated(self.facts.driver_set):
            return self.status.boot
        return self.facts.boot_id

    @property
    def serves(self) -> bool:
        """True if pods may be using the driver of the current set."""
        if self.fitting_set is None:
            return False
        if self.pods.validated(self.facts.driver_set):
            return True  # also after a boot: the pods may be new, or still those from before
        status = self.status
        if status is None or status.set != self.facts.driver_set or self.rebooted:
            return False
        return status.phase in {DriverPhase.READY, DriverPhase.UPGRADING}


def driver_progress(state: NodeState, current: DriverSet) -> tuple[DriverPhase, str]:
    """The phase of a set's driver on the node, and what it waits for."""
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
        text = "It is built and loaded." if current.strategy is DriverStrategy.BUILT else "It is loaded."
        return DriverPhase.STARTING, text
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
    """True if a set's driver can be validated now: driver and container runtime are ready, and it was not validated."""
    driver = state.pods.driver_pod(current.id)
    ready = driver is not None and driver.progress is DriverPodProgress.READY
    toolkit = state.pods.toolkit_of(current.id)
    configured = not state.toolkit or (toolkit is not None and toolkit.ready)
    return ready and configured and not state.pods.validated(current.id)


def driver_fault(state: NodeState) -> str:
    """The problem of the node's present driver, in a sentence; empty if none is known."""
    driver = state.driver_pod
    return f"{driver.fault}." if driver is not None and driver.fault else ""
