"""Kueue's objects, as far as Tessera reads them; the fields are the same in v1beta1 and v1beta2.

The version here is the older one; which one a cluster serves is asked for (:func:`served_resource`).
"""

# ruff: noqa: RUF012 - msgspec gives every object its own copy of an empty default

import dataclasses
from typing import TypeVar

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.errors import BrokenAnswer, Status
from tessera.kube.resources import (
    Condition,
    ConditionsStatus,
    ObjectMeta,
    PartialObject,
    PodTemplateSpec,
    Resource,
    Wire,
)
from tessera.kueue.names import GROUP

T = TypeVar("T")


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
CLUSTER_QUEUES = Resource(GROUP, "v1beta1", "clusterqueues", "ClusterQueue", False, PartialObject)
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
