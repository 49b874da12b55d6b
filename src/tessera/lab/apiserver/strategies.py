"""Which strategy and which rule for names each kind has."""

from tessera.lab.apiserver.registry import ResourceType
from tessera.lab.apiserver.seams import GroupResource, Obj
from tessera.lab.apiserver.strategy import Strategy

_CONDITIONAL = Strategy(unconditional=False)


def _active(obj: Obj) -> None:
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj["status"] = {"phase": "Active"}
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")


def _terminating(obj: Obj) -> None:
    obj.setdefault("status", {})["phase"] = "Terminating"


def _pending(obj: Obj) -> None:
    obj["status"] = {"phase": "Pending"}


_BY_KIND: dict[GroupResource, Strategy] = {
    GroupResource("", "namespaces"): Strategy(prepare_create=_active, prepare_delete=_terminating),
    GroupResource("", "pods"): Strategy(prepare_create=_pending, returns_deleted=True),
    GroupResource("", "services"): Strategy(returns_deleted=True),
    GroupResource("", "serviceaccounts"): Strategy(returns_deleted=True),
    GroupResource("coordination.k8s.io", "leases"): _CONDITIONAL,
    GroupResource("apiextensions.k8s.io", "customresourcedefinitions"): _CONDITIONAL,
}
_PLAIN = Strategy()
_NAME_RULES = {"namespaces": "label", "services": "rfc1035"}


def strategy_of(resource: ResourceType) -> Strategy:
    """The kind's strategy; custom resources have none of their own."""
    if resource.served_crd:
        return _CONDITIONAL
    return _BY_KIND.get(resource.storage, _PLAIN)


def name_rule(resource: ResourceType) -> str:
    """How names of the kind are checked, as :func:`lifecycle.metadata_causes` knows them."""
    if resource.group == "rbac.authorization.k8s.io":
        return "path"
    return _NAME_RULES.get(resource.plural, "subdomain") if not resource.group else "subdomain"
