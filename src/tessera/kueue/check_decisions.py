"""Decides the answers to admission checks: takes in Workloads, and returns answers; no I/O and no clock.

Rules:

- Only a Workload with reserved quota and a pending check of ours is answered; a version of it is answered once.
- *Ready* if the packing test places all of its pods. They then count as expected, until they have slices or for
  :data:`EXPECTED_SECONDS`, so that two Workloads are not admitted into the same room.
- Without room, the check stays *Pending*, with the reason, for :data:`PATIENCE` seconds, in which each change of the
  cluster is tried: Kueue reserves the quota of a preempted pod before that pod has ended. Then *Retry*: Kueue takes the
  quota back, lets others go, and asks again after a delay that doubles with each attempt.
- *Rejected* only if no node of the cluster could hold a pod even with empty cards, no node group is known that may
  bring another, no new node may turn out to have GPUs, and no node whose objects are incomplete may turn out to hold
  the pod; or if the request is wrong. Kueue then deactivates the Workload.
- Nothing is answered while the slicer takes in many nodes by parts. *Rejected* is final, so it is also not answered
  before all nodes are taken in that have changed since its last step; other answers do not wait for these, since some
  node may change all the time.
- Workloads are tested in the controller's order: priority, then age, as many in one round as one decision may cost. One
  that takes more than a round by itself is *Ready*: its pods are placed one by one, when there is room for each.

Several writers describe a node, in any order: its Node, its Instaslice object, and the amounts that kubelet publishes.
One of these may be missing for a moment, for instance while a node registers or its layout changes. An answer that is
final must not depend on such a moment (:func:`may_hold_later`).

The question of the admission check is whether the controller would place all slices of a Workload now.

It is the planner's own test, with the constraints of the pods, beside what other admitted Workloads will still take.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from tessera.controller.objects.node_info import NodeInfo
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.batch_placement import Placed, Unplaced
from tessera.controller.slicing.planner import Planner
from tessera.controller.slicing.slicer import Slicer
from tessera.controller.slicing.state.messages import profiles_text, reason_text
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.kueue.queued_workload import CHECKED_PODS, QueuedWorkload, outstanding
from tessera.limits import DECISION_STEPS
from tessera.placement.demand import StepBudget
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
    known = not isinstance(reason, UnknownProfile) or (reason.never and not refused.pod.devices)
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


def may_hold_later(state: SlicerState, pod: PodInfo) -> bool:
    """Returns True if a node that is incomplete now may turn out to hold this pod once it is empty.

    For slices, such a node has an Instaslice object that has yet to list all of its cards, or an object whose Node has
    not come. A card that does not answer is not listed.
    For whole cards and shares, it has enough of them, though pods may not hold them all now, or may have more than it
    says.
    """
    nodes = state.cluster.nodes
    if pod.devices:
        wanted = Counter(pod.devices)
        return any(node.unread_devices or wanted <= Counter(dict(node.device_counts)) for node in nodes.values())
    if not state.cluster.objects.keys() <= nodes.keys():
        return True
    return any(node.object_expected and not _lists_cards(state, node) for node in nodes.values())


def _lists_cards(state: SlicerState, node: NodeInfo) -> bool:
    resources = state.cards.get(node.name)
    return resources is not None and len(resources.node_gpus) >= max(1, node.sliced_cards)


#: Most Workloads of Kueue that wait for the admission check of Tessera at a time. Their quota is reserved, so there are
#: seldom dozens; others wait until one is answered.
CHECKED_WORKLOADS = 1_000

#: Seconds in which a Workload without room is tried again before it is sent back.
PATIENCE = 30.0
#: Seconds for which the pods of an admitted Workload count as expected: Kueue starts them, their owner creates them.
EXPECTED_SECONDS = 60.0
#: First and longest seconds until Kueue asks again.
FIRST_DELAY, LONGEST_DELAY = 15, 300


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to the pending checks of a Workload.

    Attributes:
        workload: the Workload at the version that is answered.
        state: the state of its checks.
        text: the reason, for people.
        delay: seconds until Kueue asks again; 0 if it will not.
    """

    workload: QueuedWorkload
    state: State
    text: str
    delay: int = 0


@dataclass(slots=True)
class _Expected:
    """A Workload that was answered Ready.

    Attributes:
        owners: UIDs of the objects that it is for.
        pods: all of its pods.
        left: those of them without slices.
        until: the end of the time in which they count.
    """

    owners: frozenset[str]
    pods: Sequence[PodInfo]
    left: Sequence[PodInfo]
    until: float


class CheckDecisions:
    """The state machine of all checks.

    Args:
        slicer: the controller's state; only read.
        nodes_may_come: tells if an autoscaler's node groups are known, or a new node may turn out to have GPUs.
    """

    def __init__(self, slicer: Slicer, *, nodes_may_come: Callable[[], bool] = lambda: False) -> None:
        self._slicer = slicer
        self._nodes_may_come = nodes_may_come
        #: Workloads that wait for an answer, by UID; at most :data:`CHECKED_WORKLOADS`.
        self._pending: dict[str, QueuedWorkload] = {}
        #: By UID of a pending Workload, the time of the first test without room.
        self._since: dict[str, float] = {}
        #: By UID, the version that was answered last; kept as long as the Workload exists.
        self._answered: dict[str, str] = {}
        #: Workloads that were answered Ready, by UID. Some pods of each have no slices.
        self._expected: dict[str, _Expected] = {}
        #: UIDs of Workloads that the last round did not test; the next one tests them and no others.
        self._left: set[str] = set()
        #: Answers of :func:`may_hold_later` in this round, by the pod's devices; all slices have one answer.
        self._later: dict[tuple[str, ...], bool] = {}
        #: True if the last round was put off until the slicer has caught up.
        self._put_off = False

    @property
    def undecided(self) -> bool:
        """True if a Workload waits for room, or for the slicer, so that its next step may decide it."""
        return self._put_off or bool(self._since)

    @property
    def left_some(self) -> bool:
        """True if the last round left Workloads untested; the next one is due at once."""
        return bool(self._left)

    @property
    def has_place(self) -> bool:
        """True if one more Workload can be taken in."""
        return len(self._pending) < CHECKED_WORKLOADS

    def put(self, uid: str, workload: QueuedWorkload | None) -> bool:
        """Takes in a Workload; ``None`` if it does not wait for an answer.

        Returns:
            False if there is no place for it: the caller must pass it again later.
        """
        if workload is None:
            self._pending.pop(uid, None)
            self._since.pop(uid, None)
            self._left.discard(uid)
        elif uid in self._pending or self.has_place:
            self._pending[uid] = workload
            if self._left:
                self._left.add(uid)
        else:
            return False
        return True

    def drop(self, uid: str) -> None:
        """Takes in that a Workload is gone."""
        self.put(uid, None)
        self._answered.pop(uid, None)
        self._expected.pop(uid, None)

    def forget_answer(self, uid: str) -> None:
        """Takes in that an answer could not be written."""
        self._answered.pop(uid, None)
        self._expected.pop(uid, None)

    def next_time(self) -> float | None:
        """The time at which an answer is due without a change of the cluster; ``None`` if none is."""
        return min(self._since.values()) + PATIENCE if self._since else None

    def decide(self, now: float) -> Sequence[Answer]:
        """Returns the answers that are due; ``now`` are seconds of any steady clock."""
        self._put_off = not self._slicer.is_caught_up
        if self._put_off:
            return ()
        self._update_expected(now)
        self._later.clear()
        answers = []
        work = StepBudget(DECISION_STEPS)
        due = sorted(
            (
                each
                for uid, each in self._pending.items()
                if self._answered.get(uid) != each.version and (not self._left or uid in self._left)
            ),
            key=_order,
        )
        self._left = set()
        for at, workload in enumerate(due):
            verdict = None if work.is_spent else self._test(workload, work, alone=at == 0)
            if verdict is None:
                self._left = {each.uid for each in due[at:]}
                break
            answer = self._answer(workload, verdict, now)
            if answer is not None:
                answers.append(answer)
                if answer.state != "Pending":
                    self._answered[workload.uid] = workload.version
                    self._since.pop(workload.uid, None)
        return answers

    def _test(self, workload: QueuedWorkload, work: StepBudget, *, alone: bool) -> Verdict | None:
        """Tests a Workload; ``alone`` tells that it has a whole round's work, so None is never the answer."""
        expected = [pod for uid, each in self._expected.items() if uid != workload.uid for pod in each.left]
        verdict = check_packing(self._slicer.planner, workload, expected[:CHECKED_PODS], work)
        if verdict is not None and verdict.never is not None:
            if self._nodes_may_come():
                return Verdict("Retry", f"{verdict.text}; a new node may")
            if self._may_hold_later(verdict.never):
                return Verdict("Retry", f"{verdict.text}; a node that does not show all of its cards now may")
            if self._slicer.has_news:
                return Verdict("Retry", f"{verdict.text}; a node that has just changed may")
        if verdict is not None or not alone:
            return verdict
        if expected:
            return Verdict("Retry", "workloads that were admitted before it get their slices first")
        return Verdict("Ready", "has too many pods to test them together: each is placed when there is room for it")

    def _may_hold_later(self, pod: PodInfo) -> bool:
        if pod.devices not in self._later:
            self._later[pod.devices] = may_hold_later(self._slicer.state, pod)
        return self._later[pod.devices]

    def _answer(self, workload: QueuedWorkload, verdict: Verdict, now: float) -> Answer | None:
        if verdict.state == "Retry":
            return self._wait_or_send_back(workload, verdict, now)
        if verdict.state == "Ready" and workload.pods:
            pods = workload.pods
            self._expected[workload.uid] = _Expected(workload.owners, pods, pods, now + EXPECTED_SECONDS)
        return Answer(workload, verdict.state, verdict.text)

    def _wait_or_send_back(self, workload: QueuedWorkload, verdict: Verdict, now: float) -> Answer | None:
        if workload.uid not in self._since:
            self._since[workload.uid] = now
            return Answer(workload, "Pending", verdict.text)
        if now < self._since[workload.uid] + PATIENCE:
            return None
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(workload.attempts, 10))
        return Answer(workload, "Retry", verdict.text, delay)

    def _update_expected(self, now: float) -> None:
        """Drops what has slices, or did not come in time."""
        if not self._expected:
            return
        by_owner = {owner: uid for uid, each in self._expected.items() for owner in each.owners}
        placed: dict[str, list[PodInfo]] = {}
        pods = self._slicer.state.cluster.pods
        for allocation in self._slicer.state.allocations:
            pod = pods.get(allocation.uid)
            found = by_owner.get(pod.uid) or by_owner.get(pod.owner) if pod is not None else None
            if pod is not None and found is not None:
                placed.setdefault(found, []).append(pod)
        for uid, each in list(self._expected.items()):
            each.left = outstanding(each.pods, placed.get(uid, ()))
            if not each.left or now >= each.until:
                del self._expected[uid]


def _order(workload: QueuedWorkload) -> tuple[int, str, str]:
    first = workload.pods[0] if workload.pods else None
    return (-first.priority, first.created, workload.uid) if first is not None else (0, "", workload.uid)
