"""Which pods have to leave a node before its driver changes, and which cannot be asked to."""

from collections.abc import Sequence

import msgspec

from tessera.api.driver.policy import Drain, UpgradePolicy
from tessera.driver.rollout.node_view import NodeView, PodView
from tessera.kube.selectors import parse_selector


class Leaving(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that have to leave.

    Attributes:
        pods: all of them.
        stuck: why some will not be asked to; empty if all can be.
    """

    pods: tuple[PodView, ...] = ()
    stuck: str = ""


def awaited(view: NodeView, policy: UpgradePolicy) -> tuple[PodView, ...]:
    """The pods whose end is awaited before others are asked to go.

    Raises:
        ValueError: the selector of ``waitForCompletion`` cannot be read.
    """
    text = policy.wait_for_completion.pod_selector
    if not text:
        return ()
    selector = parse_selector(text)
    return tuple(pod for pod in view.pods if not pod.stays and selector.matches(pod.labels))


def holding_cards(view: NodeView, policy: UpgradePolicy) -> Leaving:
    """The pods that hold cards."""
    deletion = policy.pod_deletion
    return _leaving(
        view.gpu_pods,
        force=deletion.force,
        empty_dir=deletion.delete_empty_dir,
        settings="upgradePolicy.gpuPodDeletion",
    )


def drained(view: NodeView, drain: Drain) -> Leaving:
    """The pods that a drain takes away: all but those of DaemonSets, static ones and those that people keep.

    Raises:
        ValueError: the selector of ``drain`` cannot be read.
    """
    selector = parse_selector(drain.pod_selector)
    pods = tuple(pod for pod in view.pods if not pod.stays and not pod.drain_skip and selector.matches(pod.labels))
    return _leaving(pods, force=drain.force, empty_dir=drain.delete_empty_dir, settings="upgradePolicy.drain")


def obstacle(view: NodeView, policy: UpgradePolicy) -> str:
    """Why the node could not be emptied, known before it is touched; empty if nothing is in the way."""
    try:
        awaited(view, policy)
        stuck = holding_cards(view, policy).stuck
        if not stuck or not policy.drain.enable:
            return stuck
        leaving = drained(view, policy.drain)
    except ValueError as error:
        return str(error)
    kept = [pod.text for pod in view.gpu_pods if pod not in leaving.pods]
    return leaving.stuck or (f"pod {kept[0]} uses cards and is kept out of drains" if kept else "")


def _leaving(pods: Sequence[PodView], *, force: bool, empty_dir: bool, settings: str) -> Leaving:
    stuck = ""
    for pod in pods:
        if pod.terminating or stuck:
            continue
        if not pod.controlled and not force:
            stuck = f"pod {pod.text} has no controller that would replace it; end it, or set {settings}.force"
        elif pod.empty_dir and not empty_dir:
            stuck = f"pod {pod.text} has data in an emptyDir; end it, or set {settings}.deleteEmptyDir"
    return Leaving(pods=tuple(pods), stuck=stuck)
