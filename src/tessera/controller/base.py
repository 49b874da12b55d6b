"""Metrics of the controller, and settings that several of its parts read: the health breaker's limits, what moves do.

Each controller has a registry of metrics, so that several can run in one process. Moves end running pods whose authors
allow it, to make room for waiting pods. Hand-over ends old pods of a service for its new ones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import inf

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


@dataclass(frozen=True, kw_only=True)
class BreakerLimits:
    """The most cards that a rule of health takes away.

    Attributes:
        share: of all cards, 0 to 1; with 1 the breaker never opens.
        cards: number of cards that a rule may always take away.
    """

    share: float = 0.1
    cards: int = 3

    def bound(self, counts: Iterable[int]) -> int:
        """The most cards that one rule takes away; ``counts`` are the cards of each node."""
        found = list(counts)
        return max(self.cards, int(self.share * sum(found)), max(found, default=0))


#: Evictions in an hour, by default.
MOVES_PER_HOUR = 20


class MoveMode(Enum):
    """The controller's action when it has found moves."""

    OFF = "off"
    #: Tells the waiting pod which moves would make room for it.
    RECOMMEND = "recommend"
    #: Evicts the pods.
    EVICT = "evict"


@dataclass(frozen=True, kw_only=True)
class MoveSettings:
    """Settings of moves.

    Attributes:
        mode: what is done with moves.
        per_hour: most evictions in an hour, in the whole cluster.
    """

    mode: MoveMode = MoveMode.RECOMMEND
    per_hour: int = MOVES_PER_HOUR


#: By mode, what a preference of weight 100 may cost the cards, as growth of a card's loss (``MixAware.costs``).
#: The price is from bench/preferences.py, see docs/decisions/preferences.md.
PREFERENCE_PRICES: Mapping[str, float] = {"ties": 0.0, "price": 0.1, "first": inf}
#: No moves are looked for.
NO_MOVES = MoveSettings(mode=MoveMode.OFF)


#: Seconds; a decision takes from tens of microseconds (one pod) to a second (a burst of thousands).
_BUCKETS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)

#: Seconds; a hand-over takes some writes to the API server.
_HAND_OVER_BUCKETS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
#: Seconds; creation times are whole seconds, and pods wait for hours.
_WAIT_BUCKETS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0)


class ControllerMetrics:
    """The controller's metrics.

    Attributes:
        registry: the metrics that ``/metrics`` shows.
        leading: 1 while this replica decides.
        fault_evictions: attempts to evict a pod from a card that must be empty, by outcome.
        decisions: pods given slices.
        decision_seconds: of planned batches.
        hand_overs: seconds of hand-overs, see :mod:`tessera.controller.leader_session`.
        waits: seconds that a pod existed until its gate was removed.
        writes: that the server took, by kind.
        failures: writes that failed, by kind and error.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.leading = Gauge("tessera_leading", "1 while this replica decides.", registry=self.registry)
        self._breaker_bound = Gauge(
            "tessera_breaker_bound_cards",
            "Most cards that one rule of health takes away; 0 while another replica leads.",
            registry=self.registry,
        )
        self._breaker_cards = Gauge(
            "tessera_breaker_cards",
            "Cards with an error of a rule that asks to take them away: taken, or spared by the breaker.",
            ["rule", "state"],
            registry=self.registry,
        )
        self.fault_evictions = Counter(
            "tessera_fault_evictions",
            "Attempts to evict a pod from a card that must be empty: evicted, blocked, or gone before.",
            ["outcome"],
            registry=self.registry,
        )
        self.decisions = Counter("tessera_decisions", "Pods given slices.", registry=self.registry)
        self.decision_seconds = Histogram(
            "tessera_decision_seconds",
            "Duration of one decision, without any I/O.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.hand_overs = Histogram(
            "tessera_handover_seconds",
            "Time from the decision that found room for a pod that had waited, until its gate was removed.",
            buckets=_HAND_OVER_BUCKETS,
            registry=self.registry,
        )
        self.waits = Histogram(
            "tessera_pod_wait_seconds",
            "Time from the creation of a pod until its gate was removed.",
            buckets=_WAIT_BUCKETS,
            registry=self.registry,
        )
        self.writes = Counter(
            "tessera_api_writes", "Writes that the API server took.", ["kind"], registry=self.registry
        )
        self.failures = Counter(
            "tessera_api_write_failures", "Writes that failed.", ["kind", "error"], registry=self.registry
        )

    def show_breaker(self, bound: int | None, counts: Mapping[tuple[str, str], int]) -> None:
        """Shows the bound of the breaker, and cards by rule and state; ``None`` while another replica leads."""
        self._breaker_bound.set(bound or 0)
        self._breaker_cards.clear()
        for labels, number in counts.items():
            self._breaker_cards.labels(*labels).set(number)
