"""The templates of the objects in ``deploy/``: their YAML, with the user's values in their places."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from monitoring.alerts import HOT, HOT_MEMORY
from monitoring.manifests import RUNBOOKS

from charts.holes import block, hole, write
from tessera.api.names import CLAIM_DRIVERS, DEVICE_ACCESS_POLICY, INSTASLICE_NAMESPACE
from tessera.cli.install.apply import CERTIFICATES, OPENSHIFT
from tessera.cli.install.apply import DASHBOARD as DASHBOARD_FILE
from tessera.cli.install.manifests import (
    AGENT,
    BINDING_KIND,
    CONFIG_ROLE,
    CONTROLLER,
    DASHBOARD,
    DRIVER_VOLUME,
    MPS_HOST,
    MPS_MEMORY_VOLUME,
    MPS_VOLUME,
    POD_RESOURCES_VOLUME,
    PULL_SECRETS_ROLE,
    WEBHOOK,
)
from tessera.cli.install.variants import INJECT, POD_SECURITY_LABEL, reading_rules
from tessera.doctor.manifests import deploy_folder
from tessera.dra.requests import GUARD
from tessera.kube.resources.meta import FORMAT_ANNOTATION

Manifest = dict[str, Any]

#: The condition under which a file of ``deploy/`` is rendered; files that are not named always are.
CONDITIONS: Mapping[str, str] = {
    "crds/instaslices.yaml": ".Values.tessera.crds.install",
    "crds/queues.yaml": ".Values.tessera.crds.install",
    "flow.yaml": ".Values.tessera.flowSchemas",
    "network.yaml": ".Values.tessera.networkPolicy.enabled",
    "policies/agent.yaml": ".Values.tessera.policies.agents",
    "policies/driver.yaml": ".Values.tessera.policies.drivers",
    "policies/namespaces.yaml": ".Values.tessera.policies.namespaces",
    "policies/pins.yaml": ".Values.tessera.policies.pins",
    "policies/pods.yaml": 'ne .Values.tessera.deviceAccess.action "off"',
    "monitoring/prometheus/metrics-reader.yaml": ".Values.tessera.monitoring.podMonitors",
    "monitoring/prometheus/pod-monitors.yaml": ".Values.tessera.monitoring.podMonitors",
    "monitoring/prometheus/prometheus-rule.yaml": ".Values.tessera.monitoring.prometheusRule",
    "options/evict.yaml": 'or .Values.tessera.agent.migEvict (eq .Values.tessera.agent.memoryLimits "evict")',
    "options/claims.yaml": ".Values.tessera.claims.driver",
    "options/replace.yaml": "gt (int .Values.tessera.controller.replaceFailed) 0",
    f"options/{CERTIFICATES}": ".Values.tessera.webhook.certManager.enabled",
    f"options/{DASHBOARD_FILE}": ".Values.tessera.dashboard.enabled",
    f"options/{OPENSHIFT}": 'eq (include "tessera.openshift" .) "true"',
}
#: Workloads by the key of their values.
WORKLOADS: Mapping[str, str] = {
    CONTROLLER: "controller",
    WEBHOOK: "webhook",
    AGENT: "agent",
    DASHBOARD: "dashboard",
    MPS_HOST: "mps",
}
#: Workloads whose affinity the values may replace; that of the others says on which nodes Tessera has cards.
_WITH_AFFINITY = frozenset({"controller", "webhook", "dashboard"})
_ACTIONS = '(ternary (list "Warn" "Audit") (list "Deny") (eq .Values.tessera.deviceAccess.action "warn"))'
#: Volumes of the agent whose folder the values may move, with the settings that have the folder.
_MOVED = {
    DRIVER_VOLUME: "driverRoot",
    MPS_VOLUME: "mpsRoot",
    MPS_MEMORY_VOLUME: "mpsMemory",
    POD_RESOURCES_VOLUME: "podResources",
}
_KEEP = {"helm.sh/resource-policy": "keep"}


def objects_of(file: str) -> list[Manifest]:
    """The objects of a file of ``deploy/``."""
    return [
        each for each in yaml.load_all((deploy_folder() / file).read_text(encoding="utf-8"), yaml.CSafeLoader) if each
    ]


def base_files() -> list[str]:
    """The files of ``deploy/`` that become templates, in their order."""
    kustomization = yaml.load((deploy_folder() / "kustomization.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    options: Sequence[Path] = sorted((deploy_folder() / "options").glob("*.yaml"))
    monitoring = (
        f"monitoring/prometheus/{name}.yaml" for name in ("metrics-reader", "pod-monitors", "prometheus-rule")
    )
    named = (f"options/{each.name}" for each in options)
    components = (f"options/{each}" for each in (CERTIFICATES, OPENSHIFT, DASHBOARD_FILE))
    base = [each for each in kustomization["resources"] if not each.startswith("options/")]
    return [*base, *named, *components, *monitoring]


def templates() -> Mapping[str, str]:
    """The text of each template by its name."""
    return {file.replace("/", "-"): _HEADER.format(file=file) + _template(file) for file in base_files()}


_HEADER = '{{{{- /* Written by "python -m charts" from deploy/{file}. */ -}}}}\n'


def _template(file: str) -> str:
    parts = [_conditional(_own_condition(each), write([_changed(each)])) for each in objects_of(file) if _stays(each)]
    return _conditional(CONDITIONS.get(file, ""), "".join(parts))


def _conditional(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def _stays(manifest: Manifest) -> bool:
    """False for the objects that templates/config.yaml makes: the right to read the ConfigMaps that the values name."""
    return bool(manifest["metadata"]["name"] != CONFIG_ROLE)


def _own_condition(manifest: Manifest) -> str:
    name = manifest["metadata"]["name"]
    if manifest["kind"] == "Namespace":  # Helm itself makes the namespace of a release
        return f'ne .Release.Namespace "{name}"'
    if manifest["kind"] == "DeviceClass":
        driver = next(each for each in CLAIM_DRIVERS if f"'{each}'" in str(manifest["spec"]))
        return f'eq .Values.tessera.claims.driver "{driver}"'
    if manifest["kind"] == "ResourceQuota":
        return ".Values.tessera.criticalPodsQuota"
    if (manifest["kind"], name) == ("NetworkPolicy", DASHBOARD):
        return ".Values.tessera.networkPolicy.enabled"
    if manifest["kind"] == "PodDisruptionBudget":
        return ".Values.tessera.webhook.podDisruptionBudget"
    if manifest["kind"] in {"Certificate", "Issuer"} and (manifest["kind"], name) != ("Certificate", WEBHOOK):
        return "not .Values.tessera.webhook.certManager.issuer.name"
    if manifest["kind"] == "CustomResourceDefinition" and manifest["spec"]["group"] == "nvidia.com":
        return f'eq (include "tessera.crd.ours" (list . "{name}")) "true"'
    return ""


def _changed(manifest: Manifest) -> Manifest:
    changed = copy.deepcopy(manifest)
    metadata = changed["metadata"]
    labels = metadata.setdefault("labels", {})
    labels["app.kubernetes.io/part-of"] = "tessera"
    labels[block('include "tessera.labels" .')] = None
    kind, name = changed["kind"], metadata["name"]
    if POD_SECURITY_LABEL in labels:
        labels[block(f'include "tessera.podSecurity" (list . "{labels.pop(POD_SECURITY_LABEL)}")')] = None
    if kind in {"PodMonitor", "PrometheusRule"}:
        labels[block('include "tessera.extra" .Values.tessera.monitoring.labels')] = None
    if kind == "CustomResourceDefinition":
        own = metadata["annotations"][FORMAT_ANNOTATION]
        checked = hole(f'include "tessera.format" (list "{name}" "{own}") | quote')
        metadata["annotations"] = {**metadata["annotations"], FORMAT_ANNOTATION: checked}
    # Users' pods may be in instaslice-system; the Job of templates/removal.yaml deletes it if nothing is.
    if kind == "CustomResourceDefinition" or (kind, name) == ("Namespace", INSTASLICE_NAMESPACE):
        metadata["annotations"] = {**metadata.get("annotations", {}), **_KEEP}
    if kind == "DeviceClass":
        changed["spec"]["selectors"][1] = block(f'include "tessera.claims.guard" (list . "{GUARD}")')
    if name in WORKLOADS and kind in {"Deployment", "DaemonSet"}:
        _change_workload(changed, WORKLOADS[name])
    if name == WEBHOOK and _certificate_rights(changed):
        _change_webhook_rights(changed)
    for (kind_of, name_of), change in _CHANGES.items():
        if (kind, name) == (kind_of, name_of):
            change(changed)
    return changed


def _certificate_rights(manifest: Manifest) -> bool:
    """True for the Roles whose rules depend on who makes the webhook's certificate."""
    rules = manifest.get("rules") or []
    return manifest["kind"] in {"Role", "ClusterRole"} and reading_rules(rules) != rules


def _change_workload(manifest: Manifest, key: str) -> None:
    spec, values = manifest["spec"], f".Values.tessera.{key}"
    template = spec["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    if "replicas" in spec:
        spec["replicas"] = hole(f"{values}.replicas")
    template["metadata"]["labels"][block(f'include "tessera.extra" {values}.podLabels')] = None
    template["metadata"][block(f'include "tessera.annotations" (list . "{key}")')] = None
    if "priorityClassName" in pod:
        pod["priorityClassName"] = hole(f"{values}.priorityClassName | quote")
    else:
        pod[block(f'include "tessera.optional" (dict "priorityClassName" {values}.priorityClassName)')] = None
    if key in _WITH_AFFINITY:
        usual = json.dumps(json.dumps(pod.pop("affinity", {})))
        chosen = f"({values}.affinity | default (fromJson {usual}))"
        pod[block(f'include "tessera.optional" (dict "affinity" {chosen})')] = None
    pod.pop("tolerations", None)
    pod[
        block(
            f'include "tessera.optional" (dict "tolerations" {values}.tolerations "nodeSelector" {values}.nodeSelector'
            ' "imagePullSecrets" .Values.tessera.image.pullSecrets)'
        )
    ] = None
    container["image"] = hole('include "tessera.image" . | quote')
    container[block('include "tessera.optional" (dict "imagePullPolicy" .Values.tessera.image.pullPolicy)')] = None
    container["resources"] = hole(f"toJson {values}.resources")
    container["args"] = hole(f'include "tessera.{key}.args" .')


def _change_agent(manifest: Manifest) -> None:
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    manifest["spec"]["updateStrategy"] = hole("toJson .Values.tessera.agent.updateStrategy")
    container["env"] = hole('include "tessera.agent.env" .')
    container["volumeMounts"].append(block('include "tessera.claims.mounts" .'))
    pod["volumes"].append(block('include "tessera.claims.volumes" .'))
    _move_folders(manifest)


def _move_folders(manifest: Manifest) -> None:
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for volume in (each for each in pod["volumes"] if isinstance(each, dict)):
        if volume["name"] in _MOVED:
            usual = volume["hostPath"]["path"]
            volume["hostPath"]["path"] = _folder(_MOVED[volume["name"]], usual)
    for mount in (each for each in container["volumeMounts"] if isinstance(each, dict)):
        if mount["name"] in {DRIVER_VOLUME, POD_RESOURCES_VOLUME}:
            mount["mountPath"] = _folder(_MOVED[mount["name"]], mount["mountPath"])


def _folder(setting: str, usual: str) -> str:
    return hole(f'include "tessera.folder" (list . "{setting}" "{usual}")')


def _change_controller(manifest: Manifest) -> None:
    pod = manifest["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container[block('include "tessera.authorities.mount" .')] = None
    pod[block('include "tessera.authorities.volume" .')] = None


def _change_pull_secrets(manifest: Manifest) -> None:
    (rule,) = manifest["rules"]
    names = " ".join(f'"{each}"' for each in rule["resourceNames"])
    rule["resourceNames"] = hole(f'include "tessera.pullSecrets" (list . (list {names}))')


def _change_certificate(manifest: Manifest) -> None:
    usual = json.dumps(manifest["spec"]["issuerRef"])
    manifest["spec"]["issuerRef"] = hole(f'include "tessera.issuer" (list . {json.dumps(usual)})')


def _change_webhook_configuration(manifest: Manifest) -> None:
    ((key, value),) = INJECT.items()
    annotations = f'(dict "annotations" (dict "{key}" "{value}"))'
    shown = f'include "tessera.byCertManager" (list . {annotations})'
    manifest["metadata"][block(shown)] = None


def _change_webhook_rights(manifest: Manifest) -> None:
    """The rules for the webhook's own certificate, or those with cert-manager."""
    rules = manifest["rules"]
    own, by_cert_manager = (json.dumps(json.dumps(each)) for each in (rules, reading_rules(rules)))
    manifest["rules"] = hole(f"ternary {by_cert_manager} {own} .Values.tessera.webhook.certManager.enabled")


def _change_binding(manifest: Manifest) -> None:
    spec = manifest["spec"]
    spec["validationActions"] = hole(f"toJson {_ACTIONS}")
    for expression in spec["matchResources"]["namespaceSelector"]["matchExpressions"]:
        if expression["key"] == "kubernetes.io/metadata.name":
            names = " ".join(f'"{each}"' for each in expression["values"])
            expression["values"] = hole(
                f"concat (list {names}) .Values.tessera.deviceAccess.namespaces | uniq | sortAlpha | toJson"
            )


def _change_rules(manifest: Manifest) -> None:
    for group in manifest["spec"]["groups"]:
        for annotations in (rule["annotations"] for rule in group["rules"] if "alert" in rule):
            page = annotations["runbook_url"].removeprefix(f"{RUNBOOKS}/")
            folder = '(trimSuffix "/" .Values.tessera.monitoring.runbooks)'
            annotations["runbook_url"] = hole(f'printf "%s/{page}" {folder} | quote')
        for rule in (rule for rule in group["rules"] if rule.get("alert") == "TesseraGpuHot"):
            for degrees, value in ((HOT, "hotCelsius"), (HOT_MEMORY, "hotMemoryCelsius")):
                number = hole(f".Values.tessera.monitoring.{value}")
                rule["expr"] = rule["expr"].replace(f"> {degrees}", f"> {number}")


def _change_webhook_network(manifest: Manifest) -> None:
    manifest["spec"]["ingress"][0][block('include "tessera.webhook.from" .')] = None


def _change_page_service(manifest: Manifest) -> None:
    manifest["spec"]["ports"].append(block('include "tessera.dashboard.kedaPort" .'))


def _change_page_network(manifest: Manifest) -> None:
    manifest["spec"]["ingress"].append(block('include "tessera.dashboard.kedaIngress" .'))


_CHANGES: Mapping[tuple[str, str], Callable[[Manifest], None]] = {
    ("DaemonSet", AGENT): _change_agent,
    ("DaemonSet", MPS_HOST): _move_folders,
    ("Deployment", CONTROLLER): _change_controller,
    ("Role", PULL_SECRETS_ROLE): _change_pull_secrets,
    (BINDING_KIND, DEVICE_ACCESS_POLICY): _change_binding,
    ("NetworkPolicy", WEBHOOK): _change_webhook_network,
    ("Service", DASHBOARD): _change_page_service,
    ("NetworkPolicy", DASHBOARD): _change_page_network,
    ("Certificate", WEBHOOK): _change_certificate,
    ("PrometheusRule", "tessera"): _change_rules,
    ("MutatingWebhookConfiguration", WEBHOOK): _change_webhook_configuration,
}


def workload(name: str) -> Manifest:
    """The Deployment or DaemonSet of a process."""
    (found,) = (each for each in _workloads() if each["metadata"]["name"] == name)
    return found


def _workloads() -> Iterator[Manifest]:
    for file in base_files():
        yield from (each for each in objects_of(file) if each["kind"] in {"Deployment", "DaemonSet"})
