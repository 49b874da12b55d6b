"""The ClusterServiceVersion: the operator's Deployment and rights, and what a catalogue shows of it."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bundle.publisher import Publisher
from bundle.rights import cluster_rules, namespace_rules
from tessera.doctor.manifests import deploy_folder

HERE = Path(__file__).parent
PACKAGE = "tessera"
ACCOUNT = "tessera-operator"
#: The ConfigMap of settings, the default of ``tessera operator --config-map``.
CONFIG_MAP = "tessera-install"
#: The namespace that a console proposes.
NAMESPACE = "tessera-operator"
MIN_KUBERNETES = "1.31.0"
ARCHITECTURES = ("amd64", "arm64")
#: Whether the operator has what the Operator Framework calls a feature. Its catalogues want a word on each.
FEATURES: Mapping[str, bool] = {
    "disconnected": True,
    "fips-compliant": False,
    "proxy-aware": False,
    "tls-profiles": False,
    "token-auth-aws": False,
    "token-auth-azure": False,
    "token-auth-gcp": False,
    "cnf": False,
    "cni": False,
    "csi": False,
}
SUMMARY = "NVIDIA GPUs as a service: MIG slices made on demand, fixed layouts, shares, drivers"
EXAMPLE: Mapping[str, Any] = {
    "apiVersion": "inference.redhat.com/v1alpha1",
    "kind": "Instaslice",
    "metadata": {"name": "node-1", "namespace": "instaslice-system"},
    "spec": {"podAllocationRequests": {}},
}


def service_version(publisher: Publisher) -> dict[str, Any]:
    """The ClusterServiceVersion."""
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{publisher.version}",
            "namespace": "placeholder",
            "annotations": _annotations(publisher),
            "labels": {
                **{f"operatorframework.io/arch.{each}": "supported" for each in ARCHITECTURES},
                "operatorframework.io/os.linux": "supported",
            },
        },
        "spec": {
            "displayName": "Tessera",
            "description": (HERE / "description.md").read_text(encoding="utf-8"),
            "version": publisher.version,
            **({"replaces": publisher.replaces} if publisher.replaces else {}),
            "maturity": "alpha",
            "minKubeVersion": MIN_KUBERNETES,
            "keywords": ["gpu", "nvidia", "mig", "time-slicing", "mps", "device-plugin", "drivers"],
            "provider": {"name": publisher.provider},
            **_people(publisher),
            "icon": [_icon()],
            "installModes": [
                {"type": mode, "supported": mode == "AllNamespaces"}
                for mode in ("OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces")
            ],
            "customresourcedefinitions": {"owned": [_instaslice()]},
            "install": {"strategy": "deployment", "spec": _strategy(publisher)},
            "relatedImages": [{"name": "tessera", "image": publisher.image}],
        },
    }


def _annotations(publisher: Publisher) -> dict[str, str]:
    return {
        "alm-examples": json.dumps([EXAMPLE], indent=2),
        "capabilities": "Basic Install",
        "categories": "AI/Machine Learning",
        "containerImage": publisher.image,
        "createdAt": publisher.created,
        "description": SUMMARY,
        "operatorframework.io/suggested-namespace": NAMESPACE,
        **({"repository": publisher.repository} if publisher.repository else {}),
        "support": publisher.provider,
        **{f"features.operators.openshift.io/{name}": str(has).lower() for name, has in FEATURES.items()},
    }


def _people(publisher: Publisher) -> dict[str, Any]:
    maintainers = [{"name": name, "email": email} for name, email in publisher.maintainers]
    links = [{"name": name, "url": url} for name, url in publisher.links]
    return {key: value for key, value in (("maintainers", maintainers), ("links", links)) if value}


def _icon() -> dict[str, str]:
    data = base64.b64encode((HERE / "icon.svg").read_bytes()).decode()
    return {"base64data": data, "mediatype": "image/svg+xml"}


def _strategy(publisher: Publisher) -> dict[str, Any]:
    spec = yaml.safe_load((HERE / "operator.yaml").read_text(encoding="utf-8"))
    (container,) = spec["template"]["spec"]["containers"]
    container["image"] = publisher.image
    for each in container["env"]:
        if each["name"].startswith("RELATED_IMAGE_"):
            each["value"] = publisher.image
    return {
        "deployments": [{"name": ACCOUNT, "label": dict(spec["template"]["metadata"]["labels"]), "spec": spec}],
        "permissions": [{"serviceAccountName": ACCOUNT, "rules": namespace_rules(CONFIG_MAP)}],
        "clusterPermissions": [{"serviceAccountName": ACCOUNT, "rules": cluster_rules()}],
    }


def definition() -> dict[str, Any]:
    """The definition that the bundle owns."""
    text = (deploy_folder() / "crds" / "instaslices.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def _instaslice() -> dict[str, Any]:
    crd = definition()
    (version,) = crd["spec"]["versions"]
    parts = version["schema"]["openAPIV3Schema"]["properties"]
    return {
        "name": crd["metadata"]["name"],
        "kind": crd["spec"]["names"]["kind"],
        "version": version["name"],
        "displayName": "Instaslice",
        "description": "One node with GPUs: its cards, the slices of pods, and their state. Agents make the objects.",
        "resources": [
            {"kind": kind, "name": "", "version": "v1"} for kind in ("DaemonSet", "Deployment", "Node", "Pod")
        ],
        "specDescriptors": _descriptors(parts["spec"]["properties"]),
        "statusDescriptors": _descriptors(parts["status"]["properties"]),
    }


def _descriptors(properties: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "path": name,
            "displayName": _spaced(name),
            "description": field["description"],
            **({"x-descriptors": ["urn:alm:descriptor:io.kubernetes.conditions"]} if name == "conditions" else {}),
        }
        for name, field in properties.items()
    ]


def _spaced(name: str) -> str:
    return "".join(f" {each}" if each.isupper() else each for each in name).strip().capitalize()
