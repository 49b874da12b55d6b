"""Checks an object against its kind: unknown fields, defaults, and errors, by the strategy of the kind.

A strategy says how the objects of a kind are treated before they are stored, beyond the rules for every kind.
A :class:`Strategy` is a set of pure functions over JSON values; the write handler calls them in the order of the
attributes. For a kind without a strategy ``status`` changes only through its subresource, and everything else is stored
as sent.

For an update of a built-in kind it checks only the changed fields, two levels deep: a binding or a status write of a
pod does not check its containers again. It always checks custom resources whole, since their rules may relate several
fields.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tessera_lab.apiserver.admission.configuration_rules import (
    validate_policy,
    validate_policy_binding,
    validate_webhooks,
)
from tessera_lab.apiserver.crd.definition_controller import default_names, mark_established, update_established
from tessera_lab.apiserver.crd.definition_rules import validate_definition
from tessera_lab.apiserver.interfaces import GroupResource, Obj, StatusCause
from tessera_lab.apiserver.kinds import claim_rules as claims
from tessera_lab.apiserver.kinds import defaults, network_rules
from tessera_lab.apiserver.kinds import slice_rules as slices
from tessera_lab.apiserver.kinds import volume_rules as volumes
from tessera_lab.apiserver.kinds.autoscaler_rules import default_autoscaler, validate_autoscaler
from tessera_lab.apiserver.kinds.data_rules import (
    default_api_service,
    validate_api_service,
    validate_cluster_role,
    validate_config_map,
    validate_data_update,
    validate_node,
    validate_secret,
    validate_secret_update,
)
from tessera_lab.apiserver.kinds.metadata import validate_metadata, validate_new_finalizers
from tessera_lab.apiserver.kinds.versions import drop_fields
from tessera_lab.apiserver.kinds.workload_rules import (
    default_cron_job,
    validate_cron_job,
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
from tessera_lab.apiserver.request.server_state import ResourceRequest
from tessera_lab.apiserver.resource_types import ResourceType
from tessera_lab.apiserver.schemas.builtin_schema import BuiltinSchema
from tessera_lab.apiserver.status import bad_request_error, invalid_error

Read = Mapping[str, Any]
_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
_DRA = "resource.k8s.io"
_NAME_RULES = {"namespaces": "label", "services": "rfc1035"}
#: Subresources that change an object by the server's own rules, not by the client's values.
_SERVER_MADE = frozenset({"binding", "eviction"})


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
    GroupResource("", "nodes"): Strategy(
        default=defaults.default_node,
        default_status=defaults.default_node,
        validate=validate_node,
        validate_status=validate_node,
    ),
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


def find_strategy(resource: ResourceType) -> Strategy:
    """Returns the kind's strategy; all custom resources share the default one."""
    return _CONDITIONAL if resource.served_crd else _BY_KIND.get(resource.storage, _PLAIN)


def find_name_rule(resource: ResourceType) -> str:
    """Returns the rule for names of the kind: a ``name_rule`` of :func:`metadata.validate_metadata`."""
    if resource.group == _RBAC:
        return "path"
    return _NAME_RULES.get(resource.plural, "subdomain") if not resource.group else "subdomain"


def _changed_part(request: ResourceRequest, obj: Obj, old: Read | None) -> Obj:
    """Returns the part that the schema must check: changed top-level fields; of changed objects, the changed fields."""
    if old is None or not isinstance(request.resource.schema, BuiltinSchema):
        return dict(obj)
    return {
        key: _changed_fields(value, old.get(key)) for key, value in obj.items() if key not in old or value != old[key]
    }


def _changed_fields(value: Any, was: Any) -> Any:
    if not isinstance(value, dict) or not isinstance(was, dict):
        return value
    return {key: each for key, each in value.items() if key not in was or each != was[key]}


def _copy_schema_changes(obj: Obj, part: Obj, checked: Mapping[str, Any]) -> None:
    """Copies to the object the fields that the schema removed from the part and added to it."""
    for key in checked.keys() - part.keys():
        del obj[key]
    for key, value in part.items():
        whole = obj.get(key)
        if key in checked and isinstance(value, dict) and isinstance(whole, dict) and value is not whole:
            _copy_schema_changes(whole, value, checked[key])
        elif key in checked or key not in obj:
            obj[key] = value


def _index_fields(part: Read) -> dict[str, Any]:
    return {key: dict.fromkeys(value) if isinstance(value, dict) else None for key, value in part.items()}


def _unseen_paths(obj: Obj, part: Read) -> set[str]:
    """Returns the paths of fields that the part omits, so that the schema does not report them as missing."""
    missed = set(obj.keys() - part.keys())
    for key, value in part.items():
        whole = obj.get(key)
        if isinstance(value, dict) and isinstance(whole, dict):
            missed |= {f"{key}.{name}" for name in whole.keys() - value.keys()}
    return missed


def conform_to_schema(request: ResourceRequest, obj: Obj, old: Read | None, *, quiet: bool = False) -> None:
    """Removes unknown fields from the object and sets its defaults, in place.

    Args:
        request: the request, which says how to treat unknown fields.
        obj: the object.
        old: the stored object, if this is an update.
        quiet: unknown fields were reported before.

    Raises:
        StatusError: 400, a value has the wrong type, or an unknown field and ``fieldValidation=Strict``.
    """
    schema = request.resource.schema
    if schema is not None:
        part = _changed_part(request, obj, old)
        checked = _index_fields(part)
        if not isinstance(schema, BuiltinSchema) or not schema.is_sound(part):
            if isinstance(schema, BuiltinSchema):
                schema.check_types(part)
            if not quiet:
                report_unknown_fields(request, schema.unknown_fields(part))
            schema.prune(part)
            if isinstance(schema, BuiltinSchema):
                schema.settle(part)
        schema.default(part)
        _copy_schema_changes(obj, part, checked)
    drop_fields(obj, request.resource.disabled)
    strategy = find_strategy(request.resource)
    if request.route.subresource == "status":
        strategy.default_status(obj)
    else:
        strategy.default(obj)


def report_unknown_fields(request: ResourceRequest, unknown: Sequence[str]) -> None:
    """Ignores, warns of, or refuses unknown fields, as the request says; by default it warns.

    Raises:
        StatusError: 400, there are unknown fields and ``fieldValidation=Strict``.
    """
    desired = request.options.get("fieldValidation") or "Warn"
    if not unknown or desired == "Ignore":
        return
    found = [f'unknown field "{path}"' for path in unknown]
    if desired == "Strict":
        kind = request.resource.kind
        raise bad_request_error(
            f'{kind} in version "{request.resource.version}" cannot be handled as a {kind}: '
            f"strict decoding error: {', '.join(found)}"
        )
    request.warnings.extend(text for text in found if text not in request.warnings)


def _validate_schema(request: ResourceRequest, obj: Obj, old: Read | None) -> Sequence[StatusCause]:
    schema = request.resource.schema
    if schema is None:
        return ()
    part = _changed_part(request, obj, old)
    found = schema.validate(part, old)
    missed = _unseen_paths(obj, part) if found else set()
    return [cause for cause in found if cause.field not in missed]


def validate_create(request: ResourceRequest, obj: Obj) -> Sequence[StatusCause]:
    """Returns the errors of a new object."""
    shape = _validate_schema(request, obj, None)
    rules = shape or find_strategy(request.resource).validate(obj)
    return [*validate_metadata(obj, find_name_rule(request.resource)), *rules]


def validate_update(request: ResourceRequest, obj: Obj, old: Read) -> Sequence[StatusCause]:
    """Returns the errors of an update."""
    if obj == old:
        return ()
    strategy = find_strategy(request.resource)
    found = [*validate_metadata(obj, find_name_rule(request.resource)), *validate_new_finalizers(obj, old)]
    shape = _validate_schema(request, obj, old)
    if request.route.subresource == "status":
        return [*found, *shape, *strategy.validate_status(obj, old)]
    if request.route.subresource in _SERVER_MADE or shape:
        return [*found, *shape]
    same = obj.get("spec") == old.get("spec") and "spec" in obj
    return [*found, *(() if same else strategy.validate(obj)), *strategy.validate_update(obj, old)]


def raise_invalid(request: ResourceRequest, obj: Obj, causes: Sequence[StatusCause]) -> None:
    """Refuses an object that has errors.

    Raises:
        StatusError: 422.
    """
    if causes:
        meta = obj["metadata"]
        name = meta.get("name") or meta.get("generateName", "")
        raise invalid_error(request.resource.group, request.resource.kind, name, causes)
