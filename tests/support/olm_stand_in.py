"""A stand-in for the Operator Lifecycle Manager (v0), which is no part of the lab: it installs one bundle by kubectl.

It does what OLM does with the objects of a bundle, as read in operator-lifecycle-manager (``catalog/operator.go``,
``install/deployment.go``): it refuses kinds that OLM refuses, puts every object with a namespace into that of the
operator, makes accounts, Roles and Deployments from the ClusterServiceVersion, and copies the Roles into ClusterRoles,
since the operator is for all namespaces. It has no catalogue, no dependencies, no upgrade, and no certificates for
webhooks: a bundle with webhook definitions is refused.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from tests.support.running_lab import RunningLab

Obj = dict[str, Any]
#: Kinds that every OLM takes which Tessera's Kubernetes versions run with (operator-registry, supported_resources.go).
#: NetworkPolicy is newer, May 2025, so that it is not among them.
SUPPORTED = frozenset(
    {
        *("ClusterServiceVersion", "CustomResourceDefinition", "Secret", "ConfigMap", "ServiceAccount", "Service"),
        *("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "PrometheusRule", "ServiceMonitor"),
        *("PodDisruptionBudget", "PriorityClass", "VerticalPodAutoscaler", "ConsoleYAMLSample"),
        *("ConsoleQuickStart", "ConsoleCLIDownload", "ConsoleLink", "ConsolePlugin"),
    }
)
_RBAC = "rbac.authorization.k8s.io"


class OlmStandIn:
    """OLM with one subscription.

    Args:
        cluster: the cluster.
        bundle: the folder of the bundle.
        namespace: the operator's namespace, ``operator-sdk run bundle --namespace``.
    """

    def __init__(self, cluster: RunningLab, bundle: Path, namespace: str) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._objects = list(read_manifests(bundle))
        (self._version,) = (each for each in self._objects if each["kind"] == "ClusterServiceVersion")

    def install(self) -> None:
        """Makes the objects, as the steps of an install plan do."""
        for each in self._steps():
            self._cluster.kubectl("apply", "--server-side", "-f", "-", manifest=each)

    def remove(self) -> None:
        """Deletes the objects of the ClusterServiceVersion, as OLM does once it is deleted; definitions stay."""
        for each in (*self._rights(), *map(self._deployment, self._strategy()["deployments"])):
            self._cluster.kubectl("delete", "--ignore-not-found", "-f", "-", manifest=each)

    def phase(self) -> str:
        """The phase that OLM would show: Installing until each Deployment is available."""
        for each in self._strategy()["deployments"]:
            status = self._cluster.get("deployment", each["name"], "-n", self._namespace).get("status", {})
            conditions = {found["type"]: found["status"] for found in status.get("conditions") or ()}
            if conditions.get("Available") != "True":
                return "Installing"
        return "Succeeded"

    def _steps(self) -> Iterator[Obj]:
        for each in self._objects:
            if each["kind"] not in SUPPORTED:
                raise ValueError(f"OLM refuses the kind {each['kind']} ({each['metadata']['name']})")
            if each["kind"] != "ClusterServiceVersion":
                yield self._placed(each)
        spec = self._version["spec"]
        if spec.get("webhookdefinitions"):
            raise ValueError("this stand-in makes no webhooks")
        if not any(each["type"] == "AllNamespaces" and each["supported"] for each in spec["installModes"]):
            raise ValueError("operator-sdk would make another operator group than one for all namespaces")
        yield from self._rights()
        yield from map(self._deployment, self._strategy()["deployments"])

    def _strategy(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._version["spec"]["install"]["spec"]
        return found

    def _placed(self, manifest: Obj) -> Obj:
        if manifest["kind"] in {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}:
            return manifest
        return {**manifest, "metadata": {**manifest["metadata"], "namespace": self._namespace}}

    def _rights(self) -> Iterator[Obj]:
        strategy = self._strategy()
        permissions = [("", each) for each in strategy.get("clusterPermissions") or ()]
        permissions += [(self._namespace, each) for each in strategy.get("permissions") or ()]
        # In an operator group for all namespaces, OLM copies each Role into a ClusterRole.
        permissions += [("", each) for each in strategy.get("permissions") or ()]
        accounts = {each["serviceAccountName"] for _, each in permissions}
        for account in accounts - {"default"}:
            metadata = {"name": account, "namespace": self._namespace}
            yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
        for number, (namespace, each) in enumerate(permissions):
            yield from self._grant(f"{self._version['metadata']['name']}-{number}", namespace, each)

    def _grant(self, name: str, namespace: str, permission: Mapping[str, Any]) -> Iterator[Obj]:
        prefix = "" if namespace else "Cluster"
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        yield {"apiVersion": f"{_RBAC}/v1", "kind": f"{prefix}Role", "metadata": metadata, "rules": permission["rules"]}
        account = {
            "kind": "ServiceAccount",
            "name": permission["serviceAccountName"],
            "namespace": self._namespace,
        }
        yield {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{prefix}RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": _RBAC, "kind": f"{prefix}Role", "name": name},
            "subjects": [account],
        }

    def _deployment(self, specification: Mapping[str, Any]) -> Obj:
        spec = copy.deepcopy(specification["spec"])
        template = spec["template"]
        annotations = self._version["metadata"]["annotations"]
        template["metadata"]["annotations"] = {**annotations, "olm.targetNamespaces": ""}
        for container in template["spec"]["containers"]:
            condition = {"name": "OPERATOR_CONDITION_NAME", "value": self._version["metadata"]["name"]}
            container["env"] = [*container.get("env", ()), condition]
        spec["revisionHistoryLimit"] = 1
        labels = {
            **specification.get("label", {}),
            "olm.managed": "true",
            "olm.owner": self._version["metadata"]["name"],
            "olm.owner.kind": "ClusterServiceVersion",
            "olm.owner.namespace": self._namespace,
        }
        metadata = {"name": specification["name"], "namespace": self._namespace, "labels": labels}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def read_manifests(bundle: Path) -> Sequence[Obj]:
    """The objects of a bundle; definitions first, as OLM makes them."""
    files = sorted((bundle / "manifests").glob("*.yaml"))
    found = [
        each for file in files for each in yaml.load_all(file.read_text(encoding="utf-8"), yaml.CSafeLoader) if each
    ]
    return sorted(found, key=lambda each: each["kind"] != "CustomResourceDefinition")
