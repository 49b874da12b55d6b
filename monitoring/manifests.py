"""The rules as files for Prometheus and its operator, and how Prometheus finds Tessera's pods."""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from monitoring.alerts import ALERTS
from monitoring.recordings import RECORDINGS
from tessera.access.page_reader import AGENT_AUDIENCE, CONTROLLER_AUDIENCE

NAMESPACE = "tessera-system"
#: Component -> the port's name, of the pods that show metrics.
COMPONENTS = ("tessera-agent", "tessera-controller", "tessera-webhook")
#: Those whose metrics name pods or nodes, so that a reader needs a token: component -> the audience of its tokens.
GUARDED = {"tessera-agent": AGENT_AUDIENCE, "tessera-controller": CONTROLLER_AUDIENCE}
#: The account that the Prometheus operator's monitors use, its Secret, and the role that it has.
METRICS_ACCOUNT, METRICS_ROLE = "tessera-metrics", "tessera-metrics-reader"
#: Where a Prometheus in the cluster has a token for each audience, which the API server itself does not accept.
TOKENS = "/var/run/secrets/tessera.dev"
#: Labels of a series that name the holder of a card.
HOLDER = ("namespace", "pod", "container")
#: A series of dcgm-exporter's names, and the value of one of these labels.
_HELD = "DCGM_.+;(.+)"
#: Where the pages of the alerts lie in a checkout. An installation may give the URL of a copy instead.
RUNBOOKS = "docs/runbooks"
_HEADER = "# Written by `python -m monitoring`; change the source in monitoring/ instead.\n"

Document = Mapping[str, Any]


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def to_yaml(*documents: Document) -> str:
    """Returns the documents as one text, always the same."""
    return _HEADER + yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=10_000)


def rules(runbooks: str = RUNBOOKS) -> Document:
    """Returns a file of rules for Prometheus."""
    groups = [
        {"name": name, "rules": [{"record": each.name, "expr": each.expr} for each in recordings]}
        for name, recordings in RECORDINGS.items()
    ]
    alerts = [each.rule(runbooks) for each in ALERTS]
    return {"groups": [*groups, {"name": "tessera-alerts", "rules": alerts}]}


def prometheus_rule(runbooks: str = RUNBOOKS) -> Document:
    """Returns the rules for the Prometheus operator."""
    return {**_head("monitoring.coreos.com/v1", "PrometheusRule", "tessera"), "spec": rules(runbooks)}


def scrape_annotations(container: Document) -> Mapping[str, str]:
    """Returns the annotations by which a Prometheus of common configuration finds the metrics of a pod.

    Args:
        container: the pod's container, with a port ``http``.
    """
    (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == "http")
    return {"prometheus.io/scrape": "true", "prometheus.io/port": str(port), "prometheus.io/path": "/metrics"}


def annotation_component(workloads: Sequence[Document]) -> Document:
    """Returns a kustomize component that adds these annotations to the pods of Tessera's workloads."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1alpha1",
        "kind": "Component",
        "patches": [{"patch": yaml.safe_dump(_annotated(each), sort_keys=False)} for each in workloads],
    }


def _annotated(workload: Document) -> Document:
    template = workload["spec"]["template"]
    (container,) = template["spec"]["containers"]
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": {key: workload["metadata"][key] for key in ("name", "namespace")},
        "spec": {"template": {"metadata": {"annotations": dict(scrape_annotations(container))}}},
    }


def pod_monitors() -> list[Document]:
    """Returns the scrape of each component for the Prometheus operator.

    Series keep their own labels ``namespace``, ``pod`` and ``container``, which name the holder of a card. So the
    target has none of these labels; it has the node's name. The series of dcgm-exporter's names have the holder also in
    ``exported_namespace``, ``exported_pod`` and ``exported_container``, as after a scrape of dcgm-exporter with the
    settings of its chart, which does not honor labels.
    """
    return [
        {
            **_head("monitoring.coreos.com/v1", "PodMonitor", component),
            "spec": {
                "selector": {"matchLabels": {"app.kubernetes.io/name": component}},
                "podMetricsEndpoints": [
                    {
                        "port": "http",
                        **({"authorization": {"credentials": _CREDENTIALS}} if component in GUARDED else {}),
                        "honorLabels": True,
                        "relabelings": [
                            {"targetLabel": "job", "replacement": component},
                            {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"},
                            {"action": "labeldrop", "regex": "namespace|pod|container"},
                        ],
                        "metricRelabelings": [
                            {"sourceLabels": ["__name__", label], "regex": _HELD, "targetLabel": f"exported_{label}"}
                            for label in HOLDER
                        ],
                    }
                ],
            },
        }
        for component in COMPONENTS
    ]


_CREDENTIALS: Document = {"name": METRICS_ACCOUNT, "key": "token"}


def metrics_reader() -> list[Document]:
    """Returns the account of the monitors, with a Secret in which Kubernetes writes a token of it."""
    labels = {"app.kubernetes.io/part-of": "tessera"}
    rbac = "rbac.authorization.k8s.io"
    named = {"name": METRICS_ACCOUNT, "namespace": NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {**named, "labels": labels}},
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                **named,
                "labels": labels,
                "annotations": {"kubernetes.io/service-account.name": METRICS_ACCOUNT},
            },
            "type": "kubernetes.io/service-account-token",
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": METRICS_ACCOUNT, "labels": labels},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": METRICS_ROLE},
            "subjects": [{"kind": "ServiceAccount", **named}],
        },
    ]


def prometheus() -> Document:
    """Returns a configuration for a Prometheus without operator, in the cluster."""
    discovery = {"role": "pod", "namespaces": {"names": [NAMESPACE]}}
    label = "__meta_kubernetes_pod_label_app_kubernetes_io_name"
    return {
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {
                "job_name": component,
                **(
                    {"authorization": {"credentials_file": f"{TOKENS}/{GUARDED[component]}"}}
                    if component in GUARDED
                    else {}
                ),
                "honor_labels": True,
                "kubernetes_sd_configs": [discovery],
                "relabel_configs": [
                    {"source_labels": [label], "regex": component, "action": "keep"},
                    {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": "http", "action": "keep"},
                    {"source_labels": ["__meta_kubernetes_pod_node_name"], "target_label": "node"},
                ],
                "metric_relabel_configs": [
                    {"source_labels": ["__name__", label], "regex": _HELD, "target_label": f"exported_{label}"}
                    for label in HOLDER
                ],
            }
            for component in COMPONENTS
        ],
    }


def config_maps(boards: Sequence[str]) -> Document:
    """Returns the kustomization that makes a ConfigMap of each board's file, as Grafana's sidecar looks for them."""
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAMESPACE,
        "generatorOptions": {
            "disableNameSuffixHash": True,
            "labels": {"app.kubernetes.io/part-of": "tessera", "grafana_dashboard": "1"},
        },
        "configMapGenerator": [{"name": name.removesuffix(".json"), "files": [name]} for name in boards],
    }


def _head(version: str, kind: str, name: str) -> dict[str, Any]:
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "tessera"}
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": labels},
    }
