"""All generated files by their path below ``deploy/monitoring/``."""

from collections.abc import Mapping
from pathlib import Path

from monitoring.boards import BOARDS
from monitoring.boards.grafana import to_json
from monitoring.manifests import (
    COMPONENTS,
    RUNBOOKS,
    annotation_component,
    config_maps,
    metrics_reader,
    pod_monitors,
    prometheus,
    prometheus_rule,
    rules,
    to_yaml,
)
from tessera.doctor.manifests import install_manifests

#: Where the files lie in a checkout; they ship with the manifests.
FOLDER = Path(__file__).parents[1] / "deploy" / "monitoring"


def generate(runbooks: str = RUNBOOKS) -> Mapping[str, str]:
    """Returns the text of each file.

    Args:
        runbooks: folder with the pages of alerts: its URL, or its path in a checkout.
    """
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["prometheus-rule.yaml", "metrics-reader.yaml", "pod-monitors.yaml"],
    }
    boards = {f"{board.uid}.json": to_json(board) for board in BOARDS}
    workloads = [
        each
        for each in install_manifests()
        if each["metadata"]["name"] in COMPONENTS and "template" in each.get("spec", {})
    ]
    return {
        "annotations/kustomization.yaml": to_yaml(annotation_component(workloads)),
        **{f"grafana/{name}": text for name, text in boards.items()},
        "grafana/kustomization.yaml": to_yaml(config_maps(list(boards))),
        "prometheus/kustomization.yaml": to_yaml(kustomization),
        "prometheus/prometheus-rule.yaml": to_yaml(prometheus_rule(runbooks)),
        "prometheus/metrics-reader.yaml": to_yaml(*metrics_reader()),
        "prometheus/pod-monitors.yaml": to_yaml(*pod_monitors()),
        "prometheus/rules.yaml": to_yaml(rules(runbooks)),
        "prometheus/prometheus.yaml": to_yaml(prometheus()),
    }
