"""The life of one allocation, as a table of the next writes.

An allocation is one pod's slices on one node. The node's Instaslice object *records* it: the request (``spec``), and
the result (``status``) with its two states. The next step follows only from the record and from the pod, never from
earlier actions of this process. So a crash between any two writes needs no special handling.

================================  ===========================================  ==============================
pod                               record                                       next
================================  ===========================================  ==============================
wants its slices                  no request                                   write the request
behind our gate                   request                                      pin and ungate the pod
ungated                           request                                      nothing, it is settled
lives, but given up               request, or result without agent's state     write the result as ``deleting``
lives, but given up               ``deleting``                                 wait for the agent's ``deleted``
lives, but given up               nothing, and a request was sent [3]_         remove the request
gone or finished [1]_, or         request                                      remove the request
agent says ``deleted``
gone or finished, or given up     result alone, agent says ``deleted`` [2]_    remove the result
gone or finished                  result alone                                 wait until the agent removes it
gone, finished, or given up       nothing                                      forget it
behind our gate                   none, since it has whole cards [4]_          pin and ungate the pod
================================  ===========================================  ==============================

.. [1] or being deleted while bound to no node: it will never run, though a finalizer may keep it.
.. [2] or the record names no positions. An agent of an earlier version leaves results to the controller.
.. [3] and no answer came, so the server may still record it. An agent without a request removes a result at once.
.. [4] or shares: the pin that removes the gate is their record. A further kind of request may have a record of its
   own: then its write takes the place of the request's, and no agent has to destroy anything.

No later pod has the UID of a deleted pod, so its request can be removed before its slices are destroyed. A living pod
may be promised other slices at once; so the agent must first report that the old ones are destroyed.

The slots are free again when the agent says ``deleted`` or has removed the result, or when nothing was ever recorded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from tessera.api.instaslice import (
    AllocationRequest,
    AllocationResult,
    AllocationStatus,
    Instaslice,
    NodeResources,
    PodRef,
    RequestedResources,
    Slice,
    make_result,
    recorded_slices,
)
from tessera.api.names import NodeName, PodUid, device_id
from tessera.controller.objects.pod_info import SLICES, KindOfRequest, PodInfo, Record
from tessera.controller.objects.resource_amounts import Amounts, format_amount
from tessera.mig.names import parse_profile_name, plain_profile

#: The owner of slices that wait for their end, where a new controller finds only their result: it names no pod.
DELETED_POD = "a deleted pod"
#: Resources of the pod that a request lists.
_SHOWN: tuple[str, ...] = ("cpu", "memory")


class AllocationStep(Enum):
    """The next step of an allocation."""

    REQUEST = "write the request"
    UNGATE = "pin and ungate the pod"
    DELETING = "write the state deleting"
    WAIT = "wait for the agent"
    DROP_REQUEST = "remove the request"
    DROP_RESULT = "remove the result"
    FORGET = "forget it"
    SETTLED = "nothing"


@dataclass(slots=True, eq=False)
class Allocation:
    """One pod's slices on one node.

    Attributes:
        node: the node.
        uid: the pod's UID.
        namespace: the pod's namespace.
        name: the pod's name.
        slices: the positions; never changed.
        amounts: the amounts that the pod holds on the node besides slices.
        sent: a request was sent, and its result at the server is not known yet.
        requested: the request is recorded.
        result: the recorded states (controller, agent); None without a result.
        given_up: the controller takes the slices from the pod, although the pod lives. Never becomes False again.
        freed: other pods may have the positions. Never becomes False again.
        kind: the kind of request that they answer.
        claims: names of the pod's ResourceClaims that have the slices, where the allocations of these do not name them.
    """

    node: NodeName
    uid: PodUid
    namespace: str
    name: str
    slices: tuple[Slice, ...]
    amounts: Amounts = field(default_factory=dict)
    sent: bool = False
    requested: bool = False
    result: tuple[str, str] | None = None
    given_up: bool = False
    freed: bool = False
    kind: KindOfRequest = SLICES
    claims: tuple[str, ...] = ()

    @property
    def by_pod(self) -> bool:
        """True if the pod's own pin is the record: whole cards and shares have no entry in the node's object."""
        return self.kind.record is Record.PIN

    @property
    def in_object(self) -> bool:
        """True if the node's Instaslice object is the record."""
        return self.kind.record is Record.NODE

    @property
    def may_start(self) -> bool:
        """True if its pod may leave the gate: the request is recorded, or its pin will be the record."""
        return self.requested or self.by_pod

    @property
    def recorded(self) -> bool:
        """True if the node's object has, or may have, an entry of this allocation."""
        return self.sent or self.requested or self.result is not None

    @property
    def owner(self) -> str:
        """Returns the owning pod's name, for messages; :data:`DELETED_POD` if no record has its name."""
        return f"{self.namespace}/{self.name}" if self.name else DELETED_POD

    @property
    def deletion_requested(self) -> bool:
        """True if the record tells the agent to destroy the slices; it does so even if the record changes again."""
        return self.result is not None and self.result[0] == "deleting"

    @property
    def destroyed(self) -> bool:
        """True if the agent reports that the slices are destroyed."""
        return self.result is not None and self.result[1] == "deleted"


def is_short(allocation: Allocation, pod: PodInfo) -> bool:
    """True if a pod past the gate holds fewer whole cards or shares than it requests."""
    return allocation.by_pod and not pod.gated and len(allocation.slices) < len(pod.devices)


def will_never_run(pod: PodInfo | None) -> bool:
    """True if a pod will never use slices again; ``pod`` is None once it is gone.

    A pod that is being deleted and is bound to no node will never run, though a finalizer may keep the object for ever;
    a quota then no longer counts it.
    """
    return pod is None or pod.finished or (pod.terminating and not pod.node)


def is_wanted(allocation: Allocation, pod: PodInfo | None) -> bool:
    """True if the pod should still have these slices.

    A record without positions allocates nothing: the controller removes it, and the pod waits again. A pod past the
    gate may hold none of the whole cards that it requests, since others were faster.
    """
    return (bool(allocation.slices) or not allocation.in_object) and not allocation.given_up and not will_never_run(pod)


def next_step(allocation: Allocation, pod: PodInfo | None) -> AllocationStep:
    """Returns the next step by the table above; ``pod`` is None once it is gone."""
    if pod is None or not is_wanted(allocation, pod):
        return _next_release_step(allocation, lives=not will_never_run(pod))
    if not allocation.may_start:
        return AllocationStep.REQUEST
    return AllocationStep.UNGATE if pod.gated else AllocationStep.SETTLED


def _next_release_step(allocation: Allocation, *, lives: bool) -> AllocationStep:
    if not allocation.recorded:
        return AllocationStep.FORGET
    destroyed = allocation.destroyed or not allocation.slices or not allocation.in_object
    recorded = allocation.requested or allocation.result is not None
    if lives and recorded and not destroyed:
        return AllocationStep.WAIT if allocation.deletion_requested else AllocationStep.DELETING
    if allocation.requested or allocation.sent:
        return AllocationStep.DROP_REQUEST
    return AllocationStep.DROP_RESULT if destroyed else AllocationStep.WAIT


def make_request(allocation: Allocation) -> AllocationRequest:
    """Returns the entry of ``spec.podAllocationRequests``."""
    shown: dict[str, str | int] = {
        name: format_amount(name, allocation.amounts[name]) for name in _SHOWN if name in allocation.amounts
    }
    return AllocationRequest(
        profile=allocation.slices[0].profile,
        resources=RequestedResources(requests=shown),
        pod_ref=PodRef(namespace=allocation.namespace, name=allocation.name, uid=allocation.uid),
        slices=allocation.slices,
        claims=allocation.claims,
    )


def make_deleting_result(allocation: Allocation) -> AllocationResult:
    """Returns a new entry of ``status.podAllocationResults`` that tells the agent that the pod loses its slices."""
    status = AllocationStatus(allocation_status_controller="deleting")
    return make_result(allocation.uid, allocation.node, allocation.slices, status)


def adopt_record(node: NodeName, uid: PodUid, item: Instaslice, pod: PodInfo | None = None) -> Allocation:
    """Returns the allocation that a record of the node's object describes.

    A result without a request names neither its pod nor the profile of a single slice. A living pod has both.
    """
    request = item.spec.pod_allocation_requests.get(uid)
    result = item.status.pod_allocation_results.get(uid)
    if request is not None:
        namespace, name = request.pod_ref.namespace, request.pod_ref.name
    else:
        namespace, name = (pod.namespace, pod.name) if pod is not None else ("", "")
    return Allocation(
        node=node,
        uid=uid,
        namespace=namespace,
        name=name,
        slices=tuple(recorded_slices(request, result, _single_profile(pod))),
        amounts=pod.amounts if pod is not None else {},
        claims=request.claims if request is not None else (),
    )


def _single_profile(pod: PodInfo | None) -> str:
    """Returns NVIDIA's name of the profile if a pod asks for one slice; empty for any other pod."""
    if pod is None or len(pod.profiles) != 1:
        return ""
    try:
        return str(parse_profile_name(plain_profile(pod.profiles[0])))
    except ValueError:  # no card has such a slice
        return ""


def reported_slices(resources: NodeResources, uid: PodUid) -> tuple[Slice, ...]:
    """Returns the slices that a node's agent made for a pod whose allocation is gone."""
    return tuple(
        Slice(
            id=device_id(each.gpu_uuid, each.profile, each.start),
            profile=each.profile,
            gpu_uuid=each.gpu_uuid,
            start=each.start,
            size=each.size,
        )
        for each in resources.foreign
        if each.pod_uid == uid
    )


def observe_record(allocation: Allocation, item: Instaslice) -> None:
    """Updates an allocation from the node's object."""
    allocation.requested = allocation.uid in item.spec.pod_allocation_requests
    allocation.sent = allocation.sent and not allocation.requested
    result = item.status.pod_allocation_results.get(allocation.uid)
    allocation.result = None if result is None else _states(result.allocation_status)


def _states(status: AllocationStatus) -> tuple[str, str]:
    return (status.allocation_status_controller, status.allocation_status_daemonset)


def recorded_uids(item: Instaslice) -> Mapping[PodUid, None]:
    """Returns every pod that has an entry in the object, in order."""
    both = [*item.spec.pod_allocation_requests, *item.status.pod_allocation_results]
    return dict.fromkeys(PodUid(uid) for uid in both)
