"""Other owners of an installation: a Helm release, or the operator of the OLM bundle.

Each of them writes all objects again, by its own settings. So a command that changes or removes the installation leaves
it to its owner, and names the command that does the same.
"""

from typing import Any

import msgspec

from tessera.api.names import SYSTEM_NAMESPACE
from tessera.cli.install.apply import get_object
from tessera.cli.install.manifests import AGENT
from tessera.kube.client.client import Client
from tessera.kube.client.errors import Forbidden
from tessera.kube.resources import DAEMONSETS, DEPLOYMENTS, Resource

#: The Deployment of the OLM bundle's operator, by its label.
_OPERATOR = "app.kubernetes.io/name=tessera-operator"
_BINDINGS: Resource[dict[str, Any]] = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", False, dict[str, Any]
)
_RELEASE = "meta.helm.sh/release-name"
_NAMESPACE = "meta.helm.sh/release-namespace"


class HelmRelease(msgspec.Struct, frozen=True):
    """A release of the chart."""

    name: str
    namespace: str


class BundleOperator(msgspec.Struct, frozen=True):
    """The operator of the OLM bundle."""

    namespace: str


Owner = HelmRelease | BundleOperator


async def find_owner(client: Client) -> Owner | None:
    """The owner of the installation; None if it is free, or if the user may not see it.

    A missing right is named by the request that needs it.
    """
    try:
        agent = await get_object(client, DAEMONSETS.as_dicts(), AGENT, SYSTEM_NAMESPACE)
        annotations = (agent or {}).get("metadata", {}).get("annotations") or {}
        if release := annotations.get(_RELEASE):
            return HelmRelease(release, annotations.get(_NAMESPACE, ""))
        found = (await client.list(DEPLOYMENTS.as_dicts(), label_selector=_OPERATOR)).items
        bound = await _bound_accounts(client) if found else frozenset()
        for each in found:
            namespace = each["metadata"]["namespace"]
            # Whoever may create a Deployment in some namespace can give it this label, but not these rights.
            if (namespace, each["spec"]["template"]["spec"].get("serviceAccountName", "default")) in bound:
                return BundleOperator(namespace)
    except Forbidden:
        pass
    return None


async def _bound_accounts(client: Client) -> frozenset[tuple[str, str]]:
    """Namespace and name of every account that has rights in the whole cluster."""
    subjects: list[dict[str, Any]] = []
    for binding in (await client.list(_BINDINGS)).items:
        subjects += binding.get("subjects") or ()
    return frozenset(
        (each.get("namespace", ""), each.get("name", "")) for each in subjects if each.get("kind") == "ServiceAccount"
    )


def refuse_install(owner: Owner) -> str:
    """The text for a user who would install over another owner's installation."""
    if isinstance(owner, HelmRelease):
        return (
            f'error: Helm installed Tessera as release "{owner.name}"; nothing was changed. To change it: helm upgrade'
            f" {owner.name} CHART -n {owner.namespace} --reset-then-reuse-values. To leave Helm: helm uninstall"
            f" {owner.name} -n {owner.namespace}, then run this command again"
        )
    return (
        f"error: the operator in namespace {owner.namespace} installs Tessera; nothing was changed. To change it, write"
        f' the options into the key "options" of ConfigMap {owner.namespace}/tessera-install; to install without it,'
        " first delete its Subscription and its ClusterServiceVersion"
    )


def refuse_uninstall(owner: Owner) -> str:
    """The text for a user who would remove another owner's installation."""
    if isinstance(owner, HelmRelease):
        return (
            f'error: Helm installed Tessera as release "{owner.name}"; run: helm uninstall {owner.name}'
            f" -n {owner.namespace}"
        )
    return (
        f"error: the operator in namespace {owner.namespace} would install Tessera again; first delete its Subscription"
        " and its ClusterServiceVersion, then run this command again"
    )
