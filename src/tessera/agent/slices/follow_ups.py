"""Carries out the instructions of the slice state machine outside the GPUs: Events, CDI files, the journal."""

from tessera.agent.base.node_objects import ApiMirror
from tessera.agent.base.runtime import AgentRuntime
from tessera.agent.inventory.sliceable_gpus import SkippedGpu
from tessera.agent.slices.cdi import CdiFolder
from tessera.agent.slices.events import FollowUpsDue, RemoveCdiFiles, ReportProblem, SaveJournal
from tessera.agent.slices.slice_table import SliceJournalFile
from tessera.agent.slices.state_machine import SliceStateMachine
from tessera.kube.event_recorder import make_reference
from tessera.kube.resources import NODES, PODS, Node


class SliceFollowUps:
    """Carries out the effects that must come before the status of the Instaslice object is written.

    Args:
        runtime: records Events.
        mirror: the node.
        machine: gives the instructions.
        cdi: the folder of the CDI files.
        journal: the journal's file.
    """

    def __init__(
        self,
        runtime: AgentRuntime,
        *,
        mirror: ApiMirror,
        machine: SliceStateMachine,
        cdi: CdiFolder,
        journal: SliceJournalFile,
    ) -> None:
        self._events = runtime.events
        self._mirror = mirror
        self._machine = machine
        self._cdi = cdi
        self._journal = journal
        #: UUIDs and reasons of the skipped GPUs that an Event has reported.
        self._reported_skips: set[tuple[str, str]] = set()

    def carry_out(self) -> None:
        """Carries out all instructions that are due.

        Raises:
            OSError: the journal or the CDI folder cannot be written.
        """
        for instruction in self._machine.handle(FollowUpsDue()):
            match instruction:
                case ReportProblem():
                    self._report(instruction)
                case RemoveCdiFiles():
                    self._cdi.remove(instruction.devices)
                case SaveJournal():
                    self._journal.save(instruction.journal)

    def _report(self, problem: ReportProblem) -> None:
        """Records an Event on the pod; on the node if the pod is gone and its slice cannot be destroyed yet."""
        promise, node = self._machine.table.promises.get(problem.pod), self._mirror.node()
        if promise is not None:
            about = make_reference(PODS, promise.name, promise.namespace, problem.pod)
            self._events.record(about, problem.reason, problem.text, type="Warning")
        elif node is not None:
            about = make_reference(NODES, node.metadata.name, uid=node.metadata.uid)
            self._events.record(about, problem.reason, problem.text, type="Warning")

    def report_skipped(self, node: Node, skipped: tuple[SkippedGpu, ...]) -> None:
        """Records an Event on the node for each GPU that cannot be cut, once for each reason."""
        about = make_reference(NODES, node.metadata.name, uid=node.metadata.uid)
        for each in skipped:
            if (each.info.uuid, each.reason) not in self._reported_skips:
                self._reported_skips.add((each.info.uuid, each.reason))
                text = f"card {each.info.uuid} ({each.info.name}) is not used for slices: {each.reason}"
                self._events.record(about, "CardSkipped", text, type="Warning" if each.waits else "Normal")
