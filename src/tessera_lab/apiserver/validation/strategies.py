"""The strategy of each kind: how its objects are treated before they are stored, beyond the rules for every kind.

A :class:`Strategy` is a set of pure functions over JSON values; the write handler calls them in the order of the
attributes. For a kind without a strategy ``status`` changes only through its subresource, and everything else is stored
as sent.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.admission.policies.configuration_rules import validate_policy, validate_policy_binding
from tessera_lab.apiserver.admission.webhooks.configuration_rules import validate_webhooks
from tessera_lab.apiserver.crd.definition_controller import default_names, mark_established, update_established
from tessera_lab.apiserver.crd.definition_rules import validate_definition
from tessera_lab.apiserver.interfaces import GroupResource, Obj, StatusCause
from tessera_lab.apiserver.kinds import claim_rules as claims
from tessera_lab.apiserver.kinds import defaults, network_rules
from tessera_lab.apiserver.kinds import slice_rules as slices
from tessera_lab.apiserver.kinds import volume_rules as volumes
from tessera_lab.apiserver.kinds.api_service_rules import default_api_service, validate_api_service
from tessera_lab.apiserver.kinds.autoscaler_rules import default_autoscaler, validate_autoscaler
from tessera_lab.apiserver.kinds.cluster_role_rules import validate_cluster_role
from tessera_lab.apiserver.kinds.cron_job_rules import default_cron_job, validate_cron_job
from tessera_lab.apiserver.kinds.data_rules import (
    validate_config_map,
    validate_data_update,
    validate_secret,
    validate_secret_update,
)
from tessera_lab.apiserver.kinds.workload_rules import (
    validate_job,
    validate_job_update,
    validate_priority_class_update,
    validate_role_binding_update,
    validate_selector_update,
    validate_stateful_set_update,
    validate_workload,
)
from tessera_lab.apiserver.pods.defaults import default_pod, prepare_new_pod
from tessera_lab.apiserver.pods.rules import validate_pod
from tessera_lab.apiserver.pods.updates import validate_pod_update
from tessera_lab.apiserver.request.flow_schemas import FLOW_SCHEMAS, default_flow_schema, validate_flow_schema
from tessera_lab.apiserver.resource_types import ResourceType

Read = Mapping[str, Any]


def _change_nothing(obj: Obj) -> None:
    del obj


def _no_cause(obj: Read) -> Sequence[StatusCause]:
    del obj
    return ()


def _no_update_cause(obj: Read, old: Read) -> Sequence[StatusCause]:
    del obj, old
    return ()


def _no_update(obj: Obj, old: Read) -> None:
    del obj, old


class Strategy(msgspec.Struct, frozen=True, kw_only=True):
    """Hooks of one kind.

    Attributes:
        default: sets defaults, on every write but those of the status subresource.
        default_status: the same for the status subresource.
        prepare_create: sets the initial fields of a new object; ``status`` is already empty.
        prepare_status: changes a status that is written, in view of the stored object.
        prepare_update: restores fields, besides ``status``, that an update of the main resource must not change.
        validate, validate_update, validate_status: return errors; an update is checked by the first two.
        prepare_delete: changes an object that stays while it is being deleted.
        unconditional: true if an update may omit the resourceVersion.
        returns_deleted: an immediate delete answers with the object, not with a Status.
    """

    default: Callable[[Obj], None] = _change_nothing
    default_status: Callable[[Obj], None] = _change_nothing
    prepare_create: Callable[[Obj], None] = _change_nothing
    prepare_status: Callable[[Obj, Read], None] = _no_update
    prepare_update: Callable[[Obj, Read], None] = _no_update
    validate: Callable[[Read], Sequence[StatusCause]] = _no_cause
    validate_update: Callable[[Read, Read], Sequence[StatusCause]] = _no_update_cause
    validate_status: Callable[[Read, Read], Sequence[StatusCause]] = _no_update_cause
    prepare_delete: Callable[[Obj], None] = _change_nothing
    unconditional: bool = True
    returns_deleted: bool = False


_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_DRA = "resource.k8s.io"
_CONDITIONAL = Strategy(unconditional=False)
_BINDING = Strategy(default=defaults.default_role_binding, validate_update=validate_role_binding_update)
_WEBHOOKS = Strategy(default=defaults.default_webhooks, validate=validate_webhooks)

_BY_KIND: Mapping[GroupResource, Strategy] = {
    GroupResource("", "configmaps"): Strategy(validate=validate_config_map, validate_update=validate_data_update),
    GroupResource("", "endpoints"): Strategy(default=defaults.default_endpoints),
    GroupResource("discovery.k8s.io", "endpointslices"): Strategy(default=defaults.default_endpoint_slice),
    GroupResource("", "events"): Strategy(default=defaults.default_event),
    GroupResource("", "namespaces"): Strategy(
        prepare_create=defaults.prepare_new_namespace,
        prepare_update=defaults.prepare_namespace_update,
        prepare_delete=defaults.prepare_namespace_deletion,
    ),
    GroupResource("", "nodes"): Strategy(default=defaults.default_node, default_status=defaults.default_node),
    GroupResource("", "pods"): Strategy(
        default=default_pod,
        prepare_create=prepare_new_pod,
        validate=validate_pod,
        validate_update=validate_pod_update,
        returns_deleted=True,
    ),
    GroupResource("", "persistentvolumeclaims"): Strategy(
        default=volumes.default_claim,
        prepare_create=volumes.prepare_new_claim,
        validate=volumes.validate_claim,
        validate_update=volumes.validate_claim_update,
        returns_deleted=True,
    ),
    GroupResource("", "persistentvolumes"): Strategy(
        default=volumes.default_volume,
        prepare_create=volumes.prepare_new_volume,
        validate=volumes.validate_volume,
        validate_update=volumes.validate_volume_update,
        returns_deleted=True,
    ),
    GroupResource("", "limitranges"): Strategy(default=defaults.default_limit_range),
    GroupResource("", "resourcequotas"): Strategy(default=defaults.default_quota, returns_deleted=True),
    GroupResource("", "secrets"): Strategy(
        default=defaults.default_secret, validate=validate_secret, validate_update=validate_secret_update
    ),
    GroupResource("", "services"): Strategy(
        default=defaults.default_service, prepare_create=defaults.prepare_new_service, returns_deleted=True
    ),
    GroupResource("", "serviceaccounts"): Strategy(returns_deleted=True),
    GroupResource("apps", "daemonsets"): Strategy(
        default=defaults.default_daemon_set, validate=validate_workload, validate_update=validate_selector_update
    ),
    GroupResource("apps", "deployments"): Strategy(
        default=defaults.default_deployment, validate=validate_workload, validate_update=validate_selector_update
    ),
    GroupResource("apps", "replicasets"): Strategy(
        default=defaults.default_replica_set, validate=validate_workload, validate_update=validate_selector_update
    ),
    GroupResource("apps", "statefulsets"): Strategy(
        default=defaults.default_stateful_set, validate=validate_workload, validate_update=validate_stateful_set_update
    ),
    GroupResource("batch", "jobs"): Strategy(
        default=defaults.default_job,
        prepare_create=defaults.prepare_new_job,
        validate=validate_job,
        validate_update=validate_job_update,
    ),
    GroupResource("batch", "cronjobs"): Strategy(default=default_cron_job, validate=validate_cron_job),
    GroupResource("autoscaling", "horizontalpodautoscalers"): Strategy(
        default=default_autoscaler, validate=validate_autoscaler
    ),
    GroupResource("coordination.k8s.io", "leases"): _CONDITIONAL,
    GroupResource("apiextensions.k8s.io", "customresourcedefinitions"): Strategy(
        default=default_names,
        prepare_create=mark_established,
        prepare_update=update_established,
        validate=validate_definition,
        unconditional=False,
    ),
    GroupResource("apiregistration.k8s.io", "apiservices"): Strategy(
        default=default_api_service, validate=validate_api_service, unconditional=False
    ),
    GroupResource("scheduling.k8s.io", "priorityclasses"): Strategy(
        default=defaults.default_priority_class, validate_update=validate_priority_class_update
    ),
    FLOW_SCHEMAS: Strategy(default=default_flow_schema, validate=validate_flow_schema),
    GroupResource("storage.k8s.io", "storageclasses"): Strategy(
        validate=volumes.validate_storage_class,
        validate_update=volumes.validate_storage_class_update,
        returns_deleted=True,
    ),
    GroupResource("storage.k8s.io", "csinodes"): Strategy(returns_deleted=True),
    GroupResource("networking.k8s.io", "networkpolicies"): Strategy(
        default=network_rules.default_network_policy, validate=network_rules.validate_network_policy
    ),
    GroupResource(_DRA, "deviceclasses"): Strategy(validate=claims.validate_device_class, returns_deleted=True),
    GroupResource(_DRA, "resourceclaims"): Strategy(
        default=claims.default_claim,
        default_status=claims.default_claim_status,
        prepare_create=claims.prepare_new_claim,
        prepare_status=claims.drop_deallocated_devices,
        validate=claims.validate_claim,
        validate_update=claims.validate_same_spec,
        validate_status=claims.validate_claim_status,
        returns_deleted=True,
    ),
    GroupResource(_DRA, "resourceclaimtemplates"): Strategy(
        default=claims.default_claim_template,
        validate=claims.validate_claim_template,
        validate_update=claims.validate_same_spec,
        returns_deleted=True,
    ),
    GroupResource(_DRA, "resourceslices"): Strategy(
        default=slices.default_slice,
        validate=slices.validate_slice,
        validate_update=slices.validate_slice_update,
        returns_deleted=True,
    ),
    GroupResource(_DRA, "devicetaintrules"): Strategy(validate=slices.validate_taint_rule),
    GroupResource("policy", "poddisruptionbudgets"): _CONDITIONAL,
    GroupResource(_RBAC, "clusterroles"): Strategy(validate=validate_cluster_role),
    GroupResource(_RBAC, "rolebindings"): _BINDING,
    GroupResource(_RBAC, "clusterrolebindings"): _BINDING,
    GroupResource(_ADMISSION, "mutatingwebhookconfigurations"): _WEBHOOKS,
    GroupResource(_ADMISSION, "validatingadmissionpolicies"): Strategy(validate=validate_policy),
    GroupResource(_ADMISSION, "validatingadmissionpolicybindings"): Strategy(validate=validate_policy_binding),
    GroupResource(_ADMISSION, "validatingwebhookconfigurations"): _WEBHOOKS,
}
_PLAIN = Strategy()
_NAME_RULES = {"namespaces": "label", "services": "rfc1035"}


def find_strategy(resource: ResourceType) -> Strategy:
    """Returns the kind's strategy; all custom resources share the default one."""
    return _CONDITIONAL if resource.served_crd else _BY_KIND.get(resource.storage, _PLAIN)


def find_name_rule(resource: ResourceType) -> str:
    """Returns the rule for names of the kind: a ``name_rule`` of :func:`metadata.validate_metadata`."""
    if resource.group == _RBAC:
        return "path"
    return _NAME_RULES.get(resource.plural, "subdomain") if not resource.group else "subdomain"
