"""The ClusterRoles and bindings of a new cluster, by Kubernetes' bootstrap policy, for the kinds that the lab serves.

``view``, ``edit`` and ``admin`` have no rules of their own: they have those of the ClusterRoles whose label
``rbac.authorization.k8s.io/aggregate-to-NAME`` is ``true``. Each is part of the next larger one.
"""

from collections.abc import Sequence

from tessera_lab.apiserver.authz.rbac import AUTHENTICATED, EVERYTHING, GROUP, MASTERS, Rule
from tessera_lab.apiserver.interfaces import Obj

_READ = ("get", "list", "watch")
_WRITE = ("create", "delete", "deletecollection", "patch", "update")
_LABELS = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_ANNOTATIONS = {"rbac.authorization.kubernetes.io/autoupdate": "true"}
#: Users' ClusterRoles, each with the larger one of which it is a part.
_USERS = {"view": "edit", "edit": "admin", "admin": ""}


def _rule(verbs: Sequence[str], group: str, *resources: str) -> Rule:
    return {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}


#: The rules of ``system:aggregate-to-NAME``.
_AGGREGATED: dict[str, list[Rule]] = {
    "view": [
        _rule(_READ, "", "configmaps", "endpoints", "persistentvolumeclaims", "persistentvolumeclaims/status"),
        _rule(_READ, "", "pods", "serviceaccounts", "services", "services/status"),
        _rule(_READ, "", "events", "limitranges", "namespaces/status", "pods/log", "pods/status"),
        _rule(_READ, "", "resourcequotas", "resourcequotas/status"),
        _rule(_READ, "", "namespaces"),
        _rule(_READ, "discovery.k8s.io", "endpointslices"),
        _rule(_READ, "apps", "controllerrevisions", "daemonsets", "daemonsets/status"),
        _rule(_READ, "apps", "deployments", "deployments/scale", "deployments/status"),
        _rule(_READ, "apps", "replicasets", "replicasets/scale", "replicasets/status"),
        _rule(_READ, "apps", "statefulsets", "statefulsets/scale", "statefulsets/status"),
        _rule(_READ, "autoscaling", "horizontalpodautoscalers", "horizontalpodautoscalers/status"),
        _rule(_READ, "batch", "cronjobs", "cronjobs/status", "jobs", "jobs/status"),
        _rule(_READ, "policy", "poddisruptionbudgets", "poddisruptionbudgets/status"),
        _rule(_READ, "networking.k8s.io", "networkpolicies"),
    ],
    "edit": [
        _rule(_READ, "", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy", "secrets", "services/proxy"),
        _rule(("impersonate",), "", "serviceaccounts"),
        _rule(_WRITE, "", "pods", "pods/attach", "pods/exec", "pods/portforward", "pods/proxy"),
        _rule(("create",), "", "pods/eviction"),
        _rule(_WRITE, "", "configmaps", "events", "persistentvolumeclaims", "secrets", "serviceaccounts"),
        _rule(_WRITE, "", "services", "services/proxy"),
        _rule(("create",), "", "serviceaccounts/token"),
        _rule(_WRITE, "apps", "daemonsets", "deployments", "deployments/rollback", "deployments/scale"),
        _rule(_WRITE, "apps", "replicasets", "replicasets/scale", "statefulsets", "statefulsets/scale"),
        _rule(_WRITE, "autoscaling", "horizontalpodautoscalers"),
        _rule(_WRITE, "batch", "cronjobs", "jobs"),
        _rule(_WRITE, "policy", "poddisruptionbudgets"),
        _rule(_WRITE, "networking.k8s.io", "networkpolicies"),
        _rule((*_READ, *_WRITE), "coordination.k8s.io", "leases"),
    ],
    "admin": [
        _rule(("create",), "authorization.k8s.io", "localsubjectaccessreviews"),
        _rule((*_READ, *_WRITE), GROUP, "rolebindings", "roles"),
    ],
}


def aggregation_label(name: str) -> str:
    """The label of ClusterRoles whose rules the ClusterRole ``name`` has."""
    return f"{GROUP}/aggregate-to-{name}"


def bootstrap_roles() -> Sequence[Obj]:
    """The rights of every user, ``cluster-admin``, and the roles that administrators bind, without aggregated rules."""
    reviews = {
        "verbs": ["create"],
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
    }
    whoami = {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]}
    paths = [
        "/api",
        "/api/*",
        "/apis",
        "/apis/*",
        "/healthz",
        "/livez",
        "/openapi",
        "/openapi/*",
        "/readyz",
        "/version",
    ]
    public = ["/healthz", "/livez", "/readyz", "/version"]
    roles: tuple[tuple[str, list[Rule], list[str]], ...] = (
        ("cluster-admin", list(EVERYTHING), [MASTERS]),
        ("system:basic-user", [reviews, whoami], [AUTHENTICATED]),
        ("system:discovery", [{"verbs": ["get"], "nonResourceURLs": paths}], [AUTHENTICATED]),
        (
            "system:public-info-viewer",
            [{"verbs": ["get"], "nonResourceURLs": public}],
            [AUTHENTICATED, "system:unauthenticated"],
        ),
    )
    bound = [created for name, rules, groups in roles for created in _build_role_and_binding(name, rules, groups)]
    return [*bound, *(created for name in _USERS for created in _build_user_roles(name))]


def _build_user_roles(name: str) -> tuple[Obj, Obj]:
    """A ClusterRole that is aggregated, and the one with the rules that Kubernetes gives it."""
    larger = {aggregation_label(_USERS[name]): "true"} if _USERS[name] else {}
    whole: Obj = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": {**_LABELS, **larger}, "annotations": dict(_ANNOTATIONS)},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {aggregation_label(name): "true"}}]},
        "rules": [],
    }
    labels = {**_LABELS, aggregation_label(name): "true"}
    part: Obj = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": f"system:aggregate-to-{name}", "labels": labels, "annotations": dict(_ANNOTATIONS)},
        "rules": list(_AGGREGATED[name]),
    }
    return whole, part


def _build_role_and_binding(name: str, rules: Sequence[Rule], groups: Sequence[str]) -> tuple[Obj, Obj]:
    meta = {"name": name, "labels": dict(_LABELS)}
    subjects = [{"kind": "Group", "apiGroup": GROUP, "name": group} for group in groups]
    reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
    version = f"{GROUP}/v1"
    return (
        {"apiVersion": version, "kind": "ClusterRole", "metadata": dict(meta), "rules": list(rules)},
        {
            "apiVersion": version,
            "kind": "ClusterRoleBinding",
            "metadata": dict(meta),
            "roleRef": reference,
            "subjects": subjects,
        },
    )
