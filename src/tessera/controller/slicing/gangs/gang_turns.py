"""The turns of gangs among the waiting pods that are planned together.

A gang has its turn when the last of the pods that it needs has it, so a gang is as old, and of as high a priority, as
its youngest and lowest pod: nobody gets ahead by one early pod, or by one of high priority.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tessera.api.names import PodUid
from tessera.api.pods.gangs import Gang
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.slicing.gangs.gang_planner import GangPlanner, GangState


@dataclass(slots=True)
class Turns:
    """Who is planned, in order.

    Attributes:
        pods: pods that are planned alone, and for each gang one of its pods.
        gangs: by such a pod, its gang.
        members: the pods that have their turn with a gang.
    """

    pods: list[PodInfo] = field(default_factory=list)
    gangs: dict[PodUid, Gang] = field(default_factory=dict)
    members: set[PodUid] = field(default_factory=set)


def take_turns(batch: Sequence[PodInfo], held_back: Iterable[PodInfo], planner: GangPlanner) -> Turns:
    """Returns the turns of a batch.

    Args:
        batch: the first waiting pods, in order.
        held_back: pods of the same time that their queue's maximum holds back.
        planner: knows the gangs.
    """
    turns = Turns()
    found: dict[str, GangState] = {}
    places: dict[str, dict[PodUid, int]] = {}
    pods = [*batch, *held_back]
    for index, pod in enumerate(pods):
        gang = planner.gang_of(pod)
        if gang is None:
            continue
        if gang.key not in found:
            found[gang.key] = planner.look(gang)
        if found[gang.key].missing or not found[gang.key].gang.size:
            places.setdefault(gang.key, {})[pod.uid] = index
            turns.members.add(pod.uid)
    ends = {_end(found[key], known, len(pods)): key for key, known in places.items()}
    last = [key for key, known in places.items() if _end(found[key], known, len(pods)) == len(pods)]
    for index, pod in enumerate(pods):
        if pod.uid not in turns.members:
            if index < len(batch):
                turns.pods.append(pod)
        elif index in ends:
            turns.pods.append(pod)
            turns.gangs[pod.uid] = found[ends[index]].gang
    for key in last:
        pod = pods[max(places[key].values())]
        turns.pods.append(pod)
        turns.gangs[pod.uid] = found[key].gang
    return turns


def _end(found: GangState, places: dict[PodUid, int], count: int) -> int:
    """Returns the index of the last pod that the gang needs; ``count`` if one of them is not among the pods."""
    needed = found.ready[: found.missing]
    if not found.is_complete or any(pod.uid not in places for pod in needed):
        return count
    return max(places[pod.uid] for pod in needed)
