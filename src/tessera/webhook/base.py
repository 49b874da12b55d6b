"""Options and metrics of the webhook, and the limits of one review.

The size limits keep reviews short. The time limit bounds costs that the size limits miss: the time is checked before
each part of a decision, each container and each alternative. A pod whose review has used its time is refused with that
reason. Each webhook has a registry of metrics of its own, so that several can run in one process.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Histogram

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.api.slice_requests import PodSize, find_size_excess
from tessera.clock import Clock
from tessera.kube.client import Client
from tessera.limits import REVIEW_TIME
from tessera.status_pages import OnListening


class Rule(Enum):
    """The rules for which a pod is refused; the value is a label of ``tessera_refusals_total``."""

    #: The pod exceeds a limit of :mod:`tessera.limits`.
    SIZE = "size"
    #: The review used its time.
    REVIEW_TIME = "review_time"
    #: An annotation with a requirement is wrong.
    REQUIREMENT = "requirement"
    #: Nothing in the cluster fulfils the requirements.
    NO_OFFER = "no_offer"
    #: A container asks for several shares where one is allowed.
    SHARE_COUNT = "share_count"
    #: A request for slices contradicts itself.
    SLICE_REQUEST = "slice_request"
    #: The size of the pod's gang is missing or no number.
    GANG = "gang"
    #: The annotation about updates has an unknown value.
    UPDATE = "update"
    #: No card has the profile.
    UNKNOWN_PROFILE = "unknown_profile"
    #: The profiles are of nodes of both kinds, on demand and fixed.
    MIXED_LAYOUTS = "mixed_layouts"
    #: No node could hold the slices or the cards together, even an empty one.
    IMPOSSIBLE = "impossible"
    #: The author bound the pod to a node.
    BOUND = "bound"
    #: The template of a claim that stands for a limit cannot be made.
    CLAIM_TEMPLATE = "claim_template"
    #: The resource is that of another slicer.
    FOREIGN_RESOURCE = "foreign_resource"
    #: The author wrote a wrong amount of the quota resource.
    QUOTA = "quota"


class PodRefused(Exception):  # noqa: N818 - a verdict, not a fault
    """The pod must not be created.

    Args:
        rule: the rule that it breaks.
        text: is shown to its author.
    """

    def __init__(self, rule: Rule, text: str) -> None:
        super().__init__(text)
        self.rule = rule


#: Called before each piece of work. Raises :class:`PodRefused` once the review has used its time.
SpendTime = Callable[[], None]


def spend_nothing() -> None:
    """Sets no limit."""


class ReviewBudget:
    """The CPU time of one review, from its construction on.

    Args:
        seconds: returns the CPU seconds of this thread since some start.
    """

    def __init__(self, seconds: Callable[[], float] = time.thread_time) -> None:
        self._seconds = seconds
        self._end = seconds() + REVIEW_TIME / 1000

    def spend(self) -> None:
        """Returns if there is time left.

        Raises:
            PodRefused: no time is left.
        """
        if self._seconds() > self._end:
            raise PodRefused(
                Rule.REVIEW_TIME,
                f"the review of this pod took more than it may ({REVIEW_TIME}); give it fewer containers, resources, "
                "annotations or alternatives of node affinity",
            )


def refuse_oversized(size: PodSize) -> None:
    """Refuses a pod that exceeds a size limit of a review.

    Raises:
        PodRefused: the text names the part, the count and the limit.
    """
    if why := find_size_excess(size):
        raise PodRefused(Rule.SIZE, why)


#: Path to which the API server posts AdmissionReviews of pods, and of objects with pod templates.
REVIEW_PATH = "/mutate-v1-pod"
TEMPLATE_PATH = "/mutate-templates"
#: Path for pods with whole cards or shares of namespaces whose pods Tessera places.
MANAGED_PATH = "/mutate-managed-pod"
#: Path for objects with templates of such pods, of the same namespaces.
MANAGED_TEMPLATE_PATH = "/mutate-managed-templates"
#: Path for Kubernetes' own kinds with templates, whose authors get warnings only.
WORKLOAD_PATH = "/warn-workloads"
#: Path for pods with ResourceClaims.
CLAIM_PATH = "/mutate-claiming-pod"
#: Path for pods whose limits become ResourceClaims.
LIMIT_PATH = "/mutate-limits"
PATHS = (REVIEW_PATH, TEMPLATE_PATH, MANAGED_PATH, MANAGED_TEMPLATE_PATH, WORKLOAD_PATH, CLAIM_PATH, LIMIT_PATH)


@dataclass(frozen=True, kw_only=True)
class WebhookOptions:
    """Options of :func:`tessera.webhook.main.run`.

    Attributes:
        namespace: the deployment's namespace, which has the Secret.
        service: name of the Service in front of the webhook; the certificate is issued for it.
        secret: name of the Secret that keeps the certificate.
        given_secret: name of a Secret that cert-manager renews; empty if the webhook renews its own certificate.
        configuration: name of the MutatingWebhookConfiguration whose caBundle is kept up to date.
        address: address of the servers; None for all addresses, IPv6 too.
        port: None opens no socket: callers in the process call the reviews directly; 0 picks a free port.
        health_port: plain HTTP port for ``/healthz`` and ``/readyz``; None for no such port.
        extra_names: further DNS names or IP addresses of the certificate, for a webhook reached by URL.
        any_new_nodes: nodes with other cards than those present may come, so their pods are admitted.
        pod_keys: keys of pods that options of the controller name, as ``--usage-user``.
        claims: makes what knows pods' ResourceClaims; None if no pod of them is gated.
        certificate_days: days for which a certificate is valid; it is replaced after two thirds of them.
        on_listening: called with address and port once the TLS server is open.
        on_ready: called once reviews may come: the webhook serves the certificate and the API server trusts it.
    """

    namespace: str = SYSTEM_NAMESPACE
    service: str = "tessera-webhook"
    secret: str = "tessera-webhook-cert"  # noqa: S105 - an object's name
    given_secret: str = ""
    configuration: str = "tessera-webhook"
    address: str | None = None
    port: int | None = 9443
    health_port: int | None = 8081
    extra_names: tuple[str, ...] = ()
    any_new_nodes: bool = False
    pod_keys: tuple[str, ...] = ()
    claims: "MakePodClaims | None" = None
    certificate_days: int = 90
    on_listening: OnListening | None = None
    on_ready: Callable[[], None] | None = None


#: The possible results of a review; ``malformed`` is a body that is no review of a pod.
VERDICTS = ("patched", "untouched", "refused", "malformed")
#: Seconds; a usual review takes less than a millisecond, and none may take more than a fifth of a second.
_BUCKETS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)


class WebhookMetrics:
    """The webhook's metrics.

    Attributes:
        registry: the metrics that ``/metrics`` shows; may be read from any thread.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        reviews = Counter(
            "tessera_reviews",
            "Reviews by this replica, by their result.",
            ["verdict"],
            registry=self.registry,
        )
        self._reviews = {verdict: reviews.labels(verdict) for verdict in VERDICTS}
        refusals = Counter(
            "tessera_refusals", "Pods refused at creation, by the rule.", ["rule"], registry=self.registry
        )
        self._refusals = {rule: refusals.labels(rule.value) for rule in Rule}
        self._unread_claims = Counter(
            "tessera_unread_claims",
            "Pods that got no gate since their ResourceClaims could not be read.",
            registry=self.registry,
        )
        self._seconds = Histogram(
            "tessera_review_seconds", "Duration of a review.", buckets=_BUCKETS, registry=self.registry
        )

    def count_unread_claims(self) -> None:
        """Counts a pod whose ResourceClaims could not be read."""
        self._unread_claims.inc()

    def count(self, verdict: str, rule: Rule | None = None) -> None:
        """Counts one review; the verdict is one of :data:`VERDICTS`, and ``rule`` is that of a refusal."""
        self._reviews[verdict].inc()
        if rule is not None:
            self._refusals[rule].inc()

    def observe(self, seconds: float) -> None:
        """Records the duration of a review."""
        self._seconds.observe(seconds)


class KnownClaims(msgspec.Struct, frozen=True):
    """What was read about a pod's ResourceClaims before its review.

    Attributes:
        ours: a claim asks for a device of ours.
        of_limits: returns the operations that turn a pod's limits into claims; raises :class:`PodRefused`.
        problem: why no claim can stand for a limit.
    """

    ours: bool = False
    of_limits: Callable[[Mapping[str, Any]], Sequence[dict[str, Any]]] = lambda _: ()
    problem: str = ""


NO_CLAIMS = KnownClaims()


class PodClaims:
    """Knows pods' ResourceClaims. This one knows none; that of the claims is a satellite."""

    async def read_claims(self, body: bytes) -> KnownClaims:  # noqa: ARG002 - for satellites
        """Returns whether a claim of the pod in a review is known to ask for a device of ours."""
        return NO_CLAIMS

    async def make_templates(self, body: bytes) -> KnownClaims:  # noqa: ARG002 - for satellites
        """Makes the templates that the claims for the limits of a pod in a review need."""
        return NO_CLAIMS

    async def run(self) -> None:
        """Runs until cancelled."""


#: Makes what knows the claims for one replica.
MakePodClaims = Callable[[Client, Clock, random.Random, WebhookMetrics], PodClaims]
