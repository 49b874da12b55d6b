"""What is due for one node, gathered into as few writes as it takes: one patch of the spec, one of the status."""

from dataclasses import dataclass, field

from tessera.api.instaslice import AllocationRequest, AllocationResult
from tessera.api.names import NodeName, PodUid
from tessera.controller.slicing.allocation import Allocation, AllocationStep, make_deleting_result, make_request
from tessera.controller.slicing.instructions import PatchRequests, PatchResults, Ungate, Write


@dataclass(slots=True)
class PendingNodeWrites:
    """Entries to write, remove or change on one node, and its pods to ungate."""

    node: NodeName
    requests: dict[PodUid, AllocationRequest] = field(default_factory=dict)
    drop_requests: list[PodUid] = field(default_factory=list)
    results: dict[PodUid, AllocationResult] = field(default_factory=dict)
    states: dict[PodUid, str] = field(default_factory=dict)
    drop_results: list[PodUid] = field(default_factory=list)
    ungate: list[Ungate] = field(default_factory=list)

    def writes(self) -> list[Write]:
        """The writes, promises before the rest."""
        found: list[Write] = []
        if self.requests or self.drop_requests:
            found.append(PatchRequests(node=self.node, put=self.requests, drop=tuple(self.drop_requests)))
        if self.results or self.states or self.drop_results:
            found.append(
                PatchResults(node=self.node, put=self.results, state=self.states, drop=tuple(self.drop_results))
            )
        return [*found, *self.ungate]


def add_step(due: PendingNodeWrites, allocation: Allocation, step: AllocationStep) -> None:
    """Adds the entry that a step writes to the node's object; steps that write none add nothing."""
    uid = allocation.uid
    match step:
        case AllocationStep.REQUEST:
            due.requests[uid] = make_request(allocation)
        case AllocationStep.DELETING if allocation.result is None:
            due.results[uid] = make_deleting_result(allocation)
        case AllocationStep.DELETING:
            due.states[uid] = "deleting"
        case AllocationStep.DROP_REQUEST:
            due.drop_requests.append(uid)
        case AllocationStep.DROP_RESULT:
            due.drop_results.append(uid)
        case _:
            pass
