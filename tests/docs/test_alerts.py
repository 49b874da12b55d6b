"""The example alerts use metrics that exist, and name a next step."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "user-guide.md").read_text(encoding="utf-8")
RULES = yaml.safe_load((ROOT / "examples" / "alerts" / "tessera.yaml").read_text(encoding="utf-8"))
ALERTS = [rule for group in RULES["spec"]["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda each: each["alert"])
def test_an_alert_uses_metrics_that_the_user_guide_lists(alert: dict[str, Any]) -> None:
    names = [name.removesuffix("_count") for name in re.findall(r"\btessera_\w+", alert["expr"])]
    assert names or "kube_node_status_condition" in alert["expr"]
    assert [name for name in names if f"`{name}`" not in GUIDE] == []


@pytest.mark.parametrize("alert", ALERTS, ids=lambda each: each["alert"])
def test_an_alert_has_a_severity_and_a_command_to_run(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"]["summary"].endswith(".")
    assert re.match(r"Run: (tessera|kubectl) ", alert["annotations"]["description"])


def test_alerts_have_different_names() -> None:
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
