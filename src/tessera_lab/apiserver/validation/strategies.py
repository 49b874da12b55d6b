"""Which strategy and which rule for names each kind has."""

from collections.abc import Mapping

from tessera_lab.apiserver.admission.policies.configuration_rules import check_binding, check_policy
from tessera_lab.apiserver.admission.webhooks.configuration_rules import check_webhooks
from tessera_lab.apiserver.crd.definition_controller import established, fill_names, reestablished
from tessera_lab.apiserver.crd.definition_rules import check_crd
from tessera_lab.apiserver.interfaces import GroupResource
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
from tessera_lab.apiserver.strategy import Strategy

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
