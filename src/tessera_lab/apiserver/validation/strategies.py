"""The strategy of each kind: what happens to its objects on their way in, beyond what happens to every kind.

A :class:`Strategy` is a set of pure functions over JSON values; the write handler calls them in the order of the
attributes. A kind without one behaves plainly: ``status`` changes only through its subresource, everything else is
stored as sent.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.admission.policies.configuration_rules import check_binding, check_policy
from tessera_lab.apiserver.admission.webhooks.configuration_rules import check_webhooks
from tessera_lab.apiserver.crd.definition_controller import established, fill_names, reestablished
from tessera_lab.apiserver.crd.definition_rules import check_crd
from tessera_lab.apiserver.interfaces import Cause, GroupResource, Obj
from tessera_lab.apiserver.kinds import defaults, network_rules
from tessera_lab.apiserver.kinds import volume_rules as volumes
from tessera_lab.apiserver.kinds.data_rules import config_map_causes, data_update, secret_causes, secret_update
from tessera_lab.apiserver.kinds.workload_rules import (
    binding_update,
    job_causes,
    job_update,
    priority_class_update,
    selector_is_immutable,
    stateful_set_update,
    workload_causes,
)
from tessera_lab.apiserver.pods.defaults import default_pod, new_pod
from tessera_lab.apiserver.pods.rules import pod_causes
from tessera_lab.apiserver.pods.updates import pod_update_causes
from tessera_lab.apiserver.resource_types import ResourceType

Read = Mapping[str, Any]


def _nothing(obj: Obj) -> None:
    del obj


def _no_cause(obj: Read) -> Sequence[Cause]:
    del obj
    return ()


def _no_update_cause(obj: Read, old: Read) -> Sequence[Cause]:
    del obj, old
    return ()


def _no_update(obj: Obj, old: Read) -> None:
    del obj, old


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """Hooks of one kind.

    Attributes:
        default: fills in defaults, on every write but those of the status subresource.
        default_status: the same for the status subresource.
        prepare_create: sets what a new object of the kind starts with; ``status`` is empty already.
        prepare_update: restores what an update of the main resource must not touch, besides ``status``.
        validate, validate_update, validate_status: what is wrong; an update is checked by both of the first.
        prepare_delete: changes the state in which a dying object stays.
        unconditional: whether an update may leave the resourceVersion out.
        returns_deleted: an immediate delete answers with the object, not with a Status.
    """

    default: Callable[[Obj], None] = _nothing
    default_status: Callable[[Obj], None] = _nothing
    prepare_create: Callable[[Obj], None] = _nothing
    prepare_update: Callable[[Obj, Read], None] = _no_update
    validate: Callable[[Read], Sequence[Cause]] = _no_cause
    validate_update: Callable[[Read, Read], Sequence[Cause]] = _no_update_cause
    validate_status: Callable[[Read, Read], Sequence[Cause]] = _no_update_cause
    prepare_delete: Callable[[Obj], None] = _nothing
    unconditional: bool = True
    returns_deleted: bool = False


_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_CONDITIONAL = Strategy(unconditional=False)
_BINDING = Strategy(default=defaults.binding, validate_update=binding_update)
_WEBHOOKS = Strategy(default=defaults.webhooks, validate=check_webhooks)

_BY_KIND: Mapping[GroupResource, Strategy] = {
    GroupResource("", "configmaps"): Strategy(validate=config_map_causes, validate_update=data_update),
    GroupResource("", "endpoints"): Strategy(default=defaults.endpoints),
    GroupResource("discovery.k8s.io", "endpointslices"): Strategy(default=defaults.endpoint_slice),
    GroupResource("", "events"): Strategy(default=defaults.event),
    GroupResource("", "namespaces"): Strategy(
        prepare_create=defaults.new_namespace,
        prepare_update=defaults.kept_namespace,
        prepare_delete=defaults.dying_namespace,
    ),
    GroupResource("", "nodes"): Strategy(default=defaults.node, default_status=defaults.node),
    GroupResource("", "pods"): Strategy(
        default=default_pod,
        prepare_create=new_pod,
        validate=pod_causes,
        validate_update=pod_update_causes,
        returns_deleted=True,
    ),
    GroupResource("", "persistentvolumeclaims"): Strategy(
        default=volumes.default_claim,
        prepare_create=volumes.new_claim,
        validate=volumes.claim_causes,
        validate_update=volumes.claim_update,
        returns_deleted=True,
    ),
    GroupResource("", "persistentvolumes"): Strategy(
        default=volumes.default_volume,
        prepare_create=volumes.new_volume,
        validate=volumes.volume_causes,
        validate_update=volumes.volume_update,
        returns_deleted=True,
    ),
    GroupResource("", "resourcequotas"): Strategy(default=defaults.quota, returns_deleted=True),
    GroupResource("", "secrets"): Strategy(
        default=defaults.secret, validate=secret_causes, validate_update=secret_update
    ),
    GroupResource("", "services"): Strategy(
        default=defaults.service, prepare_create=defaults.new_service, returns_deleted=True
    ),
    GroupResource("", "serviceaccounts"): Strategy(returns_deleted=True),
    GroupResource("apps", "daemonsets"): Strategy(
        default=defaults.daemon_set, validate=workload_causes, validate_update=selector_is_immutable
    ),
    GroupResource("apps", "deployments"): Strategy(
        default=defaults.deployment, validate=workload_causes, validate_update=selector_is_immutable
    ),
    GroupResource("apps", "replicasets"): Strategy(
        default=defaults.replica_set, validate=workload_causes, validate_update=selector_is_immutable
    ),
    GroupResource("apps", "statefulsets"): Strategy(
        default=defaults.stateful_set, validate=workload_causes, validate_update=stateful_set_update
    ),
    GroupResource("batch", "jobs"): Strategy(
        default=defaults.job, prepare_create=defaults.new_job, validate=job_causes, validate_update=job_update
    ),
    GroupResource("coordination.k8s.io", "leases"): _CONDITIONAL,
    GroupResource("apiextensions.k8s.io", "customresourcedefinitions"): Strategy(
        default=fill_names,
        prepare_create=established,
        prepare_update=reestablished,
        validate=check_crd,
        unconditional=False,
    ),
    GroupResource("scheduling.k8s.io", "priorityclasses"): Strategy(
        default=defaults.priority_class, validate_update=priority_class_update
    ),
    GroupResource("storage.k8s.io", "storageclasses"): Strategy(
        validate=volumes.class_causes, validate_update=volumes.class_update, returns_deleted=True
    ),
    GroupResource("storage.k8s.io", "csinodes"): Strategy(returns_deleted=True),
    GroupResource("networking.k8s.io", "networkpolicies"): Strategy(
        default=network_rules.default_policy, validate=network_rules.policy_causes
    ),
    GroupResource("policy", "poddisruptionbudgets"): _CONDITIONAL,
    GroupResource(_RBAC, "rolebindings"): _BINDING,
    GroupResource(_RBAC, "clusterrolebindings"): _BINDING,
    GroupResource(_ADMISSION, "mutatingwebhookconfigurations"): _WEBHOOKS,
    GroupResource(_ADMISSION, "validatingadmissionpolicies"): Strategy(validate=check_policy),
    GroupResource(_ADMISSION, "validatingadmissionpolicybindings"): Strategy(validate=check_binding),
    GroupResource(_ADMISSION, "validatingwebhookconfigurations"): _WEBHOOKS,
}
_PLAIN = Strategy()
_NAME_RULES = {"namespaces": "label", "services": "rfc1035"}


def strategy_of(resource: ResourceType) -> Strategy:
    """The kind's strategy; custom resources have none of their own."""
    return _CONDITIONAL if resource.served_crd else _BY_KIND.get(resource.storage, _PLAIN)


def name_rule(resource: ResourceType) -> str:
    """How names of the kind are checked, as :func:`lifecycle.metadata_causes` knows them."""
    if resource.group == _RBAC:
        return "path"
    return _NAME_RULES.get(resource.plural, "subdomain") if not resource.group else "subdomain"
