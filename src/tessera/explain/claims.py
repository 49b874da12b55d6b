"""Explains one ResourceClaim: what it asks for, its users, where it is allocated and by whom, what it waits for."""

from collections.abc import Iterator

from tessera.dra.claims import ResourceClaim
from tessera.explain.claim_objects import ClaimObjects
from tessera.explain.explanation import Explanation
from tessera.explain.pod_claims import (
    ALLOCATED_BY_OTHERS,
    CLUSTER_ROLE,
    is_ours,
    missing_classes,
    profiles_of,
    promise_of,
    queries,
    users_of,
)
from tessera.explain.pods import explain_pod
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Pod
from tessera.kube.resources.meta import key_of
from tessera.text import count_noun, list_names, one_line


def explain_claim(view: ClusterView, claim: ResourceClaim) -> Explanation:
    """Explains a claim.

    Args:
        view: the cluster as it was read, this claim included.
        claim: the claim.
    """
    facts = (*_asks(view, claim), *_users(claim))
    if claim.metadata.deletion_timestamp is not None:
        return _explain_deleted(claim, facts)
    if not view.snapshot.plans_claims:
        return _explain_unread(view, claim, facts)
    if claim.status.allocation is not None and is_ours(_claims(view), claim):
        return _explain_allocated(view, claim, facts)
    return _explain_pending(view, claim, facts)


def _claims(view: ClusterView) -> ClaimObjects:
    return view.snapshot.claims or ClaimObjects()


def _asks(view: ClusterView, claim: ResourceClaim) -> Iterator[str]:
    classes = sorted({one_line(each.device_class_name, 60) for each in queries(claim)})
    problem = _claims(view).profiles(claim).problem if view.snapshot.plans_claims else ""
    if problem:
        yield problem
        yield f"its DeviceClass is {list_names(classes)}"
    else:
        yield f"it asks for {profiles_of(view, claim)}, by DeviceClass {list_names(classes)}"


def _users(claim: ResourceClaim) -> Iterator[str]:
    users = [each.name for each in claim.status.reserved_for]
    if users:
        yield f"reserved for {count_noun(len(users), 'user')}: {list_names(users)}"


def _explain_deleted(claim: ResourceClaim, facts: tuple[str, ...]) -> Explanation:
    meta = claim.metadata
    kept = f"kept by finalizer {list_names([one_line(each, 80) for each in meta.finalizers])}"
    users = [each.name for each in claim.status.reserved_for]
    steps = (
        (f"its users keep it: kubectl delete pod -n {meta.namespace} {' '.join(users[:3])}",)
        if users
        else (
            "kube-controller-manager removes its finalizer once nobody has the allocation; if it stays, read its log",
        )
    )
    verdict = f"is being deleted{f', and {kept}' if meta.finalizers else ''}"
    return Explanation(case="claim-deleted", verdict=verdict, facts=facts, help=steps)


def _explain_unread(view: ClusterView, claim: ResourceClaim, facts: tuple[str, ...]) -> Explanation:
    """Explains a claim to a reader who may not see all that decides on it."""
    claims = view.snapshot.claims
    missing = view.snapshot.describe_missing(claims.forbidden if claims is not None else ())
    allocation = claim.status.allocation
    says = "is not allocated" if allocation is None else f"is allocated on node {allocation.node or 'unknown'}"
    return Explanation(
        case="claim-pending" if allocation is None else "claim-allocated",
        verdict=says,
        facts=(*facts, f"{missing}: who allocates it, and what it waits for, is not known"),
        help=(CLUSTER_ROLE,),
    )


def _explain_allocated(view: ClusterView, claim: ResourceClaim, facts: tuple[str, ...]) -> Explanation:
    allocation, meta = claim.status.allocation, claim.metadata
    node = allocation.node if allocation is not None else ""
    promise = promise_of(view, claim)
    again = f"kubectl delete resourceclaim -n {meta.namespace} {meta.name}"
    if promise is None:
        return Explanation(
            case="foreign-allocation",
            verdict=f"is allocated on node {node or 'unknown'}, and not by Tessera",
            facts=(ALLOCATED_BY_OTHERS, *facts),
            help=(f"delete the pods that use it and the claim, and create both again: {again}",),
        )
    where = f"allocated by Tessera: {view.slices(promise.slices)}, on node {promise.node}"
    if claim.status.reserved_for:
        return Explanation(case="claim-used", verdict=f"is allocated on node {node} and in use", facts=(where, *facts))
    waiting = users_of(view, key_of(claim))
    then = f"kube-scheduler reserves it when it binds pod {waiting[0].name}" if waiting else ""
    return Explanation(
        case="claim-unreserved",
        verdict=f"is allocated on node {node}, and no pod has reserved it",
        facts=(where, then or "no living pod uses it: Tessera takes the allocation back", *facts),
        help=(f"see what keeps the pod: tessera why {waiting[0].name} -n {meta.namespace}",) if waiting else (),
    )


def _explain_pending(view: ClusterView, claim: ResourceClaim, facts: tuple[str, ...]) -> Explanation:
    claims, meta = _claims(view), claim.metadata
    if absent := missing_classes(claims, claim):
        return Explanation(
            case="no-class",
            verdict=f"cannot be allocated: there is no DeviceClass {one_line(absent[0], 60)}",
            facts=facts,
            help=("see which there are: kubectl get deviceclasses; create the claim again with one of them",),
        )
    if not is_ours(claims, claim):
        return Explanation(
            case="claim-of-others",
            verdict="asks for devices of another driver, which Tessera does not serve",
            facts=facts,
            help=(f"see what its driver says: kubectl describe resourceclaim -n {meta.namespace} {meta.name}",),
        )
    if claims.profiles(claim).problem:
        return Explanation(
            case="claim-refused",
            verdict="gets no slices: it cannot be served",
            facts=facts,
            help=("create it again as the reason says: the spec of a claim cannot be changed",),
        )
    users = users_of(view, key_of(claim))
    pod = view.pod(users[0].key) if users else None
    if pod is None:
        return Explanation(
            case="claim-unused",
            verdict="waits for a pod: a claim is allocated when a pod that uses it is placed",
            facts=facts,
            help=("create a pod with the claim in spec.resourceClaims",),
        )
    return _explain_by_pod(view, pod, facts, [each.name for each in users])


def _explain_by_pod(view: ClusterView, pod: Pod, facts: tuple[str, ...], users: list[str]) -> Explanation:
    found, name = explain_pod(view, pod), pod.metadata.name
    others = (f"used by pods {list_names(users)}; {name} asks for it",) if len(users) > 1 else ()
    return Explanation(
        case=found.case,
        verdict=f"waits with pod {name}, which {found.verdict}",
        facts=(*facts, *others, *found.facts),
        help=found.help,
    )
