"""Brings the queue's page up to date between two rounds: without the pods that wait no more.

A round takes some time, and the next one comes later still. After the end of many pods the page would show them
meanwhile, and count them in the positions of the others.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

import msgspec

from tessera.api.names import PodUid
from tessera.controller.forecasting.competition import Place, compete
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.forecast.queue_page import QueuedPod, QueuePage
from tessera.reasons.reason import OtherGate

#: Kinds of pods that wait no more, by the nodes that might have taken them, up to which positions are counted anew: the
#: cost is so much for each row. With more kinds, positions stay as they are until the next round.
_KINDS = 64


class CurrentPage:
    """The page of one round, less the pods that have left since.

    Args:
        page: the page as the round made it.
        places: the places of all pods that waited when the round began, in their order.
    """

    def __init__(self, page: QueuePage, places: Sequence[Place] = ()) -> None:
        self._page = page
        self._places = places
        #: Rows of pods that other gates hold; they have no place.
        self._held = [row for row in page.pods if isinstance(row.why, OtherGate)]
        #: The last answer, and the pods that it leaves out.
        self._current = page
        self._gone: AbstractSet[PodUid] = frozenset()

    def read(self, state: SlicerState) -> QueuePage:
        """Returns the page without the pods that wait no more; positions count the others."""
        pods = state.cluster.pods
        gone = {each.pod.uid for each in self._places if each.pod.uid not in pods or each.pod.uid not in state.waiting}
        gone |= {PodUid(row.uid) for row in self._held if row.uid not in pods}
        if gone != self._gone:
            self._gone = gone
            omitted = self._page.omitted - len(gone - {row.uid for row in self._page.pods})
            rows = tuple(self._rows(gone))
            self._current = msgspec.structs.replace(self._page, pods=rows, omitted=max(0, omitted))
        return self._current

    def _rows(self, gone: AbstractSet[PodUid]) -> Iterator[QueuedPod]:
        """The rows of the other pods, with their positions among those that are left."""
        competing = [each for each in self._places if each.position]
        lost = Counter(each.nodes for each in competing if each.pod.uid in gone)
        if len(lost) > _KINDS:
            competing, lost = [], Counter()
        ahead = dict(_count_ahead(competing, gone))
        nodes = {each.pod.uid: each.nodes for each in competing}
        for row in self._page.pods:
            uid = PodUid(row.uid)
            if uid in ahead:
                of = row.of - _count(lost, nodes[uid])
                yield msgspec.structs.replace(row, position=row.position - ahead[uid], of=of)
            elif uid not in gone:
                yield row


def _count_ahead(competing: Sequence[Place], gone: AbstractSet[PodUid]) -> Iterator[tuple[PodUid, int]]:
    """Yields for each pod that still waits the number of its competitors before it that have left."""
    lost: Counter[int] = Counter()
    known: dict[int, int] = {}
    for each in competing:
        if each.pod.uid in gone:
            lost[each.nodes] += 1
            known.clear()
            continue
        if each.nodes not in known:
            known[each.nodes] = _count(lost, each.nodes)
        yield each.pod.uid, known[each.nodes]


def _count(lost: Counter[int], nodes: int) -> int:
    return sum(count for mask, count in lost.items() if compete(mask, nodes))
