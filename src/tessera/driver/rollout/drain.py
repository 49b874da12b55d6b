"""Steps before the driver is replaced: cordon, wait for jobs, evict pods with GPUs, drain. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from tessera.driver.node_facts import CORDONED_ANNOTATION, INITIAL_ANNOTATION, UpgradeRecord, UpgradeState
from tessera.driver.rollout.instructions import EvictPod, NodeStep, advance, fail, patch_node
from tessera.driver.rollout.node_view import NodeView, PodView
from tessera.gpu_operator.driver_policy import DrainSettings, UpgradePolicy
from tessera.kube.resources.selectors import parse_selector


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
