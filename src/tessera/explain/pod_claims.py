"""Explains a pod whose ResourceClaims ask for nothing that Tessera could place for it now.

A claim may be still to be made, be asked for by another pod first, be allocated already, or be another driver's. All
other pods with claims are explained as those with limits are.
"""

from collections.abc import Iterable, Iterator, Sequence

from tessera.api.names import HOSTNAME_LABEL, NodeName
from tessera.claims.controller.claims import Claims
from tessera.controller.objects.pod_constraints import read_device_claims
from tessera.controller.objects.pod_info import CLAIMS, FINISHED, PodInfo
from tessera.controller.slicing.state.allocation import Allocation
from tessera.controller.slicing.state.messages import profiles_text
from tessera.dra.claims import DeviceQuery, ResourceClaim
from tessera.explain.claim_objects import ClaimObjects, claim_keys
from tessera.explain.explanation import Explanation
from tessera.explain.scheduler_words import scheduler_facts, told_by_condition
from tessera.explain.snapshot import ClusterView
from tessera.kube.resources import Pod, ResourceQuota
from tessera.kube.resources.meta import key_of
from tessera.reasons.reason import SharedClaim
from tessera.reasons.words import name_profiles, verdict
from tessera.text import list_names, one_line

#: Ends the name of a quota on the devices of a class (``ResourceClaimsPerClass``, pkg/quota/v1/evaluator/core).
_QUOTA_OF_CLASS = ".deviceclass.resource.k8s.io/devices"
#: What a claim asks for, where nobody may read it.
_UNKNOWN = "devices that are not known here"
#: Events and quotas that are told of one pod.
_TOLD = 3
#: The step for a claim that somebody else allocated.
ALLOCATED_BY_OTHERS = (
    "somebody other than Tessera allocated it, so no promise is on record and the node's agent gives no device"
)


def explain_claims(view: ClusterView, pod: Pod) -> Explanation:
    """Explains a pod with ResourceClaims for which nothing is to be placed.

    Args:
        view: the cluster as it was read, this pod included.
        pod: the pod.
    """
    claims = view.snapshot.claims
    if claims is None or not view.snapshot.plans_claims:
        return _explain_unread(view, pod, claims)
    keys = list(claim_keys(pod))
    for name, key in keys:
        if not key:
            return _explain_unmade(view, pod, name)
        if key not in claims.by_key:
            return Explanation(
                case="no-claim",
                verdict=f"waits for ResourceClaim {key}, which does not exist",
                facts=tuple(scheduler_facts(view, pod)),
                help=("create the claim, or correct spec.resourceClaims and create the pod again",),
            )
    ours = [claims.by_key[key] for _, key in keys if is_ours(claims, claims.by_key[key])]
    for claim in ours:
        if claim.status.allocation is None:
            return _explain_first_user(view, pod, claim)
    return _explain_allocated(view, pod, ours) if ours else explain_others(view, pod)


def explain_refused(facts: PodInfo) -> Explanation:
    """Explains a pod whose claims cannot be served as they are written, or by what nodes publish."""
    return Explanation(
        case="claim-refused",
        verdict="gets no slices: its ResourceClaims cannot be served",
        facts=(facts.fault,),
        help=(
            "see what nodes publish: tessera map; kubectl get resourceslices,deviceclasses",
            "correct the claim or its template, and create claim and pod again: the spec of a claim cannot be changed",
        ),
    )


def is_ours(claims: ClaimObjects, claim: ResourceClaim) -> bool:
    """True if a claim asks for devices of Tessera's driver, though it may ask wrongly."""
    found = claims.profiles(claim)
    return bool(found.profiles or found.problem)


def missing_classes(claims: ClaimObjects, claim: ResourceClaim) -> Sequence[str]:
    """The names of classes that a claim asks for and that do not exist."""
    known = {each.metadata.name for each in claims.classes}
    return sorted({each.device_class_name for each in queries(claim)} - known)


def queries(claim: ResourceClaim) -> Iterator[DeviceQuery]:
    """Yields what a claim asks for, alternatives too."""
    for each in claim.spec.devices.requests:
        yield from (*([each.exactly] if each.exactly is not None else []), *each.first_available)


def explain_others(view: ClusterView, pod: Pod) -> Explanation:
    """Explains a pod whose claims are for devices of other drivers."""
    runs, claims = pod.status.phase == "Running", [each.name for each in pod.spec.resource_claims]
    limit = "set a limit, e.g. nvidia.com/mig-1g.5gb: 1; see tessera map"
    known = view.snapshot.claims
    absent = [
        f"there is no DeviceClass {one_line(name, 60)}, which claim {key} names"
        for _, key in claim_keys(pod)
        if known is not None and key in known.by_key
        for name in missing_classes(known, known.by_key[key])
    ]
    return Explanation(
        case="runs" if runs else "claims",
        verdict=f"asks for devices by its ResourceClaims {list_names(claims)}, which Tessera does not serve",
        facts=(*absent[:_TOLD], f"its phase is {pod.status.phase or 'unknown'}", *scheduler_facts(view, pod)),
        help=(
            f"see who serves them: kubectl get resourceclaims,deviceclasses -n {pod.metadata.namespace}",
            f"or request a card or a slice of Tessera instead: {limit}",
        ),
    )


def _explain_unread(view: ClusterView, pod: Pod, claims: ClaimObjects | None) -> Explanation:
    """Explains a pod to a reader who may not read what its claims ask for.

    What other pods with its claims got or wait for is known, and what the pod was told.
    """
    namespace, shared = pod.metadata.namespace, list[str]()
    for name, key in claim_keys(pod):
        if not key:
            return _explain_unmade(view, pod, name)
        first = _known_user(view, pod, key)
        slices = view.recorded(first.metadata.uid) if first is not None else ()
        if first is not None and not slices:
            asked = profiles_text(view.read_pod(first)) or _UNKNOWN
            return _explain_shared(view, pod, key, first.metadata.name, asked)
        if first is not None:
            shared.append(
                f"it shares claim {key.partition('/')[2]} with pod {first.metadata.name}: {view.slices(slices)}"
            )
    names = list_names([each.name for each in pod.spec.resource_claims])
    told, hidden = told_by_condition(view, pod), sorted(claims.forbidden if claims is not None else ())
    unread = [f"you may not list {', '.join(hidden)}: this is from the pod alone"] if hidden else []
    runs = pod.status.phase == "Running"
    return Explanation(
        case="runs" if runs else told.case if told is not None else "claims",
        verdict=f"runs on node {pod.spec.node_name}"
        if runs
        else f"waits; {told.text}"
        if told is not None
        else f"asks for devices by its ResourceClaims {names}; who serves them is not known here",
        facts=(*(shared or [f"its ResourceClaims are {names}"]), *scheduler_facts(view, pod), *unread),
        help=(
            *([] if runs else [f"see its events: kubectl describe pod -n {namespace} {pod.metadata.name}"]),
            f"see who serves them: kubectl get resourceclaims,deviceclasses -n {namespace}",
            *([CLUSTER_ROLE] if hidden else []),
        ),
    )


def _known_user(view: ClusterView, pod: Pod, key: str) -> Pod | None:
    """The pod that asks for a claim before this one; None if there is none, or nothing is known of it."""
    users: dict[str, list[Pod]] = view.once("users of claims", lambda: _users_by_claim(view.snapshot.pods))
    first = min(
        users.get(key, (pod,)),
        key=lambda each: (not view.recorded(each.metadata.uid), each.metadata.creation_timestamp, each.metadata.uid),
    )
    is_known = bool(view.read_pod(first).profiles) or told_by_condition(view, first) is not None
    return first if first.metadata.uid != pod.metadata.uid and is_known else None


def _users_by_claim(pods: Iterable[Pod]) -> dict[str, list[Pod]]:
    found: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.spec.resource_claims and pod.status.phase not in FINISHED:
            for key in read_device_claims(pod):
                found.setdefault(key, []).append(pod)
    return found


#: The step for a reader who lacks a right.
CLUSTER_ROLE = (
    "an administrator allows you to read them: kubectl create clusterrolebinding gpu-cluster-viewers"
    " --clusterrole=tessera-cluster-view --user=NAME"
)


# Claims that are still to be made


def _explain_unmade(view: ClusterView, pod: Pod, name: str) -> Explanation:
    template = next(each.resource_claim_template_name for each in pod.spec.resource_claims if each.name == name)
    failed = [each for each in view.events_of(pod.metadata.uid) if each.reason == "FailedResourceClaimCreation"]
    message = failed[-1].message if failed else ""
    quotas = list(class_quotas(view.snapshot.quotas, pod.metadata.namespace))
    refused = "exceeded quota" in message
    source, kind = f"ResourceClaimTemplate {template}", f"resourceclaimtemplate -n {pod.metadata.namespace} {template}"
    if not template:
        source, kind = "its PodGroup", f"podgroups.scheduling.k8s.io -n {pod.metadata.namespace}"
    named = [each for each in quotas if not message or f": {each.partition(':')[0].removeprefix('quota ')}," in message]
    steps = (
        ("delete claims that nobody needs, or ask an administrator for a larger quota",)
        if refused
        else (
            f"see if it exists: kubectl get {kind}",
            "kube-controller-manager makes the claim; if nothing changes, read its log",
        )
    )
    return Explanation(
        case="claim-quota" if refused else "claim-not-made",
        verdict=f"waits: its claim {name} is still to be made from {source}"
        + (", and a quota refuses it" if refused else ""),
        facts=(*(view.describe_event(each) for each in failed[-1:]), *(named if refused else quotas)[:_TOLD]),
        help=steps,
    )


def class_quotas(quotas: Iterable[ResourceQuota], namespace: str) -> Iterator[str]:
    """Yields the use of a namespace's quotas on devices of classes."""
    for quota in quotas:
        for name, hard in sorted(quota.status.hard.items()):
            if quota.metadata.namespace == namespace and name.endswith(_QUOTA_OF_CLASS):
                yield f"quota {quota.metadata.name}: {quota.status.used.get(name, '0')} of {hard} of {name} used"


# Claims of several pods


def _kind(view: ClusterView) -> Claims | None:
    kind = view.slicer.kinds.by_name.get(CLAIMS.name) if view.slicer is not None else None
    return kind if isinstance(kind, Claims) else None


def users_of(view: ClusterView, key: str) -> Sequence[PodInfo]:
    """The living pods that use a claim; the first of them asks for its slices."""
    kind = _kind(view)
    return kind.users.living(key) if kind is not None else ()


def _explain_first_user(view: ClusterView, pod: Pod, claim: ResourceClaim) -> Explanation:
    key = key_of(claim)
    first = next((each for each in users_of(view, key) if each.name != pod.metadata.name), None)
    return _explain_shared(view, pod, key, first.name if first is not None else "another pod", profiles_of(view, claim))


def _explain_shared(view: ClusterView, pod: Pod, key: str, first: str, asked: str) -> Explanation:
    return Explanation(
        case="shared-claim",
        verdict=verdict(SharedClaim(first)),
        facts=(
            f"pod {first} asks first for {asked} of claim {key}; all of its pods run on the node of its slices",
            *scheduler_facts(view, pod),
        ),
        help=(f"see why that one waits: tessera why {first} -n {pod.metadata.namespace}",),
    )


def profiles_of(view: ClusterView, claim: ResourceClaim) -> str:
    """What a claim asks for: ``1 x 3g.20gb``."""
    found = view.snapshot.claims.profiles(claim) if view.snapshot.claims is not None else None
    if found is None or not found.profiles:
        return _UNKNOWN
    counts = {each: found.profiles.count(each) for each in sorted(found.profiles)}
    return ", ".join(f"{count} x {name_profiles([name])}" for name, count in counts.items())


# Claims that are allocated


def promise_of(view: ClusterView, claim: ResourceClaim) -> Allocation | None:
    """The promised slices from which a claim is allocated; None if it is not, or not by Tessera."""
    allocation = claim.status.allocation
    kind = _kind(view)
    if allocation is None or view.slicer is None or kind is None:
        return None
    promised = view.slicer.state.allocations.on(NodeName(allocation.node))
    return next((each for each in promised if kind.allocated.is_from(claim, each)), None)


def _hostname(view: ClusterView, name: str) -> str:
    node = view.node(name)
    return node.metadata.labels.get(HOSTNAME_LABEL, name) if node is not None else name


def _explain_elsewhere(
    view: ClusterView, pod: Pod, place: tuple[str, NodeName], wanted: str, facts: Sequence[str]
) -> Explanation:
    """Explains a pod whose node selector names another host than that of its claim."""
    claim, node = place
    see = f"kubectl describe resourceclaim -n {pod.metadata.namespace} {claim}"
    return Explanation(
        case="claim-elsewhere",
        verdict=f"waits: its claim {claim} is allocated on node {node}, and its node selector names {wanted}",
        facts=(*facts, "a pod runs where its claims are", *scheduler_facts(view, pod)),
        help=(
            f"it runs once no other pod uses the claim: {see}",
            "or create it again without the selector, or with a claim of its own",
        ),
    )


def _explain_allocated(view: ClusterView, pod: Pod, claims: Sequence[ResourceClaim]) -> Explanation:
    """Explains a pod all of whose claims are allocated, none of them from slices of its own."""
    namespace, name = pod.metadata.namespace, pod.metadata.name
    node, facts = pod.spec.node_name, list[str]()
    elsewhere: Sequence[tuple[str, NodeName]] = ()
    wanted = pod.spec.node_selector.get(HOSTNAME_LABEL, "")
    for claim in claims:
        promise = promise_of(view, claim)
        if promise is None:
            return Explanation(
                case="foreign-allocation",
                verdict=f"{'does not start' if node else 'waits'}: its claim {claim.metadata.name} is allocated, and"
                " not by Tessera",
                facts=(ALLOCATED_BY_OTHERS, *scheduler_facts(view, pod)),
                help=(f"delete claim and pod, and create them again: tessera why claim/{claim.metadata.name}",),
            )
        facts.append(
            f"it shares claim {claim.metadata.name} with pod {promise.owner.partition('/')[2]}:"
            f" {view.slices(promise.slices)}, on node {promise.node}"
        )
        if wanted and wanted != _hostname(view, promise.node):
            elsewhere = [(claim.metadata.name, promise.node)]
    if elsewhere and not node:
        return _explain_elsewhere(view, pod, elsewhere[0], wanted, facts)
    if pod.status.phase == "Running":
        return Explanation(case="runs", verdict=f"runs on node {node}", facts=tuple(facts))
    see = f"kubectl describe pod -n {namespace} {name}"
    if node:
        return Explanation(case="starting", verdict=f"is starting on node {node}", facts=tuple(facts), help=(see,))
    return Explanation(
        case="unscheduled",
        verdict="waits for kube-scheduler to bind it to the node of its claims",
        facts=(*facts, *scheduler_facts(view, pod)),
        help=(see,),
    )
