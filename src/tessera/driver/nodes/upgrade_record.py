"""The upgrade state of a node: NVIDIA's label, and Tessera's record in an annotation.

A controller that restarts continues from the node: the label has the state, which other tools read, and the annotation
has the old and the new set. A state without a valid record is another tool's and is not continued.
"""

from enum import Enum

import msgspec

#: Most characters: a node's annotation with the record of a driver change. A record with the longest cause has a fourth
#: of it.
ROLLOUT_RECORD = 4_096


#: Annotations that NVIDIA's operator knows (k8s-operator-libs, pkg/upgrade/consts.go).
REQUESTED_ANNOTATION = "nvidia.com/gpu-driver-upgrade-requested"
INITIAL_ANNOTATION = "nvidia.com/gpu-driver-upgrade.node-initial-state.unschedulable"
#: Tells NVIDIA's driver manager, which may run before the driver container, not to evict pods itself.
ENABLED_ANNOTATION = "nvidia.com/gpu-driver-upgrade-enabled"

#: Annotation: Tessera cordoned the node and will uncordon it.
CORDONED_ANNOTATION = "tessera.dev/driver-upgrade-cordoned"
#: Annotation: an :class:`UpgradeRecord` as JSON.
RECORD_ANNOTATION = "tessera.dev/driver-upgrade"
#: Value of the label ``tessera.dev/driver-set`` while the old driver leaves: two drivers never run on one node.
CHANGING = "changing"


class UpgradeState(Enum):
    """Values of the label ``nvidia.com/gpu-driver-upgrade-state``."""

    NONE = ""
    REQUIRED = "upgrade-required"
    CORDON = "cordon-required"
    JOBS = "wait-for-jobs-required"
    PODS = "pod-deletion-required"
    DRAIN = "drain-required"
    RESTART = "pod-restart-required"
    VALIDATION = "validation-required"
    UNCORDON = "uncordon-required"
    DONE = "upgrade-done"
    FAILED = "upgrade-failed"

    @property
    def active(self) -> bool:
        """True if the upgrade is in progress; a failed node may be rolling back, see :class:`UpgradeRecord`."""
        return self not in {UpgradeState.NONE, UpgradeState.REQUIRED, UpgradeState.DONE, UpgradeState.FAILED}


class UpgradeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's change of driver.

    Attributes:
        previous: the set that it had; empty if no rollback is possible, as after a boot into another kernel.
        target: the set that it gets, or that failed.
        since: when the state began, seconds since 1970.
        began: when the change began, seconds since 1970.
        deploy: earlier value of the label that pauses users of GPUs; empty if there was none.
        cause: why it failed; empty if it did not.
        occupied: it failed because pods with GPUs could not leave, which says nothing about the driver.
        requested: a person requested this node.
        offered: the node offered GPUs before, and should again.
        changed: the label of the driver set was removed from ``previous``.
        returning: the node goes back to ``previous``.
        restored: the node is back at ``previous``, and serves as before.
    """

    previous: str
    target: str
    since: float
    began: float
    deploy: str = ""
    cause: str = ""
    occupied: bool = False
    requested: bool = False
    offered: bool = False
    changed: bool = False
    returning: bool = False
    restored: bool = False

    @property
    def same_set(self) -> bool:
        """True if the node gets the driver again that it has."""
        return self.previous == self.target

    @property
    def blames_set(self) -> bool:
        """True if the failure says something about the set."""
        return not self.same_set and not self.occupied


def parse_upgrade_state(label: str) -> UpgradeState:
    """The state that a label names; unknown values count as no state."""
    try:
        return UpgradeState(label)
    except ValueError:
        return UpgradeState.NONE


def parse_upgrade_record(text: str) -> UpgradeRecord | None:
    """The record in an annotation; None if there is none, or it cannot be decoded."""
    if not text or len(text) > ROLLOUT_RECORD:
        return None
    try:
        return msgspec.json.decode(text, type=UpgradeRecord)
    except (msgspec.DecodeError, RecursionError):
        return None


def encode_upgrade_record(record: UpgradeRecord) -> str:
    """The annotation's value."""
    return msgspec.json.encode(record).decode()


def referenced_sets(label: str, record: UpgradeRecord | None) -> frozenset[str]:
    """The driver sets that a node refers to: its set, and those that it may change to or go back to.

    Their DaemonSets must stay, or no rollback would be possible.
    """
    named = {label, *((record.previous, record.target) if record is not None else ())}
    return frozenset(named - {"", CHANGING})
