"""The reason that a pod waits, in one word for scripts, and what stands before it.

The detail is written to the pod, which tenants read, so it names no other pod and no node; blockers do, and are for the
controller's page.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from tessera.api.names import NodeName
from tessera.controller.filters.resources import FreeAmounts
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.planning.batch_placement import Unplaced
from tessera.controller.slicing.planning.planner import Planner
from tessera.controller.slicing.state.messages import gates_text, profiles_text, slices_text
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.forecast.queue_page import Blocker
from tessera.limits.forecast import BLOCKER_STEPS, QUEUE_BLOCKERS
from tessera.placement.cards import OwnedPlacement
from tessera.placement.demand import (
    Fragmented,
    Full,
    GangIncomplete,
    GangNoRoom,
    GangTooLarge,
    NeverFits,
    NoNode,
    QueueFull,
    Reason,
    Reserved,
    UnknownProfile,
    room_word,
)
from tessera.placement.enough_ends import find_enough_ends
from tessera.placement.explain import RefusalExplainer
from tessera.placement.step_budget import StepBudget
from tessera.text import count_noun, one_line

#: Characters of a sentence about gates.
_GATES_SHOWN = 240
#: Rules that say that a node is away, and beginnings of those about what other pods hold besides slices.
_AWAY = frozenset({"node(s) were not ready", "node(s) had no agent that is ready"})
_SHORT = ("Insufficient ", "Too many pods")
#: Words of reasons that last.
_NEVER = frozenset({"never-fits", "no-such-profile"})
#: Nodes with the most free slots, among which the holders in the way are sought.
_NODES_SEARCHED = 16
#: Nodes with the most free slots that are asked if their rules let one pod in, and the pods for which they are asked.
_NODES_ASKED, _PODS_ASKED = 64, 200
#: Steps of these rules for one pod.
_RULE_STEPS = 10_000
#: Steps of a plan for one pod.
_REPLAN_STEPS = 1_000
#: Share of the remaining steps that one search for them takes at most.
_SEARCH_SHARE = 0.4


class WaitReason(NamedTuple):
    """Why a pod waits.

    Attributes:
        code: one word.
        detail: one sentence, without names of others.
        blockers: what must end first; empty if that is nobody's slice.
    """

    code: str
    detail: str
    blockers: tuple[Blocker, ...] = ()


def gate_reason(pod: PodInfo) -> WaitReason:
    """The reason of a pod that gates of others hold."""
    return WaitReason("other-gate", one_line(gates_text(pod.earlier_gates), _GATES_SHOWN))


class ReasonFinder:
    """Finds the reasons of pods that wait for slices, at one time.

    Args:
        state: the slicer's state.
        held_back: by node, the number of its cards that are not allocated for a fault.

    Attributes:
        searches: searches for what must end first so far, of some 50 ms each; never decreases.
    """

    def __init__(self, state: SlicerState, held_back: Mapping[NodeName, int]) -> None:
        self._state = state
        self._held_back = held_back
        self._explainer = RefusalExplainer(state.inventory.fleet, lambda _demand, _node: None, {})
        self.searches = 0
        #: Pods for which nodes were asked if their rules let them in.
        self._asked = 0
        #: Pays for these searches where the fewest are more than a few pods.
        self._work = StepBudget(BLOCKER_STEPS)
        self._planner = Planner(state)
        #: By profiles and constraints, the reason of a plan now; None if it finds a place.
        self._replanned: dict[Hashable, Reason | None] = {}
        #: By profiles and mask of nodes, the holders in the way.
        self._blockers: dict[tuple[tuple[str, ...], int], tuple[Blocker, ...]] = {}

    def find(self, pod: PodInfo, nodes: int) -> WaitReason:
        """Returns the reason of a pod that these nodes may take."""
        reason = self._reason(pod, nodes)
        if reason is None:
            return WaitReason("planning", "the controller has not planned it yet")
        blockers = self._blockers_of(pod, nodes, reason)
        away = self._cards_away(pod)
        code, detail = _describe(pod, reason)
        if away and code != "never-fits" and not isinstance(reason, QueueFull | Reserved | GangIncomplete):
            text = f"{count_noun(away, 'card')} that might serve it held back for a fault; {detail}"
            return WaitReason("card-held-back", text, blockers)
        return WaitReason(code, detail, blockers)

    def _reason(self, pod: PodInfo, nodes: int) -> Reason | None:
        """The reason of the last plan, or that of a plan now where no node is left that the last one was about.

        A node that is gone makes no room, so pods are not planned anew for it.
        """
        reason = self._state.pods.reason_of(pod.uid)
        if nodes or not isinstance(reason, Full | Fragmented | Reserved):
            return reason
        key = (tuple(sorted(pod.profiles)), pod.constraints)
        if key not in self._replanned:
            self.searches += 1
            (found,) = self._planner.plan_alone([pod], StepBudget(_REPLAN_STEPS))
            self._replanned[key] = found.reason if isinstance(found, Unplaced) else None
        return self._replanned[key]

    def _cards_away(self, pod: PodInfo) -> int:
        """The cards that are held back on nodes that would take the pod."""
        if not self._held_back:
            return 0
        index = self._state.cluster.index
        able = index.open_to(pod.constraints)
        return sum(count for name, count in self._held_back.items() if index.mask_of(name) & able)

    def _blockers_of(self, pod: PodInfo, nodes: int, reason: Reason) -> tuple[Blocker, ...]:
        if isinstance(reason, GangNoRoom) and reason.reason is not None:
            return self._blockers_of(pod, nodes, reason.reason)
        if isinstance(reason, Reserved):
            found = self._state.reservations.values()
            where = {each.key: each.node for each in found}
            keys = reason.keys[:QUEUE_BLOCKERS]
            return tuple(Blocker(pod=key, node=where.get(key, ""), reserved=True) for key in keys)
        if not isinstance(reason, Full | Fragmented):
            return ()
        known = self._state.waiting.get(pod.uid)
        if known is None or not known.dependent:
            return self._holders(pod, nodes)
        admitting = self._admitting(pod, nodes)
        return self._holders(pod, admitting) if admitting else tuple(islice(_holders_of(reason.frees), QUEUE_BLOCKERS))

    def _admitting(self, pod: PodInfo, nodes: int) -> int:
        """The emptiest of these nodes whose rules about other pods and volumes let a pod in; 0 once too many asked."""
        if self._asked == _PODS_ASKED:
            return 0
        self._asked += 1
        self.searches += 1
        index, fleet = self._state.cluster.index, self._state.inventory.fleet
        known = sorted(name for name in index.names(nodes) if name in fleet)
        found = 0
        with self._planner.filters(StepBudget(_RULE_STEPS)) as filters:
            rules = [each for each in filters if not each.freed_with_cards and not isinstance(each, FreeAmounts)]
            for node in islice(fleet.emptiest_nodes(known), _NODES_ASKED):
                name = NodeName(node.name)
                if not any(rule.refusal(pod, name) for rule in rules):
                    found |= index.mask_of(name)
        return found

    def _holders(self, pod: PodInfo, nodes: int) -> tuple[Blocker, ...]:
        """The holders of the fewest slices whose end makes room on these nodes, as the cards are now.

        Where that is more than a few pods, enough of them; none if the searches for other pods have cost too much.
        """
        key = (tuple(sorted(pod.profiles)), nodes)
        if key not in self._blockers:
            self.searches += 1
            fleet = self._state.inventory.fleet
            known = [name for name in self._state.cluster.index.names(nodes) if name in fleet]
            emptiest = tuple(node.name for node in islice(fleet.emptiest_nodes(sorted(known)), _NODES_SEARCHED))
            frees = self._explainer.no_room(pod.profiles, emptiest).frees if emptiest else ()
            if not frees and len(pod.profiles) > 1 and not self._work.is_spent:
                frees = find_enough_ends(fleet, pod.profiles, emptiest, self._work.part(_SEARCH_SHARE))
            self._blockers[key] = tuple(islice(_holders_of(frees), int(QUEUE_BLOCKERS)))
        return self._blockers[key]


def _holders_of(found: Iterable[OwnedPlacement]) -> Iterator[Blocker]:
    """One blocker for each pod on each node, with its slices."""
    profiles: dict[tuple[str, str], list[str]] = {}
    for one in found:
        profiles.setdefault((one.owner, one.placement.node), []).append(one.placement.profile)
    for (owner, node), each in profiles.items():
        yield Blocker(pod=owner, node=node, profile=slices_text(each))


def _describe(pod: PodInfo, reason: Reason) -> tuple[str, str]:
    """The word and the sentence."""
    wanted = profiles_text(pod)
    match reason:
        case Full():
            return "full", reason.shortage
        case Fragmented():
            return "fragmented", reason.shortage
        case NoNode(too_small=lacks) if lacks:
            return "never-fits", reason.text
        case NoNode(counts=counts):
            rules = [rule for rule, _ in counts]
            if any(rule.startswith(_SHORT) for rule in rules):
                return "node-full", reason.text
            return ("node-not-ready" if _AWAY.intersection(rules) else "no-node"), reason.text
        case Reserved(keys=keys):
            before = count_noun(len(keys), "pod")
            room = room_word(pod.profiles)
            return "reserved", f"the free {room} that would do for {wanted} are reserved for {before} before it"
        case GangIncomplete():
            return "gang-incomplete", reason.text
        case GangTooLarge():
            return "never-fits", reason.text
        case GangNoRoom(gang=gang, size=size, fit=fit, reason=of):
            together = f"gang {gang} starts as a whole, and {fit} of its {size} pods have a place now"
            code, detail = _describe(pod, of) if of is not None else ("", "they exceed the work of one decision")
            return (code if code in _NEVER else "gang-no-room"), f"{together}: {detail}"
        case QueueFull(never=True):
            return "never-fits", reason.text
        case QueueFull():
            return "queue-full", reason.text
        case NeverFits():
            return "never-fits", reason.text
        case UnknownProfile():
            return "no-such-profile", reason.text
