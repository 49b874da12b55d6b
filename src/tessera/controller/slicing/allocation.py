"""The life of one allocation, as a table of the next writes.

An allocation is one pod's slices on one node. The node's Instaslice object *records* it: the request (``spec``), and
the result (``status``) with its two states. The next step follows from the record and from the pod
alone, never from what this process remembers having done, so a crash between any two writes is the normal case:

================================  ===========================================  ==============================
pod                               record                                       next
================================  ===========================================  ==============================
wants its slices                  no request                                   write the request
behind our gate                   request                                      pin and ungate the pod
ungated                           request                                      nothing, it is settled
lives, but given up               request, or result; agent says nothing       write the result as ``deleting``
lives, but given up               ``deleting``                                 wait until agent says ``deleted``
lives, but given up               nothing, and a request was sent [3]_         remove the request
gone or finished [1]_, or         request                                      remove the request
agent says ``deleted``
gone or finished, or given up     result alone, agent says ``deleted`` [2]_    remove the result
gone or finished                  result alone                                 wait until the agent removes it
gone, finished, or given up       nothing                                      forget it
================================  ===========================================  ==============================

.. [1] or to be deleted and bound to no node: it will never run, though a finalizer may keep it.
.. [2] or the record names no positions. An agent of an earlier version leaves results to the controller.
.. [3] and no answer came, so it may yet be recorded. An agent that sees no request removes a result at once.

A pod that is gone never comes back with the same UID, so its request can be removed before its slices are destroyed.
A pod that lives may be promised others at once; so its agent has to say first that the old ones are destroyed.

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
from tessera.controller.objects.pod_info import PodInfo
from tessera.controller.objects.resource_amounts import Amounts, format_amount
from tessera.mig.names import parse_profile_name

#: Resources of the pod that a request shows.
_SHOWN: tuple[str, ...] = ("cpu", "memory")


class AllocationStep(Enum):
    """What an allocation needs next."""

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
        node: where.
        uid: whose.
        namespace: the pod's.
        name: the pod's.
        slices: the positions; never changed.
        amounts: what the pod holds on the node besides slices.
        sent: a request was sent and the server's state after it is not known yet.
        requested: the request is recorded.
        result: the recorded states (controller, agent); None without a result.
        given_up: the pod shall not have these slices any more, although it lives.
        freed: the positions count as free (or as somebody else's).
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

    @property
    def recorded(self) -> bool:
        """Whether anything of it stands, or may stand, in the node's object."""
        return self.sent or self.requested or self.result is not None

    @property
    def owner(self) -> str:
        """Whose it is, for people."""
        return f"{self.namespace}/{self.name}"

    @property
    def asked_back(self) -> bool:
        """Whether the record asks the agent to destroy its slices; the agent does so whatever comes next."""
        return self.result is not None and self.result[0] == "deleting"

    @property
    def destroyed(self) -> bool:
        """Whether the agent says that its slices are gone."""
        return self.result is not None and self.result[1] == "deleted"


def will_never_run(pod: PodInfo | None) -> bool:
    """Whether a pod will never use slices again; ``pod`` is None once it is gone.

    A pod that is to be deleted and is on no node will never run, and a finalizer of its author's can keep it for ever;
    a quota no longer counts it then.
    """
    return pod is None or pod.finished or (pod.terminating and not pod.node)


def is_wanted(allocation: Allocation, pod: PodInfo | None) -> bool:
    """Whether the pod is still to have these slices.

    A record that names no position allocations nothing; it goes, and the pod waits anew.
    """
    return bool(allocation.slices) and not allocation.given_up and not will_never_run(pod)


def next_step(allocation: Allocation, pod: PodInfo | None) -> AllocationStep:
    """The table above; ``pod`` is None once it is gone."""
    if pod is None or not is_wanted(allocation, pod):
        return _next_of_release(allocation, lives=not will_never_run(pod))
    if not allocation.requested:
        return AllocationStep.REQUEST
    return AllocationStep.UNGATE if pod.gated else AllocationStep.SETTLED


def _next_of_release(allocation: Allocation, *, lives: bool) -> AllocationStep:
    if not allocation.recorded:
        return AllocationStep.FORGET
    destroyed = allocation.destroyed or not allocation.slices
    recorded = allocation.requested or allocation.result is not None
    if lives and recorded and not destroyed:
        return AllocationStep.WAIT if allocation.asked_back else AllocationStep.DELETING
    if allocation.requested or allocation.sent:
        return AllocationStep.DROP_REQUEST
    return AllocationStep.DROP_RESULT if destroyed else AllocationStep.WAIT


def make_request(allocation: Allocation) -> AllocationRequest:
    """The entry of ``spec.podAllocationRequests``."""
    shown: dict[str, str | int] = {
        name: format_amount(name, allocation.amounts[name]) for name in _SHOWN if name in allocation.amounts
    }
    return AllocationRequest(
        profile=allocation.slices[0].profile,
        resources=RequestedResources(requests=shown),
        pod_ref=PodRef(namespace=allocation.namespace, name=allocation.name, uid=allocation.uid),
        slices=allocation.slices,
    )


def make_deleting_result(allocation: Allocation) -> AllocationResult:
    """A new entry of ``status.podAllocationResults`` by which the agent learns that the pod loses its slices."""
    status = AllocationStatus(allocation_status_controller="deleting")
    return make_result(allocation.uid, allocation.node, allocation.slices, status)


def adopt_record(node: NodeName, uid: PodUid, item: Instaslice, pod: PodInfo | None = None) -> Allocation:
    """The allocation that a record of the node's object stands for.

    A result without a request names neither its pod nor, of a single slice, the profile. A pod that lives has both.
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
    )


def _single_profile(pod: PodInfo | None) -> str:
    """NVIDIA's name of the profile of a pod that asks for one slice; empty for any other pod."""
    if pod is None or len(pod.profiles) != 1:
        return ""
    try:
        return str(parse_profile_name(pod.profiles[0]))
    except ValueError:  # no card has such a slice
        return ""


def slices_held_by(resources: NodeResources, uid: PodUid) -> tuple[Slice, ...]:
    """The slices that a node's agent made for a pod whose allocation is gone."""
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
    """Takes over what the node's object says about an allocation."""
    allocation.requested = allocation.uid in item.spec.pod_allocation_requests
    allocation.sent = allocation.sent and not allocation.requested
    result = item.status.pod_allocation_results.get(allocation.uid)
    allocation.result = None if result is None else _states(result.allocation_status)


def _states(status: AllocationStatus) -> tuple[str, str]:
    return (status.allocation_status_controller, status.allocation_status_daemonset)


def recorded_uids(item: Instaslice) -> Mapping[PodUid, None]:
    """Every pod that the object has an entry for, in order."""
    both = [*item.spec.pod_allocation_requests, *item.status.pod_allocation_results]
    return dict.fromkeys(PodUid(uid) for uid in both)
