"""All generated files of the chart by their path below ``charts/tessera/``."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monitoring.manifests import COMPONENTS, scrape_annotations

from charts import group_rules, notices, rules
from charts.objects import templates, workload
from charts.schema import values_schema
from tessera.cli.install.manifests import AGENT, CONTROLLER, DASHBOARD, MPS_HOST, WEBHOOK
from tessera.doctor.manifests import deploy_folder

#: Where the chart lies in a checkout.
FOLDER = Path(__file__).parent / "tessera"


def generate() -> Mapping[str, str]:
    """Returns the text of each file."""
    return {
        **{f"templates/{name}": text for name, text in templates().items()},
        "values.schema.json": _json(values_schema()),
        "files/workloads.json": _json(
            {name: _arguments(name) for name in (AGENT, CONTROLLER, WEBHOOK, DASHBOARD, MPS_HOST)}
        ),
        "files/notices.json": _json(notices.tables()),
        "files/rules.json": _json({**rules.tables(), "nodeGroups": group_rules.tables()}),
        **{f"files/dashboards/{each.name}": each.read_text(encoding="utf-8") for each in _boards()},
    }


def _boards() -> list[Path]:
    return sorted((deploy_folder() / "monitoring" / "grafana").glob("*.json"))


def _arguments(name: str) -> Mapping[str, Any]:
    """Arguments, environment and metrics port of a workload's container, to which the chart's values add."""
    (container,) = workload(name)["spec"]["template"]["spec"]["containers"]
    return {
        "args": container.get("args", []),
        "env": container.get("env", []),
        "scrape": scrape_annotations(container) if name in COMPONENTS else {},
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, sort_keys=False, ensure_ascii=False) + "\n"
