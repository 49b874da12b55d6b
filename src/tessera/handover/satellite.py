"""Hand-over as a satellite of the controller: proposers, and tasks that bring images, end loans and read models."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum

from tessera.controller.leadership.satellite import Process, Task, Term
from tessera.controller.slicing.state.slicer_state import SlicerState
from tessera.handover.ended_loans import EndedLoans
from tessera.handover.hand_over import HandOver
from tessera.handover.image_pulls import ImagePulls
from tessera.handover.inheritance import Inheritance
from tessera.handover.local_models import LocalModels
from tessera.handover.reserved_images import ReservedImages
from tessera.handover.spares import Spares
from tessera.handover.workloads import WorkloadReader


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

    @asynccontextmanager
    async def open(self, process: Process) -> AsyncIterator[Callable[[Term], None]]:
        """See :class:`~tessera.controller.leadership.satellite.Satellite`."""

        def join(term: Term) -> None:
            term.owner_readers.append(WorkloadReader(term.runtime.client).read)
            term.tasks.append(Task(name="pulls of images", run=ImagePulls(term).run))
            term.tasks.append(Task(name="ends of loans", run=EndedLoans(term).run))
            term.tasks.append(Task(name="models of nodes", run=LocalModels(term).run))

        process.proposers.append(self.make)
        yield join
