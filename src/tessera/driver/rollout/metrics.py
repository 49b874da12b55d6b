"""Counts of nodes by what the upgrade of their driver is for them; upstream's five numbers, with our prefix."""

from prometheus_client import CollectorRegistry, Gauge

from tessera.driver.rollout.fleet import Decision


class RolloutMetrics:
    """Gauges that follow the latest decision.

    Args:
        registry: what ``/metrics`` shows.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes = Gauge(
            "tessera_driver_upgrades",
            "Nodes by state of their driver's upgrade: in_progress, done, failed, pending, and available: another "
            "driver is there, and somebody has to allow it.",
            ["policy", "state"],
            registry=registry,
        )
        self._stopped = Gauge(
            "tessera_driver_rollout_stopped",
            "1 while the failure budget is used up and no node is begun.",
            ["policy"],
            registry=registry,
        )

    def show(self, decision: Decision) -> None:
        """Shows these numbers from now on; policies that are gone are no longer shown."""
        self._nodes.clear()
        self._stopped.clear()
        for policy, counts in decision.counts.items():
            for state in counts.__struct_fields__:
                self._nodes.labels(policy, state).set(getattr(counts, state))
            self._stopped.labels(policy).set(policy in decision.stopped)
