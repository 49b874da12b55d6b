"""The question of the admission check: would the controller place all slices of a Workload now?

It is the planner's own test, with the constraints of the pods, beside what other admitted Workloads will still take.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.batch_placement import Placed, Unplaced
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.state.messages import profiles_text, reason_text
from tessera.kueue.checks.queued_workload import QueuedWorkload
from tessera.placement.step_budget import StepBudget
from tessera.reasons.reason import Fragmented, Full, NeverFits, Reason, UnknownProfile
from tessera.reasons.words import sentence

State = Literal["Pending", "Ready", "Retry", "Rejected"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a check, with its reason.

    Attributes:
        state: the answer.
        text: the reason, for people.
        never: a pod that no node could hold as the nodes are known now, even with empty cards.
    """

    state: State
    text: str
    never: PodInfo | None = None


def check_packing(
    planner: Planner, workload: QueuedWorkload, expected: Sequence[PodInfo], work: StepBudget
) -> Verdict | None:
    """Tells if all pods of a Workload could be placed now; None if the work did not suffice to tell.

    Args:
        planner: plans with the cluster's state.
        workload: the Workload.
        expected: pods of other Workloads that were answered Ready and have no slices yet; they go first.
        work: pays for the test.
    """
    if workload.fault:
        return Verdict("Rejected", f"no node can ever take it: {workload.fault}")
    if not workload.pods:
        return Verdict("Ready", "asks for nothing that Tessera places")
    pods = [pod for pod in workload.pods if not planner.only_fixed_layouts_serve(pod)]
    if not pods:
        return Verdict("Ready", "only nodes with a fixed MIG layout serve it, which the scheduler chooses")
    wanted = {pod.uid for pod in pods}
    outcomes = [one for one in planner.plan_alone([*expected, *pods], work) if one.pod.uid in wanted]
    placed = sum(isinstance(one, Placed) for one in outcomes)
    if placed == len(pods):
        return Verdict("Ready", f"there is room for {_count(pods)}")
    refused = next((one for one in outcomes if isinstance(one, Unplaced)), None)
    if refused is None:
        return None
    reason = refused.reason
    known = not isinstance(reason, UnknownProfile) or (bool(reason.known) and not refused.pod.devices)
    if isinstance(reason, (NeverFits, UnknownProfile)) and known:
        return Verdict("Rejected", sentence(reason), never=refused.pod)
    why = f": {_why(refused.pod, reason, {pod.key for pod in pods})}" if reason is not None else ""
    room = f"there is room for {placed} of {len(pods)} pods" if placed else "there is no room"
    return Verdict("Retry", f"{room} ({_count(pods)}){why}")


def _why(pod: PodInfo, reason: Reason, own: AbstractSet[str]) -> str:
    """The reason in words; ``own`` are the keys of the Workload's pods, for whose end none of them can wait."""
    if isinstance(reason, (Full, Fragmented)) and any(each.pod in own for each in reason.frees):
        return f"{sentence(reason)}, beside the workload's other pods"
    return reason_text(pod, reason)


def _count(pods: Sequence[PodInfo]) -> str:
    """``3 pods with 3g.20gb``; of several shapes, the first."""
    text = profiles_text(pods[0])
    more = " and others" if any(pod.profiles != pods[0].profiles for pod in pods) else ""
    return f"{text}{more}" if len(pods) == 1 else f"{len(pods)} pods with {text}{more}"
