"""The values of a Pod that decide about its slices.

A pod is read once, when it arrives; all decisions use these values. If a field is invalid (for example a quantity that
is no number), the error becomes a text of this pod, so that it stops one pod and not the controller.

An :class:`Owner` is what a pod names, a :class:`Workload` what the API server says of it.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from tessera.api.names import (
    GATE,
    GPU_RESOURCES,
    HAND_OVER,
    HOSTNAME_LABEL,
    LAST_GATES,
    MIG_RESOURCE_PREFIX,
    MOVABLE_ANNOTATION,
    PINNED_ANNOTATION,
    SLICE_CONDITION,
    SLICE_PROMISED_CONDITION,
    UPDATE_ANNOTATION,
    YIELDS_ANNOTATION,
    NodeName,
    PodUid,
)
from tessera.api.nodes.node_marks import is_agent
from tessera.api.pod_annotations import Gang, GangError, read_gang
from tessera.api.slice_requests import SliceRequestError, find_excess, pod_slices, slices_of
from tessera.clock import parse_time_or_zero
from tessera.controller.objects.pod_constraints import (
    ANYWHERE,
    NO_RELATIONS,
    HostPort,
    Labels,
    NodeConstraints,
    PodRelations,
    constraints_of,
    read_claims,
    read_device_claims,
    read_host_ports,
    read_images,
    read_labels,
    read_relations,
)
from tessera.controller.objects.pod_preferences import Preference, read_preferences
from tessera.controller.objects.resource_amounts import Amounts, allocated_amounts, pod_amounts
from tessera.kube.resources import ContainerStatus, OwnerReference, Pod
from tessera.kube.resources.meta import OBJECT_NAME, version_number
from tessera.kube.resources.pods import DEFAULT_SCHEDULER
from tessera.limits import POD_SLICES
from tessera.placement.demand import CardSpread
from tessera.text import one_line


class Owner(NamedTuple):
    """The owner that a pod names: namespace, kind and name as in :attr:`PodInfo.maker`, and UID."""

    namespace: str
    maker: str
    uid: str


class Workload(NamedTuple):
    """What an owner belongs to, as the API server said.

    Attributes:
        top: UID of the topmost owner: the Deployment of a ReplicaSet that has one, else the owner itself; of the
            workers of a LeaderWorkerSet's group one of the group.
        wanted: the pods that the topmost owner wants; 0 for one that is being deleted, and for a Job.
        revision: the revision of a Deployment's ReplicaSet, the newest has the highest; 0 for others.
        name: the Deployment's name; empty for others.
        keeps_old: an update ends no old pod before a new one is available.
        ready_for: seconds for which a new pod must be ready before it counts (``minReadySeconds``).
        deadline: seconds that a new pod may take until it is ready (``progressDeadlineSeconds``).
    """

    top: str
    wanted: int
    revision: int = 0
    name: str = ""
    keeps_old: bool = False
    ready_for: int = 0
    deadline: int = 600


#: Reads what an owner belongs to; None if the object of its name is another. It raises ApiError and OSError.
OwnerReader = Callable[[Owner], Awaitable[Workload | None]]


#: Phases after which no container of a pod runs again.
FINISHED = frozenset({"Succeeded", "Failed"})
#: ``spec.nodeName`` of a pod that no scheduler has bound.
UNBOUND = NodeName("")
#: Seconds of grace that the API server gives a pod whose ``terminationGracePeriodSeconds`` is absent.
DEFAULT_GRACE = 30


#: API versions and kinds of the controllers that make a pod anew elsewhere: those of Kubernetes, and OpenKruise's.
MAKERS = frozenset(
    {
        *(("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("batch/v1", "Job")),
        ("apps.kruise.io/v1alpha1", "CloneSet"),
    }
)
#: Reasons of the condition ``tessera.dev/SlicePromised`` of a pod whose age counts: it could be placed if there were
#: room. Of others the time of the condition says nothing.
_COUNTED_REASONS = frozenset(
    {
        "Full",
        "Fragmented",
        "Reserved",
        "QueueFull",
        "NodeFull",
        "NodeNotReady",
        "CardHeldBack",
        "GangNoRoom",
        "Planning",
    }
)


class Record(Enum):
    """What records the place of a pod before its gate goes."""

    NODE = "the node's Instaslice object"
    PIN = "the pod's own pin"
    OTHER = "an object of the kind of request"


@dataclass(frozen=True, slots=True)
class KindOfRequest:
    """A kind of what pods ask for; :mod:`tessera.controller.slicing.kinds` says what each is.

    Attributes:
        name: its name.
        noun: what a pod of it gets, for messages: ``slices``.
        record: what records the place of a pod.
        needs_gate: only its pods at Tessera's gate wait; False if any pod waits that no scheduler has bound.
    """

    name: str
    noun: str
    record: Record
    needs_gate: bool = True


SLICES = KindOfRequest("slices", "slices", Record.NODE)
#: Slices by ResourceClaims. kube-scheduler binds no pod before its claims are allocated, so its pods need no gate.
CLAIMS = KindOfRequest("claims", "slices", Record.NODE, needs_gate=False)
DEVICES = KindOfRequest("devices", "cards", Record.PIN)


@dataclass(frozen=True, slots=True)
class PodInfo:
    """One pod.

    Attributes:
        uid: its UID.
        namespace: its namespace.
        name: its name; a deleted pod may have had the same.
        node: the node that it is bound to; empty before.
        hostname: the host that its node selector names; empty if none.
        gates: names of its scheduling gates.
        last_gates: names of gates whose owners exist in the cluster and go after Tessera.
        profiles: the slices that it needs, profiles in the resource's spelling; behind our gate the devices too.
        spread: how its slices lie on the cards of their node.
        devices: whole cards and shares that it requests, one resource name each; empty for a pod with slices.
        other_kind: the kind of its request if it asks for neither slices nor devices.
        device_claims: the ResourceClaims that it uses, as ``namespace/name``; empty for one that is still to be made.
        shares: pods with the same text share one place, so one of them is planned; empty for a pod by itself.
        amounts: the amounts that it holds on its node besides slices.
        allocated: for a pod with devices, the amounts that it has on its node while a resize asks for others; None if
            they are ``amounts``.
        constraints: its constraints on nodes.
        priority: a higher priority goes first.
        created: the time from which its age counts, RFC 3339; earlier goes first among equals. That is its creation
            time until :class:`.WaitingAges` gives it another.
        waits_since: the same, from the condition by which a controller told the pod that it waits; empty if none did.
        labels: its labels, sorted.
        relations: its rules about other pods.
        preferences: what it prefers of its node.
        images: the images that it runs or mounts, named as nodes name them.
        ports: the host ports that it uses.
        claims: the claims that it uses, as ``namespace/name``.
        owner: UID of the controller that replaces it after a deletion; empty if it has none.
        maker: kind and name of that controller, ``Job/train``, if it is of a kind of :data:`MAKERS`.
        unschedulable_message: the scheduler's message that it finds no node for the ungated pod, or cannot bind it, or
            that a scheduler other than Kubernetes' own has not answered; empty otherwise.
        preempting: the scheduler has chosen a node for the ungated pod, and waits there for pods of lower priority to
            end.
        slices_withdrawn: its condition ``tessera.dev/SliceAvailable`` is False.
        unstarted: it is on a node, and kubelet has never started any of its containers with slices.
        finished: it has ended and will not run again.
        terminating: its deletion was requested.
        lasts: as :attr:`tessera.kube.resources.pods.Pod.lasts`.
        gone_by: seconds since 1970 when its grace period ends, once its deletion was requested; 0 before.
        fault: error in its request, for which no node can take it; empty if there is none.
        agent_ready: for the pod of a node's agent, True if it is ready; None for any other pod.
        deadline: seconds after its start when it has ended at the latest: ``activeDeadlineSeconds`` and the grace
            period that begins then; None if it may run for ever.
        grace: seconds that it may take to end once it is asked to.
        started: seconds since 1970 when its node's kubelet took it; 0 before.
        preempts: it may take slots of pods of lower priority: its ``preemptionPolicy`` is not ``Never``.
        movable: its author allows Tessera to end it to make room: annotation ``tessera.dev/movable: "true"``.
        yields: it keeps room for others, and ends for any pod of higher priority: annotation ``tessera.dev/yields``.
        pinned: Tessera has pinned it to the node of its whole cards or shares: annotation ``tessera.dev/pinned``.
        hands_over: an old pod of its Deployment makes room for it: annotation ``tessera.dev/update: hand-over``.
        ready_since: of such a pod, seconds since 1970 since when it is ready; 0 while it is not, and for other pods.
        restarts: of such a pod, how often the container was restarted that was restarted most.
        lacks_image: of such a pod, kubelet has tried to pull an image more than once, and does not get it.
        gang: the pods with which it gets its slices together; None for a pod that starts by itself.
        succeeded: it has ended well.
        disrupted: it was evicted or preempted, or its node ended it: condition ``DisruptionTarget``.
        version: orders observations of the pod; 0 if unknown.
    """

    uid: PodUid
    namespace: str
    name: str
    node: NodeName = UNBOUND
    hostname: str = ""
    gates: tuple[str, ...] = ()
    last_gates: frozenset[str] = frozenset(LAST_GATES)
    profiles: tuple[str, ...] = ()
    spread: CardSpread = ()
    devices: tuple[str, ...] = ()
    other_kind: KindOfRequest | None = None
    device_claims: tuple[str, ...] = ()
    shares: str = ""
    amounts: Amounts = field(default_factory=dict)
    allocated: Amounts | None = None
    constraints: NodeConstraints = ANYWHERE
    priority: int = 0
    created: str = ""
    waits_since: str = field(default="", compare=False)
    labels: Labels = ()
    relations: PodRelations = NO_RELATIONS
    preferences: tuple[Preference, ...] = ()
    images: tuple[str, ...] = ()
    ports: frozenset[HostPort] = frozenset()
    claims: tuple[str, ...] = ()
    owner: str = ""
    maker: str = ""
    unschedulable_message: str = ""
    preempting: bool = False
    slices_withdrawn: bool = False
    unstarted: bool = False
    finished: bool = False
    terminating: bool = False
    lasts: bool = False
    gone_by: float = 0.0
    fault: str = ""
    agent_ready: bool | None = None
    deadline: float | None = None
    grace: float = 0.0
    started: float = 0.0
    preempts: bool = True
    movable: bool = False
    yields: bool = False
    pinned: bool = False
    hands_over: bool = False
    ready_since: float = 0.0
    restarts: int = 0
    lacks_image: bool = False
    gang: Gang | None = None
    succeeded: bool = False
    disrupted: bool = False
    version: int = field(default=0, compare=False)

    @property
    def kind(self) -> KindOfRequest:
        """What kind of request it has."""
        return self.other_kind or (DEVICES if self.devices else SLICES)

    @property
    def gated(self) -> bool:
        """True if our gate still holds the pod."""
        return GATE in self.gates

    @property
    def is_held(self) -> bool:
        """True if no scheduler may bind the pod yet: at our gate, or while its request has no place."""
        return self.gated if self.gates or self.kind.needs_gate else not self.node

    @property
    def earlier_gates(self) -> tuple[str, ...]:
        """The gates of operators that go before Tessera."""
        return tuple(gate for gate in self.gates if gate != GATE and gate not in self.last_gates)

    @property
    def later_gates(self) -> tuple[str, ...]:
        """The gates of operators that go after Tessera."""
        return tuple(gate for gate in self.gates if gate in self.last_gates)

    @property
    def ready_to_place(self) -> bool:
        """True if the pod waits for Tessera, and for no operator that goes before."""
        held = self.is_held and not self.earlier_gates and not self.fault
        return held and bool(self.profiles) and not self.finished and not self.terminating

    @property
    def avoids_as(self) -> str:
        """Under which UID nodes are avoided that refused it: its owner's, so for the owner's next pods too."""
        return self.owner or self.uid

    @property
    def replica_of(self) -> tuple[str, str] | None:
        """Namespace and UID of the owner whose pods go apart by default; None for pods of jobs and gangs.

        Owner references are written by tenants; one that is made up has an effect in its own namespace only.
        """
        if not self.maker or self.gang is not None or self.maker.startswith("Job/"):
            return None
        return self.namespace, self.owner

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_pod(pod: Pod) -> PodInfo:
    """Reads the values that matter from a pod."""
    spec, meta = pod.spec, pod.metadata
    slices, held, constraints, fault = _read_requests(pod)
    gates = tuple(gate.name for gate in spec.scheduling_gates)
    devices = () if slices else _read_devices(held)
    profiles = slices
    if devices:
        excess = find_excess(spec) if GATE in gates or spec.node_selector or spec.affinity else ""
        constraints = ANYWHERE if excess else _constraints_of_devices(pod, devices)
        if GATE in gates:
            profiles, fault = devices, fault or excess
            if len(devices) > POD_SLICES:
                profiles, fault = devices[:1], fault or _too_many_text(devices)
    claims = read_device_claims(pod)
    if claims and not profiles and not fault:
        fault = find_excess(spec)
        constraints = ANYWHERE if fault else constraints_of(pod)
    asks = bool(profiles or devices or claims)
    owner = next((each for each in meta.owner_references if each.controller), None)
    gang = None
    try:
        gang = read_gang(meta.namespace, meta.labels, meta.annotations, (owner.name, owner.uid) if owner else ("", ""))
    except GangError as error:
        fault = fault or (str(error) if profiles or claims else "")
    pinned = bool(devices) and meta.annotations.get(PINNED_ANNOTATION) == meta.uid
    may_prefer = spec.affinity is not None or bool(spec.topology_spread_constraints)
    hands_over = asks and meta.annotations.get(UPDATE_ANNOTATION) == HAND_OVER
    return PodInfo(
        uid=PodUid(meta.uid),
        namespace=meta.namespace,
        name=meta.name,
        node=NodeName(spec.node_name),
        hostname=spec.node_selector.get(HOSTNAME_LABEL, ""),
        gates=gates,
        profiles=profiles,
        devices=devices[:POD_SLICES],
        device_claims=claims,
        amounts=held,
        allocated=_allocated(pod, held) if devices and spec.node_name else None,
        constraints=constraints,
        priority=spec.priority,
        created=meta.creation_timestamp or "",
        waits_since=_waits_since(pod),
        labels=read_labels(pod),
        relations=read_relations(pod, wants_slices=bool(profiles or claims)) if not fault else NO_RELATIONS,
        preferences=read_preferences(pod) if may_prefer and not fault and (profiles or claims or pinned) else (),
        images=read_images(spec) if asks and not fault else (),
        ports=read_host_ports(spec),
        claims=read_claims(pod),
        owner=owner.uid if owner else "",
        maker=_maker(owner) if owner else "",
        unschedulable_message=_unschedulable_message(pod),
        preempting=bool(pod.status.nominated_node_name) and not spec.node_name and not spec.scheduling_gates,
        unstarted=bool(slices or claims) and bool(spec.node_name) and not _has_started(pod),
        slices_withdrawn=any((each.type, each.status) == (SLICE_CONDITION, "False") for each in pod.status.conditions),
        finished=pod.status.phase in FINISHED,
        terminating=meta.deletion_timestamp is not None,
        lasts=pod.lasts,
        gone_by=parse_time_or_zero(meta.deletion_timestamp) if meta.deletion_timestamp else 0.0,
        fault=fault,
        agent_ready=pod.status.is_ready if is_agent(pod) else None,
        deadline=_deadline(pod) if asks else None,
        grace=_grace(pod) if asks else 0.0,
        started=parse_time_or_zero(pod.status.start_time) if asks else 0.0,
        preempts=spec.preemption_policy != "Never",
        movable=meta.annotations.get(MOVABLE_ANNOTATION) == "true",
        yields=meta.annotations.get(YIELDS_ANNOTATION) == "true",
        pinned=pinned,
        hands_over=hands_over,
        ready_since=_ready_since(pod) if hands_over else 0.0,
        restarts=max((each.restart_count for each in pod.status.containers), default=0) if hands_over else 0,
        lacks_image=hands_over and any(_lacks_image(each) for each in pod.status.containers),
        gang=gang,
        succeeded=pod.status.phase == "Succeeded",
        disrupted=any((each.type, each.status) == ("DisruptionTarget", "True") for each in pod.status.conditions),
        version=version_number(meta.resource_version),
    )


def _maker(owner: OwnerReference) -> str:
    is_one = (owner.api_version, owner.kind) in MAKERS and OBJECT_NAME.fullmatch(owner.name)
    return f"{owner.kind}/{owner.name}" if is_one else ""


def _read_requests(pod: Pod) -> tuple[tuple[str, ...], Amounts, NodeConstraints, str]:
    """Returns slices, amounts, constraints (of a pod with slices) and the error in them."""
    profiles: tuple[str, ...] = ()
    held: Amounts = {}
    try:
        profiles = pod_slices(slices_of(pod))
        fault = find_excess(pod.spec) if profiles else ""
        if fault and not pod.spec.node_name:
            return profiles, {}, ANYWHERE, fault
        held = pod_amounts(pod)
    except (SliceRequestError, ValueError) as error:
        return profiles, held, ANYWHERE, str(error)
    return profiles, held, constraints_of(pod) if profiles and not fault else ANYWHERE, fault


def _allocated(pod: Pod, held: Amounts) -> Amounts | None:
    found = allocated_amounts(pod)
    return found if found != held else None


def _read_devices(held: Amounts) -> tuple[str, ...]:
    """Returns the whole cards and shares of a pod, one entry each and one more than a pod may have at most."""
    most = int(POD_SLICES) + 1
    return tuple(name for name in GPU_RESOURCES for _ in range(min(most, max(0, held.get(name, 0)))))


def _constraints_of_devices(pod: Pod, devices: Sequence[str]) -> NodeConstraints:
    """Returns the constraints of a pod with whole cards or shares. Most are the scheduler's, and select no nodes."""
    if pod.spec.scheduling_gates or pod.spec.node_selector or pod.spec.affinity:
        return constraints_of(pod, devices)
    return NodeConstraints(devices=frozenset(devices))


def _too_many_text(devices: Sequence[str]) -> str:
    return (
        f"asks for more than {POD_SLICES:d} of {devices[0]}; all of a pod's cards are on one node, and no node has so"
        " many: ask for fewer, or divide the work among pods"
    )


def _unschedulable_message(pod: Pod) -> str:
    """Returns the scheduler's message about a pod without a node; empty while the scheduler preempts for it.

    Kubernetes' own gives another reason than ``Unschedulable`` where it found a node and cannot bind the pod there, as
    when a volume is not made within ten minutes (``SchedulerError``).
    """
    if pod.spec.node_name or pod.spec.scheduling_gates or pod.status.nominated_node_name:
        return ""
    condition = pod.status.condition("PodScheduled")
    if condition is None or condition.reason == "SchedulingGated":  # no scheduler has looked at it
        # kube-scheduler may be down for a while; a pod with another one, which nobody may run, must not keep its slices
        other = pod.spec.scheduler_name not in {"", DEFAULT_SCHEDULER}
        return f"no answer from scheduler {one_line(pod.spec.scheduler_name, 60)}" if other else ""
    return condition.message or condition.reason if condition.status == "False" else ""


def _lacks_image(status: ContainerStatus) -> bool:
    return status.waiting is not None and status.waiting.reason in {"ImagePullBackOff", "InvalidImageName"}


def _ready_since(pod: Pod) -> float:
    ready = pod.status.condition("Ready")
    return parse_time_or_zero(ready.last_transition_time or "") if ready and ready.status == "True" else 0.0


def _waits_since(pod: Pod) -> str:
    condition = pod.status.condition(SLICE_PROMISED_CONDITION)
    if condition is None or condition.status != "False" or condition.reason not in _COUNTED_REASONS:
        return ""
    return condition.last_transition_time or ""


def _deadline(pod: Pod) -> float | None:
    seconds = pod.spec.active_deadline_seconds
    return None if seconds is None else max(0, seconds) + _grace(pod)


def _grace(pod: Pod) -> float:
    seconds = pod.spec.termination_grace_period_seconds
    return float(max(0, DEFAULT_GRACE if seconds is None else seconds))


def _has_started(pod: Pod) -> bool:
    """True if kubelet has ever started a container that has slices."""
    started = {
        each.name
        for each in pod.status.containers
        if each.restart_count or (each.state is not None and (each.state.running or each.state.terminated))
    }
    return any(
        each.name in started and any(name.startswith(MIG_RESOURCE_PREFIX) for name in each.resources.limits)
        for each in (*pod.spec.init_containers, *pod.spec.containers)
    )
