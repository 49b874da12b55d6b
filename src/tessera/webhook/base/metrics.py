"""Metrics of the webhook, in one registry per webhook, so that several can run in one process."""

from prometheus_client import CollectorRegistry, Counter, Histogram

from tessera.webhook.base.budget import Rule

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
