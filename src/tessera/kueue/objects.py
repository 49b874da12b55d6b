"""Kueue's API: its names, its objects as far as Tessera reads them, and what their conditions say.

Names are those of Kueue's documentation and published types (0.13 to 0.19). The fields are the same in v1beta1 and
v1beta2. The version of the objects here is the older one; which one a cluster serves is asked for
(:func:`served_resource`).

Of the conditions of a Workload, releases before 0.19 have one reason, ``Pending`` or ``Inadmissible``, and the text in
the message; newer ones have a reason for each case. So the text decides, and the typed reason where the text is
unknown.
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

import dataclasses
import re
from enum import Enum
from typing import Literal, TypeVar

import msgspec

from tessera.api.names import KUEUE_QUEUE_LABEL, QUOTA_RESOURCE
from tessera.kube.client import Client
from tessera.kube.errors import BrokenAnswer, Status
from tessera.kube.quantity import parse_quantity
from tessera.kube.resources import (
    Condition,
    ConditionsStatus,
    ObjectMeta,
    PartialObject,
    PodTemplateSpec,
    Resource,
    Wire,
)

GROUP = "kueue.x-k8s.io"
CONFIGURATION_GROUP = "config.kueue.x-k8s.io"
VISIBILITY_GROUP = "visibility.kueue.x-k8s.io"

#: Versions of all three groups; 0.14 and older serve only the first.
Version = Literal["v1beta1", "v1beta2"]
VERSIONS: tuple[Version, ...] = ("v1beta1", "v1beta2")

#: Prefix of Kueue's labels, annotations and gates.
PREFIX = f"{GROUP}/"
#: Gates of a pod: until its Workload is admitted, and until its place in a topology is chosen.
ADMISSION_GATE = f"{GROUP}/admission"
TOPOLOGY_GATE = f"{GROUP}/topology"
QUEUE_LABEL = KUEUE_QUEUE_LABEL

#: Where Kueue's own manifests put its Configuration.
CONFIG_NAMESPACE = "kueue-system"
CONFIG_MAP = "kueue-manager-config"
CONFIG_KEY = "controller_manager_config.yaml"
#: The Deployment of Kueue's own manifests.
MANAGER = "kueue-controller-manager"

#: The resource into which Kueue transforms each MIG resource. It is not the quota resource that admission writes into
#: pods: an output of that name would be added to it, and pods charged double.
CHARGED_RESOURCE = "tessera.dev/gpu-memory"

#: Tessera's admission check: the name of its object in the manifests that Tessera writes, and of its controller.
CHECK_NAME = "packable"
CHECK_CONTROLLER = "tessera.dev/packable"


#: A major and a minor number.
Release = tuple[int, int]

_TAG = re.compile(r":v?(\d{1,4})\.(\d{1,4})(?:[.+-][\w.+-]*)?(?:@|$)")


def release_of(image: str) -> Release | None:
    """Returns the release by an image: ``(0, 18)`` of ``kueue/kueue:v0.18.1``; None if it has no tag that says it.

    Kueue's manifests and its Helm chart write the tag.
    """
    found = _TAG.search(image)
    return (int(found[1]), int(found[2])) if found else None


T = TypeVar("T")
CLUSTER_QUEUES = Resource(GROUP, "v1beta1", "clusterqueues", "ClusterQueue", False, PartialObject)
_GIB = 2**30
#: Characters of a message that are looked through.
_READ = 4_000
_MISSING = re.compile(r"(LocalQueue|ClusterQueue) (\S+) doesn't exist")
_INACTIVE = re.compile(r"(LocalQueue|ClusterQueue) (\S+) is (?:inactive|stopped)")
_NAMESPACE = "workload namespace doesn't match ClusterQueue selector"
_UNCOVERED = re.compile(r"resource (\S+) unavailable in ClusterQueue")
_FULL = re.compile(r"insufficient unused quota for (\S+) in flavor (\S+), (\S+) more needed")
#: Kueue 0.13 ends in "maximum capacity (60Gi > 20Gi)", 0.19 in "podset request (60Gi) > maximum capacity (20Gi)".
_NEVER = re.compile(r"insufficient quota for (\S+) in flavor (\S+),")
_MAXIMUM = re.compile(r"maximum capacity \((?:(\S+) > )?(\S+)\)")
_REQUEST = re.compile(r"current podset request \((\S+)\)")
_PREEMPTING = re.compile(r"[Pp]ending the preemption of")


class PodSet(Wire, frozen=True, kw_only=True):
    """Pods of one shape."""

    name: str = "main"
    template: PodTemplateSpec = PodTemplateSpec()
    count: int = 0


class WorkloadSpec(Wire, frozen=True, kw_only=True):
    """What waits, and where."""

    pod_sets: tuple[PodSet, ...] = ()
    queue_name: str = ""
    priority: int = 0
    active: bool = True


class PodSetAssignment(Wire, frozen=True, kw_only=True):
    """The flavor of each resource of a pod set."""

    name: str = ""
    flavors: dict[str, str] = {}


class Admission(Wire, frozen=True, kw_only=True):
    """The quota that is reserved."""

    pod_set_assignments: tuple[PodSetAssignment, ...] = ()


class CheckState(Wire, frozen=True, kw_only=True):
    """The state of one admission check: ``Pending``, ``Ready``, ``Retry`` or ``Rejected``."""

    name: str = ""
    state: str = ""
    message: str = ""
    last_transition_time: str | None = None


class RequeueState(Wire, frozen=True, kw_only=True):
    """How often the Workload was sent back, and when it counts again."""

    count: int = 0
    requeue_at: str | None = None


class WorkloadStatus(Wire, frozen=True, kw_only=True):
    """What Kueue has decided."""

    conditions: tuple[Condition, ...] = ()
    admission: Admission | None = None
    admission_checks: tuple[CheckState, ...] = ()
    requeue_state: RequeueState | None = None


class Workload(Wire, frozen=True, kw_only=True):
    """What Kueue queues: a Job, a pod, a group of pods."""

    metadata: ObjectMeta = ObjectMeta()
    spec: WorkloadSpec = WorkloadSpec()
    status: WorkloadStatus = WorkloadStatus()

    def cut(self) -> None:
        """See :meth:`tessera.kube.resources.meta.Wire.cut`."""
        super().cut()
        for each in self.spec.pod_sets:
            each.template.spec.cut()

    @property
    def waits(self) -> bool:
        """True until Kueue has admitted it."""
        return not self.is_true("Admitted") and not self.is_true("Finished")

    def condition(self, type_: str) -> Condition | None:
        """The condition of this type; None if there is none."""
        return next((each for each in self.status.conditions if each.type == type_), None)

    def is_true(self, type_: str) -> bool:
        """True if a condition holds."""
        found = self.condition(type_)
        return found is not None and found.status == "True"


class AdmissionCheckSpec(Wire, frozen=True, kw_only=True):
    """Who answers."""

    controller_name: str = ""


class AdmissionCheck(Wire, frozen=True, kw_only=True):
    """A question that Kueue asks before it admits."""

    metadata: ObjectMeta = ObjectMeta()
    spec: AdmissionCheckSpec = AdmissionCheckSpec()
    status: ConditionsStatus = ConditionsStatus()


class ResourceFlavorSpec(Wire, frozen=True, kw_only=True):
    """Labels of the flavor's nodes; pods that get it select them."""

    node_labels: dict[str, str] = {}


class ResourceFlavor(Wire, frozen=True, kw_only=True):
    """A kind of nodes."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceFlavorSpec = ResourceFlavorSpec()


class LocalQueue(Wire, frozen=True, kw_only=True):
    """A namespace's queue."""

    metadata: ObjectMeta = ObjectMeta()
    status: ConditionsStatus = ConditionsStatus()


class _Version(Wire, frozen=True, kw_only=True):
    version: str = ""


class _Group(Wire, frozen=True, kw_only=True):
    preferred_version: _Version = _Version()


WORKLOADS = Resource(GROUP, "v1beta1", "workloads", "Workload", True, Workload)
ADMISSION_CHECKS = Resource(GROUP, "v1beta1", "admissionchecks", "AdmissionCheck", False, AdmissionCheck)
RESOURCE_FLAVORS = Resource(GROUP, "v1beta1", "resourceflavors", "ResourceFlavor", False, ResourceFlavor)
LOCAL_QUEUES = Resource(GROUP, "v1beta1", "localqueues", "LocalQueue", True, LocalQueue)


async def served_version(client: Client, group: str = GROUP) -> str:
    """Returns the server's preferred version of one of Kueue's groups.

    Raises:
        NotFound: the group is not served: Kueue is not installed.
        BrokenAnswer: the answer is no description of a group.
    """
    answer = await client.request("GET", f"/apis/{group}")
    try:
        return msgspec.json.decode(answer.body, type=_Group).preferred_version.version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        message = f"the answer about the API group {group} cannot be read: {error}"
        raise BrokenAnswer(Status(code=answer.status, message=message)) from error


def served_resource(resource: Resource[T], version: str) -> Resource[T]:
    """The resource at the version that the server prefers."""
    return dataclasses.replace(resource, version=version)


class Case(Enum):
    """The kinds of waiting in Kueue."""

    FINISHED = "finished"
    DEACTIVATED = "deactivated"
    MISSING_QUEUE = "missing-queue"
    STOPPED_QUEUE = "stopped-queue"
    NAMESPACE = "namespace"
    UNCOVERED = "uncovered"
    NEVER = "never"
    QUOTA = "quota"
    NO_FLAVOR = "no-flavor"
    PREEMPTING = "preempting"
    CHECK = "check"
    SENT_BACK = "sent-back"
    EVALUATING = "evaluating"
    OTHER = "other"
    ADMITTED = "admitted"


#: Typed reasons (Kueue 0.19 and newer) whose message has none of the known texts.
_TYPED = {
    "PendingEvaluation": Case.EVALUATING,
    "WaitingForQuota": Case.QUOTA,
    "ExceedsMaxQuota": Case.NEVER,
    "NoMatchingFlavor": Case.NO_FLAVOR,
    "TopologyPlacementFailed": Case.OTHER,
    "WaitingForPreemptedWorkloads": Case.PREEMPTING,
    "WaitingForPodsReady": Case.OTHER,
    "Misconfigured": Case.STOPPED_QUEUE,
    "Suspended": Case.STOPPED_QUEUE,
}


class WaitingReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a Workload waits.

    Attributes:
        case: the kind.
        message: Kueue's own text.
        subject: the queue or the resource that it is about; empty if none.
        flavor: the flavor that it is about; empty if none.
        missing: how much more is needed, or how much is asked for where that can never be, for people: ``20Gi``.
        most: the most that the queue can give, for people; empty if unknown.
    """

    case: Case
    message: str = ""
    subject: str = ""
    flavor: str = ""
    missing: str = ""
    most: str = ""


def waiting_reason(item: Workload) -> WaitingReason:
    """Returns the reason that a Workload is not admitted, or that it is."""
    if item.is_true("Finished"):
        return WaitingReason(case=Case.FINISHED)
    if not item.spec.active:
        return WaitingReason(case=Case.DEACTIVATED, message=_message(item, "Evicted"))
    if item.is_true("Admitted"):
        return WaitingReason(case=Case.ADMITTED)
    if item.is_true("QuotaReserved"):
        waiting = [each for each in item.status.admission_checks if each.state != "Ready"]
        text = "; ".join(f"{each.name}: {each.message or _silence(each)}" for each in waiting)
        return WaitingReason(case=Case.CHECK, message=text, subject=", ".join(each.name for each in waiting))
    found = item.condition("QuotaReserved")
    if found is None:
        return WaitingReason(case=Case.EVALUATING)
    read = _read_message(found.message[:_READ])
    if read is not None:
        return read
    if item.is_true("Evicted"):
        return WaitingReason(case=Case.SENT_BACK, message=_message(item, "Evicted"))
    return WaitingReason(case=_TYPED.get(found.reason, Case.OTHER), message=found.message)


def _silence(check: CheckState) -> str:
    """Text for a check without a message. Each check is ``Pending`` until its controller has looked at the Workload."""
    return "no answer yet" if check.state == "Pending" else f"{check.state}, without a reason"


def _message(item: Workload, type_: str) -> str:
    found = item.condition(type_)
    return found.message if found is not None else ""


def _read_message(text: str) -> WaitingReason | None:
    if found := _MISSING.search(text):
        return WaitingReason(case=Case.MISSING_QUEUE, message=text, subject=f"{found[1]} {found[2]}")
    if found := _INACTIVE.search(text):
        return WaitingReason(case=Case.STOPPED_QUEUE, message=text, subject=f"{found[1]} {found[2]}")
    if _NAMESPACE in text:
        return WaitingReason(case=Case.NAMESPACE, message=text)
    if found := _UNCOVERED.search(text):
        return WaitingReason(case=Case.UNCOVERED, message=text, subject=found[1])
    if _PREEMPTING.search(text):
        return WaitingReason(case=Case.PREEMPTING, message=text)
    if found := _FULL.search(text):
        missing = amount_text(found[1], found[3])
        return WaitingReason(case=Case.QUOTA, message=text, subject=found[1], flavor=found[2], missing=missing)
    if (found := _NEVER.search(text)) and (most := _MAXIMUM.search(text)):
        asked = _REQUEST.search(text)
        wanted = asked[1] if asked else most[1] or ""
        return WaitingReason(
            case=Case.NEVER,
            message=text,
            subject=found[1],
            flavor=found[2],
            missing=amount_text(found[1], wanted),
            most=amount_text(found[1], most[2]),
        )
    return None


def amount_text(resource: str, text: str) -> str:
    """An amount for people: GPU memory in Gi, everything else as it is written."""
    if resource not in {CHARGED_RESOURCE, QUOTA_RESOURCE}:
        return text[:40]
    try:
        amount = parse_quantity(text) / _GIB
    except ValueError:
        return text[:40]
    return f"{amount.normalize():f}Gi"
