"""The state of one node as the planner reads it, the progress of its driver, and the status that says so. Pure.

The status is an annotation and a condition of the node.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.nodes.node_marks import DRIVER_CONDITION, DriverPhase, DriverStatus, DriverStrategy
from tessera.clock import rfc3339
from tessera.driver.driver_sets import DriverSet
from tessera.driver.node_facts import CHANGING, DriverNodeFacts, UpgradeRecord
from tessera.driver.pod_facts import DriverPod, DriverPodProgress, NodePods
from tessera.kube.resources import Condition
from tessera.limits import CONDITION_MESSAGE
from tessera.text import one_line

#: Most characters: a node's annotation with the state of its driver. The longest that the controller writes stays
#: below.
DRIVER_STATUS = 32_768


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
        has_gpu_pods: pods that can be evicted use the node's GPUs; False if nobody checked since the driver serves.
    """

    facts: DriverNodeFacts
    pods: NodePods = NodePods()
    status: DriverStatus | None = None
    record: UpgradeRecord | None = None
    rollout_note: str = ""
    sets: Mapping[str, DriverSet] = {}
    toolkit: bool = True
    has_gpu_pods: bool = False

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
        return self.has_gpu_pods and (proven or self.unload_blocked)

    @property
    def unload_blocked(self) -> bool:
        """True if the driver cannot load, since pods use one that an earlier pod loaded."""
        return (
            self.has_gpu_pods and not self.rebooted and self.driver_pod is not None and self.driver_pod.unload_blocked
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


#: Reason of the condition while a driver works that is not the wanted one.
OUTDATED = "Outdated"

_REASONS = {
    DriverPhase.WAITING: "Waiting",
    DriverPhase.PULLING: "Pulling",
    DriverPhase.STARTING: "Starting",
    DriverPhase.READY: "Ready",
    DriverPhase.UPGRADING: "Upgrading",
    DriverPhase.FAILED: "Failed",
    DriverPhase.BLOCKED: "Blocked",
}


def read_status(text: str) -> DriverStatus | None:
    """The status in a node's annotation, safe to show; None if there is none, or it cannot be decoded."""
    if not text or len(text) > DRIVER_STATUS:
        return None
    try:
        return sanitize_status(msgspec.json.decode(text, type=DriverStatus))
    except (msgspec.DecodeError, RecursionError):
        return None


def encode_status(status: DriverStatus) -> str:
    """The annotation's value."""
    return msgspec.json.encode(sanitize_status(status)).decode()


def sanitize_status(status: DriverStatus) -> DriverStatus:
    """The status with texts that are safe to show: long ones are cut, and none has a terminal's control characters.

    Texts come from registries and kubelets, and others may write annotations too.
    """
    words = {name: value for name, value in msgspec.structs.asdict(status).items() if isinstance(value, str)}
    clean = {name: _clean(value) for name, value in words.items()}
    rejected = tuple(msgspec.structs.replace(each, reason=_clean(each.reason)) for each in status.rejected)
    return msgspec.structs.replace(status, rejected=rejected, **clean)


def _clean(text: str) -> str:
    cut = text[:CONDITION_MESSAGE]
    return cut if cut.isprintable() else "".join(each if each.isprintable() else "?" for each in cut)


def add_dates(status: DriverStatus, before: DriverStatus | None, now: float) -> DriverStatus:
    """The status with the time at which its phase began; the old time stays while set and phase stay."""
    status = sanitize_status(status)
    same = before is not None and (before.strategy, before.set, before.phase, before.boot) == (
        status.strategy,
        status.set,
        status.phase,
        status.boot,
    )
    since = before.since if same and before is not None else rfc3339(now)
    return msgspec.structs.replace(status, since=since, proven=_validated_boot(status, before))


def _validated_boot(status: DriverStatus, before: DriverStatus | None) -> str:
    if status.serves:
        return status.boot
    return before.proven if before is not None else ""


def status_condition(status: DriverStatus) -> Condition:
    """The node's condition for a status; its time is that of the last change."""
    return Condition(
        type=DRIVER_CONDITION,
        status="True" if status.serves and not status.wanted else "False",
        reason=OUTDATED if status.outdated else _REASONS[status.phase],
        message=one_line(f"{status.strategy.value}: {status.text}", CONDITION_MESSAGE),
    )


def same_condition(condition: Condition | None, wanted: Condition) -> bool:
    """True if a node already has the condition, regardless of its time."""
    return condition is not None and (condition.status, condition.reason, condition.message) == (
        wanted.status,
        wanted.reason,
        wanted.message,
    )


def condition_body(wanted: Condition, shown: Condition | None, now: float) -> dict[str, Any]:
    """The patch of the node's status at this time. The time of the last change moves only if the status changes."""
    same = shown is not None and shown.status == wanted.status and shown.last_transition_time
    return {
        "type": wanted.type,
        "status": wanted.status,
        "reason": wanted.reason,
        "message": wanted.message,
        "lastHeartbeatTime": rfc3339(now),
        "lastTransitionTime": same or rfc3339(now),
    }
