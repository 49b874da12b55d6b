"""What the examination knows of a cluster, and what it finds.

A part that the asker may not read is a :class:`Refusal`, and only the checks that need it cannot be made.
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from tessera.access.page_reader import READER_ACCOUNT
from tessera.api.instaslice import INSTASLICES
from tessera.api.names import (
    CLAIM_DRIVERS,
    INSTASLICE_NAMESPACE,
    QUOTA_RESOURCE,
    SYSTEM_NAMESPACE,
)
from tessera.kube.resources import (
    CoreEvent,
    Node,
)
from tessera.text import one_line

if TYPE_CHECKING:  # a cluster without claims or Kueue needs none
    from tessera.dra.claims import DeviceClass
    from tessera.dra.resource_slices import ResourceSlice
    from tessera.kueue.objects import Release

Object = Mapping[str, Any]

WEBHOOK = "tessera-webhook"
#: The trial pod asks for the memory quota without a slice, which the webhook refuses on every cluster. Its answer to a
#: request for a slice depends on the cards and their layouts: it gates the pod, leaves it alone, or refuses it.
TRIAL_RESOURCE = QUOTA_RESOURCE


class Right(msgspec.Struct, frozen=True, order=True):
    """A right at the API server, in the words of a SubjectAccessReview."""

    verb: str
    resource: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """``get pods/proxy in tessera-system``."""
        what = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        what = f"{what}.{self.group}" if self.group else what
        what = f"{what} {self.name}" if self.name else what
        return f"{self.verb} {what}{f' in {self.namespace}' if self.namespace else ''}"


#: The rights that commands need.
RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "tessera map": (Right("list", INSTASLICES.plural, INSTASLICES.group, namespace=INSTASLICE_NAMESPACE),),
    "tessera why": (Right("list", "pods"), Right("list", "nodes")),
    "tessera top": (
        Right("list", "pods", namespace=SYSTEM_NAMESPACE),
        Right("get", "pods", subresource="proxy", namespace=SYSTEM_NAMESPACE),
        Right("create", "serviceaccounts", subresource="token", name=READER_ACCOUNT, namespace=SYSTEM_NAMESPACE),
    ),
    "tessera install": (
        Right("create", "clusterroles", "rbac.authorization.k8s.io"),
        Right("create", "customresourcedefinitions", "apiextensions.k8s.io"),
        Right("create", "mutatingwebhookconfigurations", "admissionregistration.k8s.io"),
        Right("create", "daemonsets", "apps", namespace=SYSTEM_NAMESPACE),
    ),
}
#: Those that answer a tenant too, by the API ``view.tessera.dev``.
FOR_TENANTS = frozenset({"tessera map", "tessera why", "tessera top"})


class Refusal(msgspec.Struct, frozen=True):
    """A part that could not be read.

    Attributes:
        reason: why.
        missing: True if there is no such object or kind.
        lacks_right: True if the asker lacks a right; else, nobody answered, or somebody else refused.
    """

    reason: str
    missing: bool = False
    lacks_right: bool = False


class KueueFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Kueue's settings and objects.

    Attributes:
        configuration: its Configuration, decoded.
        cluster_queues: its ClusterQueues.
        admission_checks: its AdmissionChecks.
        release: its release; None if it cannot be read.
    """

    configuration: Any | Refusal
    cluster_queues: Sequence[Object]
    admission_checks: Sequence[Object] = ()
    release: "Release | None" = None


class ClaimFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What ResourceClaims rest on.

    Attributes:
        driver: the name under which Tessera serves claims; empty if it serves none.
        by_scheduler: kube-scheduler's allocator places them.
        served: the API server has the API.
        classes: the DeviceClasses.
        slices: the ResourceSlices of the drivers of NVIDIA cards.
    """

    driver: str
    by_scheduler: bool = False
    served: bool = True
    classes: "Sequence[DeviceClass]" = ()
    slices: "Sequence[ResourceSlice]" = ()


class ClusterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment.

    Attributes:
        version: the API server's ``gitVersion``.
        nodes: all nodes.
        pods: the pods in Tessera's namespace.
        daemon_sets: the DaemonSets of all namespaces.
        namespace: Tessera's namespace.
        definitions: the CustomResourceDefinitions.
        webhook: Tessera's MutatingWebhookConfiguration.
        leader: the controller's Lease.
        node_leases: the Leases of the nodes.
        gates: the API server's feature gates, by name.
        bindings: the names of the ValidatingAdmissionPolicyBindings.
        names: the names of the objects of each kind that an installation has, by ``PLURAL.GROUP`` and namespace.
        exempt: the namespaces that a label exempts from the policy for pods.
        refused: events about pods that could not be created.
        settings: for each ConfigMap that an agent follows, as ``NAMESPACE/NAME``, True if it exists.
        node_groups: the ConfigMap with groups of new nodes.
        repairs: the ConfigMap of what is done about cards with faults.
        trial: the answer to the trial pod in a dry run: the webhook's refusal, another one, or the pod.
        rights: for each command, the rights that the asker lacks.
        kueue: Kueue; missing if it is not installed.
        external_metrics: the Service, as ``NAMESPACE/NAME``, that serves ``external.metrics.k8s.io``; empty for none.
        claims: what claims rest on; None if it is not known under which name Tessera serves any.
        past: what the live page says of its Prometheus (``pasts`` of ``view.tessera.dev``); None without one.
        skew: seconds by which the API server's clock is ahead of the asker's.
        now: the API server's time, in seconds since 1970.
    """

    version: str | Refusal
    nodes: Sequence[Node] | Refusal
    pods: Sequence[Object] | Refusal
    daemon_sets: Sequence[Object] | Refusal
    namespace: Object | Refusal
    definitions: Sequence[Object] | Refusal
    webhook: Object | Refusal
    leader: Object | Refusal
    node_leases: Sequence[Object] | Refusal
    gates: Mapping[str, bool] | Refusal
    bindings: Sequence[str] | Refusal
    names: Mapping[tuple[str, str], Sequence[str] | Refusal]
    exempt: Sequence[str] | Refusal
    refused: Sequence[CoreEvent] | Refusal
    settings: Mapping[str, bool] | Refusal
    node_groups: Object | Refusal
    repairs: Object | Refusal
    trial: Object | Refusal
    rights: Mapping[str, Sequence[str]] | Refusal
    external_metrics: str | Refusal = ""
    kueue: KueueFacts | Refusal = Refusal("Kueue is not installed", missing=True)
    claims: ClaimFacts | Refusal | None = None
    past: Object | Refusal | None = None
    skew: float | Refusal
    now: float


class Verdict(Enum):
    """How a check ended; the order is that of its importance.

    Attributes:
        ERROR: something does not work, or will not.
        WARNING: it works with a restriction that somebody should know.
        UNKNOWN: the asker lacks a right, or the cluster did not answer.
        OK: as it should be.
    """

    ERROR = "error"
    WARNING = "warning"
    UNKNOWN = "unknown"
    OK = "ok"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one check.

    Attributes:
        check: the name of the check, the same in each version.
        verdict: how it ended.
        text: what was found.
        advice: what to do; empty if nothing is to be done.
        objects: the objects that it is about, as ``node/NAME``.
        lacks_right: True if it was not examined since the asker lacks a right.
    """

    check: str
    verdict: Verdict
    text: str
    advice: str = ""
    objects: tuple[str, ...] = ()
    lacks_right: bool = False


def ok(check: str, text: str) -> Finding:
    """A finding about something that is as it should be."""
    return Finding(check=check, verdict=Verdict.OK, text=text)


def error(check: str, text: str, advice: str, objects: Sequence[str] = ()) -> Finding:
    """A finding about something that does not work."""
    return Finding(check=check, verdict=Verdict.ERROR, text=text, advice=advice, objects=tuple(objects))


def warning(check: str, text: str, advice: str, objects: Sequence[str] = ()) -> Finding:
    """A finding about a restriction."""
    return Finding(check=check, verdict=Verdict.WARNING, text=text, advice=advice, objects=tuple(objects))


def unknown(check: str, text: str, advice: str = "") -> Finding:
    """A finding about something that could not be examined."""
    return Finding(check=check, verdict=Verdict.UNKNOWN, text=text, advice=advice)


def not_examined(check: str, refusal: Refusal, advice: str = "", *, needs: str = "") -> Finding:
    """A finding about something that could not be read.

    Args:
        check: the name of the check.
        refusal: why.
        advice: what to do.
        needs: the right that it needs, which says more than the server's refusal.
    """
    why = f"that needs the right to {needs}" if needs and refusal.lacks_right else one_line(refusal.reason, 300)
    return Finding(
        check=check,
        verdict=Verdict.UNKNOWN,
        text=f"not examined: {why}",
        advice=advice,
        lacks_right=refusal.lacks_right,
    )


def worst(findings: Sequence[Finding]) -> Verdict:
    """The most important verdict; OK for no findings."""
    order = list(Verdict)
    return min((each.verdict for each in findings), key=order.index, default=Verdict.OK)


def claim_driver(pods: Sequence[Object] | Refusal) -> str:
    """The driver under whose name Tessera serves claims, by the arguments of its pods; empty if it serves none."""
    for argument in arguments(pods):
        option, _, name = argument.partition("=")
        if option == "--claim-driver" and name in CLAIM_DRIVERS:
            return name
    return ""


def arguments(pods: Sequence[Object] | Refusal) -> Sequence[str]:
    """The arguments of all containers."""
    containers = (
        container
        for pod in (() if isinstance(pods, Refusal) else pods)
        for container in (pod.get("spec") or {}).get("containers", ())
    )
    return [str(argument) for container in containers for argument in container.get("args") or ()]
