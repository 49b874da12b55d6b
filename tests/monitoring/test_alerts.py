"""Alerts: each fires for the problem and for nothing else, and has its page."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from monitoring.alerts import ALERTS, Alert
from monitoring.manifests import RUNBOOKS
from monitoring.recordings import RECORDINGS
from tests.monitoring.conftest import Promtool, series

ROOT = Path(__file__).parents[2]
RUNBOOK_PAGES = ROOT / "docs" / "runbooks"
DOCS = "".join(
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("metrics.md", "own-metrics.md", "conditions.md")
)
SEVERITIES = {"info", "warning", "critical"}

HEADINGS = ["What it means", "How to see it", "What to do", "How to see that it is over", "If it comes back"]

Series = Mapping[str, str | float]


class Case(msgspec.Struct, frozen=True):
    """Series that make an alert fire, with the labels that it then has; and series that do not."""

    firing: Series
    labels: Mapping[str, str]
    silent: Series


CARD = 'node="n1", gpu="GPU-1"'
CARD_LABELS = {"node": "n1", "gpu": "GPU-1"}
POD = 'namespace="team", pod="train", gpu="GPU-1"'
POD_LABELS = {"namespace": "team", "pod": "train", "gpu": "GPU-1"}
AGENT = 'job="tessera-agent", instance="10.0.0.1:8082", node="n1"'
AGENT_LABELS = {"job": "tessera-agent", "instance": "10.0.0.1:8082", "node": "n1"}
#: promtool's clock begins at 0, so this is the time of each minute, or the time of the first one.
NOW, NEVER = "0+60x300", 0.0
LEASE = f'{POD}, container="main", kind="whole"'
MIG = f'{CARD}, device="MIG-1", profile="1g.5gb"'

CASES: Mapping[str, Case] = {
    "TesseraGpuUnhealthy": Case(
        {f"tessera_gpu_health{{{CARD}}}": 2},
        CARD_LABELS,
        {f"tessera_gpu_health{{{CARD}}}": 1, f'tessera_gpu_throttled{{{CARD}, reason="hw_thermal"}}': 1},
    ),
    "TesseraCardNeedsReboot": Case(
        {f"tessera_gpu_health{{{CARD}}}": 4}, CARD_LABELS, {f"tessera_gpu_health{{{CARD}}}": 3}
    ),
    "TesseraHealthBreakerOpen": Case(
        {'tessera_breaker_cards{rule="XID 48", state="spared"}': 2},
        {"rule": "XID 48"},
        {
            'tessera_breaker_cards{rule="XID 48", state="spared"}': 0,
            'tessera_breaker_cards{rule="XID 48", state="taken"}': 3,
        },
    ),
    "TesseraGpuThrottled": Case(
        {f'tessera_gpu_throttled{{{CARD}, reason="hw_thermal"}}': 1},
        {**CARD_LABELS, "reason": "hw_thermal"},
        {f'tessera_gpu_throttled{{{CARD}, reason="power_cap"}}': 1},
    ),
    "TesseraGpuHot": Case(
        {'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-1", Hostname="n1"}': 91},
        CARD_LABELS,
        {f"tessera_gpu_temperature_celsius{{{CARD}}}": 80, f"tessera_gpu_memory_temperature_celsius{{{CARD}}}": 90},
    ),
    "TesseraGpuMemoryNearlyFull": Case(
        {
            f"tessera_gpu_memory_size_bytes{{{CARD}}}": 4000,
            f"tessera_gpu_memory_used_bytes{{{CARD}}}": 600,
            f"tessera_mig_memory_size_bytes{{{MIG}}}": 500,
            f"tessera_mig_memory_used_bytes{{{MIG}}}": 499,
        },
        {**CARD_LABELS, "device": "MIG-1", "profile": "1g.5gb"},
        {f"tessera_gpu_memory_size_bytes{{{CARD}}}": 1000, f"tessera_gpu_memory_used_bytes{{{CARD}}}": 900},
    ),
    "TesseraPodMemoryNearLimit": Case(
        {f"tessera_memory_used_bytes{{{POD}}}": 980, f"tessera_memory_limit_bytes{{{POD}}}": 1000},
        POD_LABELS,
        # The limit 0 is that of a pod without a share.
        {f"tessera_memory_used_bytes{{{POD}}}": 980, f"tessera_memory_limit_bytes{{{POD}}}": 0},
    ),
    "TesseraGpuIdleButHeld": Case(
        {f'tessera_pod_gpu_state{{{LEASE}, state="never_used"}}': 1},
        {**POD_LABELS, "container": "main", "kind": "whole", "state": "never_used"},
        {f'tessera_pod_gpu_state{{{LEASE}, state="unknown"}}': 1},
    ),
    "TesseraAgentSilent": Case(
        {f"up{{{AGENT}}}": 0},
        AGENT_LABELS,
        {
            f"up{{{AGENT}}}": 1,
            f"tessera_sample_timestamp_seconds{{{AGENT}}}": NOW,
            'tessera_silent_nodes{node="n1", reason="waits"}': 1,
        },
    ),
    "TesseraConditionFalse": Case(
        {'kube_node_status_condition{node="n1", condition="GpuHealthy", status="false"}': 1},
        {"node": "n1", "condition": "GpuHealthy", "status": "false"},
        {'kube_node_status_condition{node="n1", condition="DiskPressure", status="false"}': 1},
    ),
    "TesseraContainersWithoutSlice": Case(
        {f'tessera_claim_seconds_count{{{AGENT}, outcome="refused"}}': "0+1x300"},
        {"node": "n1", "instance": "10.0.0.1:8082"},
        {f'tessera_claim_seconds_count{{{AGENT}, outcome="ready"}}': "0+1x300"},
    ),
    "TesseraNoLeader": Case({"tessera_leading": 0}, {}, {"tessera_leading": 1}),
    "TesseraPodStarving": Case({"tessera_oldest_wait_seconds": "0+60x300"}, {}, {"tessera_oldest_wait_seconds": 600}),
    "TesseraFragmented": Case(
        {'tessera_pods_waiting{reason="fragmented"}': 1},
        {},
        {'tessera_pods_waiting{reason="full"}': 9, 'tessera_pods_waiting{reason="fragmented"}': 0},
    ),
    "TesseraNodesOverdue": Case(
        {'tessera_startup_overdue_nodes_total{reason="DriverMissing"}': "0+1x300"},
        {"reason": "DriverMissing"},
        {'tessera_startup_overdue_nodes_total{reason="DriverMissing"}': 3},
    ),
    "TesseraProvisioningLoop": Case(
        {'tessera_provisioning_lost_nodes_total{strategy="built"}': "0+1x300"},
        {},
        {
            'tessera_provisioning_lost_nodes_total{strategy="built"}': "0+0x30 1+0x300",
            "tessera_replaced_nodes_total": 9,
        },
    ),
    "TesseraDriverRolloutStopped": Case(
        {'tessera_driver_rollout_stopped{policy="gpus"}': 1},
        {"policy": "gpus"},
        {'tessera_driver_rollout_stopped{policy="gpus"}': 0},
    ),
    "TesseraNextKernelWithoutDriver": Case(
        {'tessera_driver_next_kernel_covered{pool="rhel9", kernel="5.14"}': 0},
        {"pool": "rhel9", "kernel": "5.14"},
        {'tessera_driver_next_kernel_covered{pool="rhel9", kernel="5.14"}': 1},
    ),
}
#: Temperatures that other cards bear.
HOT_FOR_THIS_CARD: Series = {
    f"tessera_gpu_temperature_celsius{{{CARD}}}": 78,
    f"tessera_gpu_slowdown_temperature_celsius{{{CARD}}}": 80,
}
HOT_MEMORY_FOR_THIS_CARD: Series = {
    f"tessera_gpu_memory_temperature_celsius{{{CARD}}}": 86,
    f"tessera_gpu_memory_temperature_limit_celsius{{{CARD}}}": 85,
}
#: Temperatures that are high, and that this card bears.
WARM: Series = {
    f"tessera_gpu_temperature_celsius{{{CARD}}}": 88,
    f"tessera_gpu_slowdown_temperature_celsius{{{CARD}}}": 95,
    f"tessera_gpu_temperature_margin_celsius{{{CARD}}}": 2,
    f"tessera_gpu_memory_temperature_celsius{{{CARD}}}": 99,
    f"tessera_gpu_memory_temperature_limit_celsius{{{CARD}}}": 105,
}
#: A second way to the same alert.
MORE = [
    (
        "TesseraAgentSilent",
        {'tessera_silent_nodes{node="n1", reason="no_agent"}': 1},
        {"node": "n1", "reason": "no_agent"},
    ),
    ("TesseraAgentSilent", {f"up{{{AGENT}}}": 1, f"tessera_sample_timestamp_seconds{{{AGENT}}}": NEVER}, AGENT_LABELS),
    ("TesseraGpuUnhealthy", {f"tessera_gpu_health{{{CARD}}}": 1}, CARD_LABELS),
    ("TesseraGpuHot", {f"tessera_gpu_memory_temperature_celsius{{{CARD}}}": 99}, CARD_LABELS),
    ("TesseraGpuHot", HOT_FOR_THIS_CARD, CARD_LABELS),
    ("TesseraGpuHot", {f"tessera_gpu_temperature_margin_celsius{{{CARD}}}": -2}, CARD_LABELS),
    ("TesseraGpuHot", HOT_MEMORY_FOR_THIS_CARD, CARD_LABELS),
    ("TesseraProvisioningLoop", {"tessera_replaced_nodes_total": "0+1x300"}, {}),
    (
        "TesseraGpuMemoryNearlyFull",
        {f"tessera_gpu_memory_size_bytes{{{CARD}}}": 1000, f"tessera_gpu_memory_used_bytes{{{CARD}}}": 990},
        CARD_LABELS,
    ),
    ("TesseraNoLeader", {"unrelated": 1}, {}),
]
BY_NAME = {each.name: each for each in ALERTS}


def minutes(alert: Alert) -> int:
    """How long its series last: its ``for``, and an hour."""
    return int(alert.hold[:-1]) * (60 if alert.hold.endswith("h") else 1) + 60


def check(alert: Alert, given: Series, labels: Mapping[str, str] | None, at: int | None = None) -> dict[str, Any]:
    """A unit test of one alert after so many minutes; ``labels`` None: it does not fire."""
    expected = []
    if labels is not None:
        rule = alert.rule(RUNBOOKS)
        annotations = {name: fill(text, labels) for name, text in rule["annotations"].items()}
        expected.append({"exp_labels": {**labels, **rule["labels"]}, "exp_annotations": annotations})
    end = minutes(alert) if at is None else at
    test = {"alertname": alert.name, "eval_time": f"{end}m", "exp_alerts": expected}
    return {"input_series": series(given, minutes(alert)), "alert_rule_test": [test]}


def fill(template: str, labels: Mapping[str, str]) -> str:
    """The template of an annotation with its labels, as Prometheus fills it."""
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels.get(found[1], ""), template)


def test_each_alert_has_a_case() -> None:
    assert list(CASES) == list(BY_NAME)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_for_its_problem_only(promtool: Promtool, name: str) -> None:
    """It fires, but not at once; it is silent for what is no problem, and when that is gone."""
    alert, case = BY_NAME[name], CASES[name]
    last = minutes(alert) - 20
    gone = {each: value if isinstance(value, str) else f"{value!r}+0x{last}" for each, value in case.silent.items()}
    tests = [
        check(alert, case.firing, case.labels),
        check(alert, case.firing, None, at=0),
        check(alert, case.silent, None),
    ]
    if name != "TesseraNoLeader":  # the only one that fires for what is absent
        tests.append(check(alert, gone, None))
    promtool.test_rules(*tests)


@pytest.mark.parametrize(("name", "given", "labels"), MORE, ids=[name for name, _, _ in MORE])
def test_an_alert_fires_for_the_same_problem_seen_otherwise(
    promtool: Promtool, name: str, given: Series, labels: Mapping[str, str]
) -> None:
    promtool.test_rules(check(BY_NAME[name], given, labels))


def test_a_card_is_not_hot_below_its_own_limits(promtool: Promtool) -> None:
    promtool.test_rules(check(BY_NAME["TesseraGpuHot"], WARM, None))


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_uses_series_that_the_pages_list(alert: Alert) -> None:
    recorded = {each.name for group in RECORDINGS.values() for each in group}
    assert set(re.findall(r"tessera:[\w:]+", alert.expr)) <= recorded
    names = [name.removesuffix("_count") for name in re.findall(r"\btessera_\w+", alert.expr)]
    known = [name for name in names if f"`{name}`" in DOCS]
    assert names == known
    assert names or "tessera:" in alert.expr or "kube_node_status_condition" in alert.expr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_says_what_is_wrong_and_what_to_run(alert: Alert) -> None:
    assert alert.severity in SEVERITIES
    assert re.fullmatch(r"[1-9]\d*[mh]", alert.hold)
    assert alert.summary.endswith(".")
    assert re.match(r"Run: (tessera|kubectl) ", alert.description)
    labels = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    shown = {label for name, _, given in MORE if name == alert.name for label in given} | CASES[
        alert.name
    ].labels.keys()
    assert labels <= shown


def test_each_alert_has_its_page_and_each_page_its_alert() -> None:
    assert {page.stem for page in RUNBOOK_PAGES.glob("*.md")} - {"README"} == set(BY_NAME)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_a_page_says_what_the_alert_means_how_to_look_and_what_to_do(alert: Alert) -> None:
    page = (RUNBOOK_PAGES / f"{alert.name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {alert.name}\n")
    assert re.findall(r"^## (.*)$", page, re.MULTILINE) == HEADINGS
    assert f"Severity {alert.severity}, after {alert.hold}." in page


def test_the_list_of_pages_has_every_alert_by_severity() -> None:
    lines = re.findall(r"^- (\w+): (.*)$", (RUNBOOK_PAGES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed = {severity: re.findall(r"\[(\w+)\]\(\1\.md\)", names) for severity, names in lines}
    assert listed == {
        severity: [name for name, alert in BY_NAME.items() if alert.severity == severity] for severity in SEVERITIES
    }


@pytest.mark.parametrize(("name", "need"), [("TesseraGpuUnhealthy", 2), ("TesseraCardNeedsReboot", 4)])
def test_an_update_of_the_agent_does_not_resolve_the_alert_of_a_card(promtool: Promtool, name: str, need: int) -> None:
    """The pod before ends, and the pod after it is scraped two minutes later."""
    given = {
        f'tessera_gpu_health{{{CARD}, pod="before"}}': f"{need}+0x30 stale",
        f'tessera_gpu_health{{{CARD}, pod="after"}}': f"_x32 {need}+0x60",
    }
    promtool.test_rules(*(check(BY_NAME[name], given, CARD_LABELS, at=at) for at in (29, 31, 32, 33, 34, 36, 40)))
