"""Instructions of the rollout to its executor, as values, and the steps of one node that make them. Pure.

Each instruction can be lost, or carried out twice, without harm. The steps before the driver is replaced are to cordon
the node, to wait for jobs, to evict pods with GPUs, and to drain.
"""

from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from tessera.api.nodes.node_marks import PAUSE_LABEL, PAUSED, UPGRADE_STATE_LABEL
from tessera.driver.node_facts import (
    CORDONED_ANNOTATION,
    INITIAL_ANNOTATION,
    RECORD_ANNOTATION,
    UpgradeRecord,
    UpgradeState,
    encode_upgrade_record,
)
from tessera.driver.rollout.node_view import NodeView, PodView
from tessera.gpu_operator.driver_policy import DrainSettings, UpgradePolicy
from tessera.kube.resources.selectors import parse_selector

#: Most characters: cause of a failed driver change, in a record and in a status. A sentence with a container's last
#: words fits.
FAILURE_CAUSE = 500


class PatchNode(msgspec.Struct, frozen=True, kw_only=True):
    """One write of a node: labels, annotations and the cordon change together or not at all.

    The write holds only for the node's state at the time of the decision, so a decision on an old view has no effect.

    Attributes:
        node: name of the node.
        uid: UID of the Node object.
        version: its resourceVersion at the time of the decision.
        labels: labels to set, or to remove (None).
        annotations: annotations to set, or to remove (None).
        unschedulable: cordon or uncordon; None changes nothing.
        without_gpu_pods: check with the API server first, and write nothing if pods with GPUs are there.
        reason: reason of the event on the node; empty for no event.
        note: message of the event.
        warning: True if somebody should look at it.
    """

    node: str
    uid: str
    version: str
    labels: Mapping[str, str | None] = {}
    annotations: Mapping[str, str | None] = {}
    unschedulable: bool | None = None
    without_gpu_pods: bool = False
    reason: str = ""
    note: str = ""
    warning: bool = False

    def body(self) -> dict[str, object]:
        """The merge patch."""
        metadata: dict[str, object] = {}
        if self.labels:
            metadata["labels"] = dict(self.labels)
        if self.annotations:
            metadata["annotations"] = dict(self.annotations)
        spec = {} if self.unschedulable is None else {"spec": {"unschedulable": self.unschedulable or None}}
        return {"metadata": metadata, **spec}


class EvictPod(msgspec.Struct, frozen=True, kw_only=True):
    """Evicts one pod; another pod of the same name is left alone."""

    node: str
    namespace: str
    name: str
    uid: str


class PullImage(msgspec.Struct, frozen=True, kw_only=True):
    """Pulls a set's image onto a node while the old driver serves."""

    node: str
    node_uid: str
    set: str
    image: str
    secrets: tuple[str, ...] = ()


class DeletePull(msgspec.Struct, frozen=True, kw_only=True):
    """Deletes a pull pod."""

    namespace: str
    name: str
    uid: str


class RecordFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Records that a set failed on a node; the record outlives the node."""

    set: str
    policy: str
    node: str
    cause: str
    at: float


class ForgetFailures(msgspec.Struct, frozen=True, kw_only=True):
    """Forgets a set's failures, since the set was proven to work."""

    set: str


Instruction = PatchNode | EvictPod | PullImage | DeletePull | RecordFailure | ForgetFailures


class InstructionOutcome(Enum):
    """Outcome of an instruction."""

    DONE = "done"
    #: The object has changed since the decision, or is gone; the watch will show this.
    OUTDATED = "outdated"
    #: The server refused for now, or did not answer.
    REFUSED = "refused"


class NodeStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step for a node.

    Attributes:
        patch: one write of the node.
        evict: pods to evict.
        until: when to look again even if nothing changes; None for never.
        waits: what it waits for; empty if it does not wait.
        cause: why the patch marks its driver set as failed; empty if it does not.
    """

    patch: PatchNode | None = None
    evict: tuple[EvictPod, ...] = ()
    until: float | None = None
    waits: str = ""
    cause: str = ""


def patch_node(
    view: NodeView,
    state: UpgradeState,
    record: UpgradeRecord | None,
    *,
    labels: Mapping[str, str | None] | None = None,
    annotations: Mapping[str, str | None] | None = None,
    unschedulable: bool | None = None,
    reason: str = "",
    note: str = "",
    warning: bool = False,
) -> PatchNode:
    """Patch with the state and record of a node, and related changes; ``reason`` and ``note`` make an event."""
    kept = None if record is None else encode_upgrade_record(record)
    return PatchNode(
        node=view.name,
        uid=view.uid,
        version=view.version,
        labels={UPGRADE_STATE_LABEL: state.value or None, **(labels or {})},
        annotations={RECORD_ANNOTATION: kept, **(annotations or {})},
        unschedulable=unschedulable,
        reason=reason,
        note=note,
        warning=warning,
    )


def advance(view: NodeView, state: UpgradeState, now: float, **changes: object) -> PatchNode:
    """Patch to the next state, with ``changes`` of the record."""
    assert view.record is not None
    return patch_node(view, state, msgspec.structs.replace(view.record, since=now, **changes))


def set_label(view: NodeView, label: str, value: str, now: float, **changes: object) -> PatchNode:
    """Patch that sets one label and keeps the state, with ``changes`` of the record."""
    patch = advance(view, view.state, now, **changes)
    return msgspec.structs.replace(patch, labels={**patch.labels, label: value})


def fail(view: NodeView, cause: str, now: float, *, occupied: bool = False) -> NodeStep:
    """Marks the node failed and rolls it back; ``occupied`` if the only cause is that its pods could not leave."""
    assert view.record is not None
    cause = cause[:FAILURE_CAUSE]
    record = msgspec.structs.replace(view.record, since=now, cause=cause, occupied=occupied, returning=True)
    return NodeStep(
        patch=patch_node(view, UpgradeState.FAILED, record, reason="DriverUpgradeFailed", note=cause, warning=True),
        cause=cause if record.blames_set else "",
    )


def finish(view: NodeView, note: str) -> PatchNode:
    """Returns the node to service: no pause, no cordon of Tessera's, no record. An empty ``note`` writes no event."""
    return patch_node(
        view,
        UpgradeState.DONE,
        None,
        labels=resume(view) if view.paused else {},
        annotations={CORDONED_ANNOTATION: None, INITIAL_ANNOTATION: None},
        unschedulable=False if view.cordoned_by_us and view.unschedulable else None,
        reason="DriverUpgrade" if note else "",
        note=note,
    )


def abandon(view: NodeView, why: str) -> PatchNode:
    """Returns a node to service that the rollout cannot continue; the rollout does not decide which set it gets."""
    return finish(view, f"its upgrade ends: {why}")


def resume(view: NodeView) -> dict[str, str | None]:
    """Restores the label that pauses users of GPUs; nodes that had no label get ``true``, as upstream's do."""
    before = view.record.deploy if view.record is not None else ""
    return {PAUSE_LABEL: "true" if before in {"", PAUSED} else before}


def timeout_for(view: NodeView, seconds: float, cause: str, now: float, waits: str) -> NodeStep:
    """Waits, and fails with the cause once the state has lasted too long."""
    assert view.record is not None
    until = view.record.since + seconds
    return fail(view, cause, now) if now >= until else NodeStep(until=until, waits=waits)


class PodsToEvict(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that have to leave.

    Attributes:
        pods: all of them.
        obstacle: why some cannot be evicted; empty if all can be.
    """

    pods: tuple[PodView, ...] = ()
    obstacle: str = ""


def awaited_pods(view: NodeView, policy: UpgradePolicy) -> tuple[PodView, ...]:
    """The pods that must end before others are evicted.

    Raises:
        ValueError: the selector of ``waitForCompletion`` is invalid.
    """
    text = policy.wait_for_completion.pod_selector
    if not text:
        return ()
    selector = parse_selector(text)
    return tuple(pod for pod in view.pods if not pod.stays and selector.matches(pod.labels))


def gpu_pods_to_evict(view: NodeView, policy: UpgradePolicy) -> PodsToEvict:
    """The pods that hold GPUs."""
    deletion = policy.pod_deletion
    return _pods_to_evict(
        view.gpu_pods,
        force=deletion.force,
        empty_dir=deletion.delete_empty_dir,
        what="pods with cards",
        settings="upgradePolicy.podDeletion",
    )


def pods_to_drain(view: NodeView, drain: DrainSettings) -> PodsToEvict:
    """The pods that a drain evicts: all but DaemonSets' pods, static pods, and pods that people keep out of drains.

    Raises:
        ValueError: the selector of ``drain`` is invalid.
    """
    selector = parse_selector(drain.pod_selector)
    pods = tuple(pod for pod in view.pods if not pod.stays and not pod.drain_skip and selector.matches(pod.labels))
    return _pods_to_evict(
        pods, force=drain.force, empty_dir=drain.delete_empty_dir, what="pods", settings="upgradePolicy.drain"
    )


def drain_obstacle(view: NodeView, policy: UpgradePolicy) -> str:
    """Reason that the node could not be emptied, checked before the node is changed; empty if there is none."""
    try:
        awaited_pods(view, policy)
        stuck = gpu_pods_to_evict(view, policy).obstacle
        if not stuck or not policy.drain.enable:
            return stuck
        leaving = pods_to_drain(view, policy.drain)
    except ValueError as error:
        return str(error)
    return leaving.obstacle or ("" if all(pod in leaving.pods for pod in view.gpu_pods) else _KEPT_OUT)


#: An obstacle names no pod: pods may come and go each second, and each new name would be a write of the node.
_KEPT_OUT = "some of its pods with cards are kept out of drains; end these"


def _pods_to_evict(pods: Sequence[PodView], *, force: bool, empty_dir: bool, what: str, settings: str) -> PodsToEvict:
    living = [pod for pod in pods if not pod.terminating]
    stuck = ""
    if not force and not all(pod.controlled for pod in living):
        stuck = f"some of its {what} have no controller that would replace them; end these, or set {settings}.force"
    elif not empty_dir and any(pod.empty_dir for pod in living):
        stuck = f"some of its {what} have data in an emptyDir; end these, or set {settings}.deleteEmptyDir"
    return PodsToEvict(pods=tuple(pods), obstacle=stuck)


def cordon(view: NodeView, record: UpgradeRecord, policy: UpgradePolicy, now: float) -> NodeStep:
    """Cordons the node; if another user has cordoned it, only records that."""
    state = UpgradeState.JOBS if policy.wait_for_completion.pod_selector else UpgradeState.PODS
    after = msgspec.structs.replace(record, since=now)
    if view.foreign_cordon:
        return NodeStep(patch=patch_node(view, state, after, annotations={INITIAL_ANNOTATION: "true"}))
    return NodeStep(patch=patch_node(view, state, after, annotations={CORDONED_ANNOTATION: "true"}, unschedulable=True))


def wait_for_jobs(view: NodeView, record: UpgradeRecord, policy: UpgradePolicy, now: float) -> NodeStep:
    """Waits for the pods of ``waitForCompletion`` to end; a timeout of 0 means no limit."""
    try:
        pods = awaited_pods(view, policy)
    except ValueError as error:
        return NodeStep(waits=f"waitForCompletion.podSelector: {error}")
    timeout = policy.wait_for_completion.timeout_seconds
    until = record.since + timeout if timeout else None
    if pods and (until is None or now < until):
        return NodeStep(until=until, waits=f"waiting for the end of pod {pods[0].text}{_more_text(len(pods))}")
    return NodeStep(patch=advance(view, UpgradeState.PODS, now))


def evict_gpu_pods(
    view: NodeView, record: UpgradeRecord, policy: UpgradePolicy, now: float, blocked: Mapping[str, str]
) -> NodeStep:
    """Evicts pods with GPUs; if that fails and the drain is enabled, continues with the drain."""
    leaving = gpu_pods_to_evict(view, policy)
    if not leaving.pods:
        return NodeStep(patch=advance(view, UpgradeState.RESTART, now))
    cause = _give_up_cause(leaving, record, policy.pod_deletion.timeout_seconds, now, blocked)
    if cause and policy.drain.enable:
        return NodeStep(patch=advance(view, UpgradeState.DRAIN, now))
    timeout = policy.pod_deletion.timeout_seconds
    return fail(view, cause, now, occupied=True) if cause else _evict(view, leaving, record, timeout, blocked)


def drain_node(
    view: NodeView, record: UpgradeRecord, policy: UpgradePolicy, now: float, blocked: Mapping[str, str]
) -> NodeStep:
    """Evicts all pods that a drain covers."""
    if not policy.drain.enable:
        return NodeStep(patch=advance(view, UpgradeState.PODS, now))
    try:
        leaving = pods_to_drain(view, policy.drain)
    except ValueError as error:
        return fail(view, f"drain.podSelector: {error}", now)
    if leaving.pods:
        cause = _give_up_cause(leaving, record, policy.drain.timeout_seconds, now, blocked)
        return (
            fail(view, cause, now, occupied=True)
            if cause
            else _evict(view, leaving, record, policy.drain.timeout_seconds, blocked)
        )
    if view.gpu_pods:
        return fail(view, _KEPT_OUT, now, occupied=True)
    return NodeStep(patch=advance(view, UpgradeState.RESTART, now))


def _give_up_cause(
    leaving: PodsToEvict, record: UpgradeRecord, timeout: int, now: float, blocked: Mapping[str, str]
) -> str:
    """Reason that evictions stop; empty while they continue. A timeout of 0 is no limit, as in ``kubectl drain``."""
    if leaving.obstacle:
        return leaving.obstacle
    if not timeout or now < record.since + timeout:
        return ""
    return f"pod {leaving.pods[0].text} was still there after {timeout} s{_eviction_refusal(leaving, blocked)}"


def _eviction_refusal(leaving: PodsToEvict, blocked: Mapping[str, str]) -> str:
    """The server's message about the first refused eviction; empty if it refused none."""
    return next((f": {blocked[pod.uid]}" for pod in leaving.pods if pod.uid in blocked), "")


def _evict(
    view: NodeView, leaving: PodsToEvict, record: UpgradeRecord, timeout: int, blocked: Mapping[str, str]
) -> NodeStep:
    evict = tuple(
        EvictPod(node=view.name, namespace=pod.namespace, name=pod.name, uid=pod.uid)
        for pod in leaving.pods
        if not pod.terminating
    )
    waits = (
        f"waiting for pod {leaving.pods[0].text} to leave{_more_text(len(leaving.pods))}"
        f"{_eviction_refusal(leaving, blocked)}"
    )
    return NodeStep(evict=evict, until=record.since + timeout if timeout else None, waits=waits)


def _more_text(count: int) -> str:
    return f", and {count - 1} more" if count > 1 else ""
