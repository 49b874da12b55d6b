"""GPU-hours from a Prometheus that scrapes the agents.

Rules:

- A quantity is the sum of samples at even steps of the window, so allocated, active, idle, free and unavailable hours
  come from the same moments and reconcile. A lease shorter than a step is seen by chance.
- Steps without any sample are in no sum. Their part of the window is told in a note.
- A pod's user or label comes from ``kube_pod_labels`` of kube-state-metrics, if that has it.
- Cordoned nodes are not known here: their free cards count as free.
"""

import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera.api.nodes.health import TAKEN
from tessera.errors import UserError
from tessera.limits.usage import PROMETHEUS_ANSWER
from tessera.text import one_line, percent
from tessera.usage.record import UNKNOWN, CardSeconds, LeaseSeconds, UsageKey, short_name
from tessera.usage.report import Grouping, UsageTotals

#: Gets the answer of ``/api/v1/query`` for these parameters.
Query = Callable[[Mapping[str, str]], Awaitable[bytes]]
#: Seconds of a step at least and at most; a sample counts for five minutes in Prometheus.
_SHORTEST, _LONGEST = 30, 300
#: Steps of a window, unless they get too long.
_STEPS = 2000

_INFO = "max by (gpu, model) (tessera_gpu_info)"
#: Labels of a lease.
_LEASE = "namespace, pod, uid, container, gpu, device"
_SHARE = f"max by ({_LEASE}) (tessera_pod_gpu_share_ratio)"
_TAKEN = f'max by (gpu) (tessera_gpu_health_state{{state=~"{"|".join(sorted(TAKEN))}"}})'
_FREE_PART = f"(clamp_min({_INFO} - on (gpu) group_left () sum by (gpu) ({_SHARE}), 0) or {_INFO})"
CAPACITY = f"sum by (model) ({_INFO})"
UNAVAILABLE = f"sum by (model) ({_FREE_PART} and on (gpu) {_TAKEN})"
#: Cards of which only the state of their health is known.
LOST = f"count ({_TAKEN} unless on (gpu) {_INFO})"
SIMULATED = 'count (tessera_gpu_info{simulated="true"})'


def held(label: str = "") -> str:
    """The expression of cards held by namespace and model, and by the value of a pod's label."""
    return _owned(_SHARE, label)


def in_states(states: str, label: str = "") -> str:
    """The same of leases in these states, a regular expression."""
    return _owned(f'({_SHARE} and on ({_LEASE}) tessera_pod_gpu_state{{state=~"{states}"}})', label)


def _owned(leases: str, label: str) -> str:
    with_model = f"{leases} * on (gpu) group_left (model) {_INFO}"
    if not label:
        return f"sum by (namespace, model) ({with_model})"
    series = label_series(label)
    values = f'label_replace(kube_pod_labels{{{series}!=""}}, "owner", "$1", "{series}", "(.*)")'
    known = f"({with_model}) * on (namespace, pod) group_left (owner) max by (namespace, pod, owner) ({values})"
    return f"sum by (namespace, model, owner) (({known}) or on ({_LEASE}) ({with_model}))"


def label_series(key: str) -> str:
    """The label of ``kube_pod_labels`` that has the values of a pod's label."""
    return f"label_{re.sub('[^a-zA-Z0-9_]', '_', key)}"


class PrometheusSource:
    """A Prometheus.

    Args:
        query: asks it.
        name: the Prometheus in messages.
        keys: the pods' label for the groupings user and label.
    """

    def __init__(self, query: Query, name: str, keys: Mapping[Grouping, str]) -> None:
        self._query = query
        self._name = name
        self._keys = keys

    async def totals(self, begin: float, end: float, grouping: Grouping) -> UsageTotals:
        """See :meth:`tessera.usage.sources.UsageSource.totals`."""
        seconds = max(1, round(end - begin))
        step = min(_LONGEST, max(_SHORTEST, seconds // _STEPS // 30 * 30))
        key = self._keys.get(grouping, "")

        async def total(expression: str) -> Sequence[tuple[Mapping[str, str], float]]:
            found = await self._ask(f"sum_over_time(({expression})[{seconds}s:{step}s])", end)
            return [(labels, value * step) for labels, value in found]

        cards = await self._cards(total)
        if not cards:
            raise UserError(
                f"{self._name} has no series tessera_gpu_info in this window: let it scrape the agents"
                " (kubectl apply -k deploy/monitoring/prometheus), or read the controller's record: leave --prometheus"
                " out"
            )
        if key and not await self._ask(f'count (kube_pod_labels{{{label_series(key)}!=""}})', end):
            raise UserError(
                f"{self._name} has no series kube_pod_labels with the label {label_series(key)}: let"
                f" kube-state-metrics show the label (--metric-labels-allowlist=pods=[{key}]), or read the"
                " controller's record: leave --prometheus out"
            )
        rows: dict[UsageKey, LeaseSeconds] = {}
        for expression, name in (
            (held(key), "held"),
            (in_states("busy", key), "active"),
            (in_states("never_used|idle|resident", key), "idle"),
        ):
            for labels, value in await total(expression):
                amount = rows.setdefault(_key(labels, grouping), LeaseSeconds())
                setattr(amount, name, getattr(amount, name) + value)
        counted = await self._ask(f"count_over_time((count (tessera_gpu_info))[{seconds}s:{step}s])", end)
        return UsageTotals(
            source=self._name,
            begin=begin,
            end=end,
            cards=cards,
            rows=rows,
            label=key if grouping is Grouping.LABEL else "",
            simulated=bool(await self._ask(SIMULATED, end)),
            notes=_notes(sum(value for _, value in counted) * step / seconds),
        )

    async def _cards(
        self, total: Callable[[str], Awaitable[Sequence[tuple[Mapping[str, str], float]]]]
    ) -> dict[str, CardSeconds]:
        cards: dict[str, CardSeconds] = {}
        for labels, value in await total(CAPACITY):
            cards.setdefault(_model(labels), CardSeconds()).capacity += value
        for labels, value in await total(UNAVAILABLE):
            cards.setdefault(_model(labels), CardSeconds()).unavailable += value
        for _, value in await total(LOST):
            cards.setdefault(UNKNOWN, CardSeconds()).add(CardSeconds(capacity=value, unavailable=value))
        return cards

    async def _ask(self, expression: str, at: float) -> Sequence[tuple[Mapping[str, str], float]]:
        """The samples of an expression: labels and value.

        Raises:
            UserError: the answer is none of a Prometheus, or an error.
        """
        body = await self._query({"query": expression, "time": f"{at:.3f}"})
        if len(body) > PROMETHEUS_ANSWER:
            raise UserError(f"{self._name}: its answer has {len(body):,} bytes; {PROMETHEUS_ANSWER} are read")
        try:
            answer = msgspec.json.decode(body, type=_Answer)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise UserError(f"{self._name} does not answer as a Prometheus does: {one_line(error)}") from None
        if answer.status != "success":
            raise UserError(f"{self._name}: {one_line(answer.error)}")
        return [(each.metric, _number(each.value)) for each in answer.data.result]


class _Sample(msgspec.Struct):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct):
    result: list[_Sample] = []


class _Answer(msgspec.Struct):
    status: str
    data: _Data = msgspec.field(default_factory=_Data)
    error: str = ""


def _number(value: tuple[float, Any]) -> float:
    try:
        found = float(value[1])
    except ValueError:
        return 0.0
    return found if math.isfinite(found) and found >= 0 else 0.0


def _model(labels: Mapping[str, str]) -> str:
    return short_name(labels.get("model", UNKNOWN))


def _key(labels: Mapping[str, str], grouping: Grouping) -> UsageKey:
    owner = short_name(labels.get("owner", ""))
    return UsageKey(
        short_name(labels.get("namespace", UNKNOWN)),
        owner if grouping is Grouping.USER else "",
        owner if grouping is Grouping.LABEL else "",
        _model(labels),
    )


def _notes(covered: float) -> tuple[str, ...]:
    if covered >= 0.995:
        return ()
    return (f"Prometheus has samples for {percent(covered, 1)} of the window; the rest is in no row",)
