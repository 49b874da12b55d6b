"""What the processes of a running lab print, as series for promtool."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from monitoring.alerts import ALERTS
from monitoring.recordings import RECORDINGS
from prometheus_client.parser import text_string_to_metric_families
from tests.support.running_lab import RunningLab

#: Ports of the pods by the label ``app.kubernetes.io/name``.
PORTS = {"tessera-agent": 8082, "tessera-controller": 8081, "tessera-webhook": 8081}
#: Names of all series that rules and alerts use; others are left out of promtool's input.
USED = frozenset(
    name
    for expr in (*(each.expr for each in ALERTS), *(each.expr for group in RECORDINGS.values() for each in group))
    for name in re.findall(r"[a-zA-Z_]\w+", expr)
)

Values = dict[str, float]


def scrape(lab: RunningLab) -> Values:
    """Scrapes all processes as the PodMonitors do, and states conditions of nodes as kube-state-metrics does."""
    values: Values = {}
    token = lab.page_token()
    for pod in lab.get("pods", "-n", "tessera-system")["items"]:
        app = pod["metadata"]["labels"].get("app.kubernetes.io/name")
        if app in PORTS:
            instance = f"{pod['status'].get('podIP', 'none')}:{PORTS[app]}"
            target = {"job": app, "instance": instance, "node": pod["spec"].get("nodeName", "")}
            status, text = lab.read_page(f"http://{instance}/metrics", token)
            values[series("up", target)] = float(status == 200)
            shown = samples(text) if status == 200 else ()
            values |= {series(name, {**target, **labels}): value for name, labels, value in shown}
    for node in lab.get("nodes")["items"]:
        for each in node["status"].get("conditions", ()):
            labels = {"node": node["metadata"]["name"], "condition": each["type"], "status": each["status"].lower()}
            values[series("kube_node_status_condition", labels)] = 1.0
    return values


def samples(text: str) -> Iterable[tuple[str, Mapping[str, str], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in USED:
                yield sample.name, sample.labels, sample.value


def series(name: str, labels: Mapping[str, str]) -> str:
    shown = ", ".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{shown}}}"


#: Minutes that the earlier and the later scrape count as. Most of a window of 15 minutes has the later one.
EARLIER, LATER = 2, 8


def over_time(before: Values, after: Values) -> Sequence[Mapping[str, Any]]:
    """The series of both scrapes, one after the other; a series that is gone ends at once."""
    return [
        {"series": name, "values": f"{_spell(before.get(name), EARLIER)} {_spell(after.get(name), LATER)}"}
        for name in sorted({*before, *after})
    ]


def _spell(value: float | None, minutes: int) -> str:
    return f"stale _x{minutes - 1}" if value is None else f"{value!r}x{minutes - 1}"


def expectation(before: Values, after: Values, alerts: Mapping[str, bool]) -> Mapping[str, Any]:
    """A unit test that each alert's expression, without its ``for``, has a value exactly if that is expected.

    Args:
        before: an earlier scrape.
        after: a later scrape.
        alerts: by name of the alert, true if it has to fire.
    """
    return {
        "input_series": over_time(before, after),
        "promql_expr_test": [
            {
                "expr": f"(count({alert.expr}) > bool 0) or vector(0)",
                "eval_time": f"{EARLIER + LATER - 1}m",
                "exp_samples": [{"labels": "{}", "value": float(alerts[alert.name])}],
            }
            for alert in ALERTS
            if alert.name in alerts
        ],
    }
