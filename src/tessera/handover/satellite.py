"""Hand-over as a satellite of the controller: proposers, and tasks that bring images, end loans and read models.

**Loans.** A pod that lends its slice to one that has ended, such as by its node's eviction, is evicted: nobody uses the
slice. Kubernetes deletes such a lender with its borrower's object (``ownerReferences``), and keeps the object of a pod
that has ended, perhaps for ever. A lender is a tenant's own pod, so a forged one ends nothing but itself. The cluster
is the record: pods are looked at each :data:`PERIOD` seconds, so a new controller finds them as they are, and a lender
whose eviction is refused, as by a PodDisruptionBudget, is asked again. At most :data:`EVICTED` are asked at a time,
others in the next round; namespaces take turns, so that one with thousands of such pods holds up no other.
"""

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest

from tessera.api.names import LENDS_ANNOTATION
from tessera.api.slice_requests import lends_to
from tessera.controller.satellite import Process, Task, Term
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.hand_over import HandOver
from tessera.handover.image_pulls import ImagePulls
from tessera.handover.inheritance import Inheritance
from tessera.handover.local_models import LocalModels
from tessera.handover.reserved_images import ReservedImages
from tessera.handover.spares import Spares
from tessera.handover.workloads import WorkloadReader
from tessera.kube.eviction import Blocked, Evictor
from tessera.kube.resources import Pod

_log = logging.getLogger(__name__)
#: Seconds between two looks; evictions of one look.
PERIOD, EVICTED = 60.0, 16
#: Refused lenders that are remembered.
_REFUSED = 1_000


class EndedLoans:
    """Evicts lenders.

    Args:
        term: the term of leadership, with all pods.
    """

    def __init__(self, term: Term) -> None:
        self._evictor, self._clock, self._pods = Evictor(term.runtime.client), term.runtime.clock, term.pods
        #: UIDs of lenders whose eviction was refused last: others go first.
        self._refused: dict[str, None] = {}

    async def run(self) -> None:
        """Evicts until cancelled."""
        while True:
            await self._clock.sleep(PERIOD)
            for lender in choose_lenders(self._find(), self._refused):
                await self._evict(lender)

    def _find(self) -> Iterator[Pod]:
        """Yields the lenders that live though their borrowers have ended."""
        cache = self._pods.cache
        for pod in cache.values():
            meta = pod.metadata
            if LENDS_ANNOTATION in meta.annotations and meta.deletion_timestamp is None and not pod.status.has_ended:
                borrower = cache.get(f"{meta.namespace}/{meta.annotations[LENDS_ANNOTATION]}")
                if borrower is not None and borrower.status.has_ended and lends_to(pod, borrower):
                    yield pod

    async def _evict(self, lender: Pod) -> None:
        meta = lender.metadata
        answer = await self._evictor.evict(meta.namespace, meta.name, meta.uid)
        if isinstance(answer, Blocked):
            self._refused.pop(meta.uid, None)
            self._refused[meta.uid] = None
            if len(self._refused) > _REFUSED:
                del self._refused[next(iter(self._refused))]
            _log.info("pod %s/%s lends to a pod that has ended, and stays: %s", meta.namespace, meta.name, answer.text)
        else:
            _log.info("pod %s/%s is evicted: it lends its slice to a pod that has ended", meta.namespace, meta.name)


def choose_lenders(found: Iterable[Pod], refused: Container[str]) -> list[Pod]:
    """Returns the lenders to evict now: those first whose eviction was not refused, of each namespace in turn."""
    ranks = Counter[tuple[bool, str]]()
    ranked: list[tuple[bool, int, Pod]] = []
    for lender in found:
        place = (lender.metadata.uid in refused, lender.metadata.namespace)
        ranked.append((place[0], ranks[place], lender))
        ranks[place] += 1
    return [each[2] for each in nsmallest(EVICTED, ranked, key=lambda one: one[:2])]


class HandOverMode(Enum):
    """What is done for the pods that replace others of their owner."""

    #: A deleted pod's slots are kept for its owner's next pod.
    INHERIT = "inherit"
    #: Besides, an old pod ends for a new one without room whose annotation says so.
    ON = "on"


@dataclass(frozen=True, kw_only=True)
class HandOverSatellite:
    """Keeps slots for the next pods of their owners and of services, and hands them over in updates.

    Attributes:
        mode: what is done.
        moves: True if pods are moved, which goes before an old pod ends.
    """

    mode: HandOverMode = HandOverMode.ON
    moves: bool = False

    def make(self, state: SlicerState) -> tuple[Inheritance, Spares, ReservedImages, HandOver]:
        """Makes the proposers of a slicer."""
        inheritance = Inheritance(state)
        acts = self.mode is HandOverMode.ON
        return (
            inheritance,
            Spares(state, inheritance.pods),
            ReservedImages(state),
            HandOver(state, inheritance.pods, acts=acts, moves=self.moves),
        )

    def open(self, process: Process) -> Callable[[Term], None]:
        """See :class:`~tessera.controller.satellite.Satellite`."""

        def join(term: Term) -> None:
            term.owner_readers.append(WorkloadReader(term.runtime.client).read)
            term.tasks.append(Task(name="pulls of images", run=ImagePulls(term).run))
            term.tasks.append(Task(name="ends of loans", run=EndedLoans(term).run))
            term.tasks.append(Task(name="models of nodes", run=LocalModels(term).run))

        process.proposers.append(self.make)
        return join
