"""Admission of a decoded write, before it is stored: its order, and the built-in plugins.

The order is kube-apiserver's: namespace life cycle, the plugins that set fields, mutating webhooks; after validation
the admission policies, then the validating webhooks; quota last, without an await before the commit.

Each plugin is named after kube-apiserver's. Missing: PodSecurity and the projected token volume of ServiceAccount; the
simulated kubelet gives a container its account's token without it.

LimitRanger gives containers the default amounts of a namespace's LimitRanges, and refuses amounts out of bounds, of new
pods (``plugin/pkg/admission/limitranger``). The bounds hold for what the pod has before the webhooks, and are not
looked at again after them.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

from tessera.kube.quantity import parse_quantity
from tessera_lab.apiserver.admission.resource_quota import pod_amounts, requests_of
from tessera_lab.apiserver.authz.rbac import SLICES, node_of
from tessera_lab.apiserver.interfaces import (
    AdmissionRequest,
    AdmissionResult,
    GroupResource,
    Obj,
    QuotaUpdate,
    StatusCause,
)
from tessera_lab.apiserver.request.server_state import NAMESPACES, ServerState
from tessera_lab.apiserver.status import StatusError, forbidden_error, not_found_error

LIMIT_RANGES = GroupResource("", "limitranges")
#: Tells a pod's owner what was set.
ANNOTATION = "kubernetes.io/limit-ranger"
Amounts = Mapping[str, str]
CLASSES = GroupResource("scheduling.k8s.io", "priorityclasses")
STORAGE_CLASSES = GroupResource("storage.k8s.io", "storageclasses")
#: Annotation of the default storage class: claims that name no class get it.
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_PROTECTION = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}
RUNTIME_CLASSES = GroupResource("node.k8s.io", "runtimeclasses")
SERVICE_ACCOUNTS = GroupResource("", "serviceaccounts")
#: Seconds that a pod stays on a node that is not ready or unreachable.
TOLERATION_SECONDS = 300
_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


class AdmissionPlugin(Protocol):
    """One built-in admission plugin; changes ``request.obj`` in place."""

    def __call__(self, request: AdmissionRequest, core: ServerState) -> None:
        """Sets fields of the object, or refuses it.

        Raises:
            StatusError: refused.
        """
        ...


class AdmissionChain:
    """The chain. ``plugins`` run in order before the webhooks."""

    def __init__(self, core: ServerState, plugins: Sequence[AdmissionPlugin]) -> None:
        self._core = core
        self._plugins = plugins

    async def mutate(self, request: AdmissionRequest) -> AdmissionResult:
        """Runs plugins and mutating webhooks, and returns the object that they leave.

        Raises:
            StatusError: refused.
        """
        for plugin in self._plugins:
            plugin(request, self._core)
        webhooks = self._core.parts.webhooks
        return await webhooks.mutate(request) if webhooks else AdmissionResult(obj=request.obj)

    async def validate(self, request: AdmissionRequest) -> Sequence[str]:
        """Evaluates the policies, asks the validating webhooks, and returns the warnings of both.

        Raises:
            StatusError: refused.
        """
        policies, webhooks = self._core.parts.policies, self._core.parts.webhooks
        warnings = policies.validate(request) if policies else ()
        return [*warnings, *(await webhooks.validate(request) if webhooks else ())]

    def quota(self, request: AdmissionRequest) -> Sequence[QuotaUpdate]:
        """Returns the quota updates of the write; no await may stand between this call and the commit.

        Raises:
            StatusError: 403, a quota is exceeded.
        """
        quota = self._core.parts.quota
        if quota is None or not request.attributes.namespace:
            return ()
        return quota.admit(request, self._core.store)


def namespace_lifecycle(request: AdmissionRequest, core: ServerState) -> None:
    """Refuses a create in a namespace that does not exist or is being deleted."""
    attributes = request.attributes
    if request.operation != "CREATE" or not attributes.namespace:
        return
    namespace = core.store.get(NAMESPACES, "", attributes.namespace)
    if namespace is None:
        raise not_found_error("", "namespaces", attributes.namespace)
    if namespace["metadata"].get("deletionTimestamp"):
        name = attributes.name or (request.obj or {}).get("metadata", {}).get("name", "")
        raise _terminating_error(attributes.group, attributes.resource, name, attributes.namespace)


def _terminating_error(group: str, resource: str, name: str, namespace: str) -> StatusError:
    reason = f"unable to create new content in namespace {namespace} because it is being terminated"
    error = forbidden_error(group, resource, name, reason)
    cause = StatusCause(
        reason="NamespaceTerminating", message=f"namespace {namespace} is being terminated", field="metadata.namespace"
    )
    error.status["details"]["causes"] = [{"reason": cause.reason, "message": cause.message, "field": cause.field}]
    return error


def limit_ranger(request: AdmissionRequest, core: ServerState) -> None:
    """Sets the defaults of a new pod's containers, and refuses a pod whose amounts are out of bounds."""
    attributes = request.attributes
    is_pod = (attributes.group, attributes.resource, attributes.subresource) == ("", "pods", "")
    pod = request.obj if is_pod and request.operation == "CREATE" else None
    ranges = core.store.list(LIMIT_RANGES, attributes.namespace) if pod is not None else ()
    if pod is None or not ranges:
        return
    items = [item for each in ranges for item in each["spec"].get("limits") or ()]
    told = [text for item in items if item.get("type") == "Container" for text in _set_defaults(pod, item)]
    if told:
        pod["metadata"].setdefault("annotations", {})[ANNOTATION] = f"LimitRanger plugin set: {'; '.join(told)}"
    faults = [fault for item in items for fault in _faults(pod["spec"], item)]
    if faults:
        reason = f"[{', '.join(faults)}]" if len(faults) > 1 else faults[0]
        raise forbidden_error("", "pods", attributes.name or pod["metadata"].get("name", ""), reason)


def _containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, Obj]]:
    for field, word in (("containers", "container"), ("initContainers", "init container")):
        yield from ((word, each) for each in spec.get(field) or ())


def _set_defaults(pod: Obj, item: Mapping[str, Any]) -> Iterator[str]:
    for word, container in _containers(pod["spec"]):
        resources = container.setdefault("resources", {})
        for kind, given in (("requests", item.get("defaultRequest")), ("limits", item.get("default"))):
            missing = {name: value for name, value in (given or {}).items() if name not in resources.get(kind, {})}
            if missing:
                resources[kind] = {**resources.get(kind, {}), **missing}
                yield f"{', '.join(sorted(missing))} {kind.removesuffix('s')} for {word} {container['name']}"


def _faults(spec: Mapping[str, Any], item: Mapping[str, Any]) -> Iterator[str]:
    if item.get("type") == "Container":
        for _, container in _containers(spec):
            limits = (container.get("resources") or {}).get("limits") or {}
            yield from _out_of_bounds(item, _parse(requests_of(container)), _parse(limits))
    elif item.get("type") == "Pod":
        yield from _out_of_bounds(item, *pod_amounts(spec))


def _parse(amounts: Amounts) -> Mapping[str, Decimal]:
    return {name: parse_quantity(text) for name, text in amounts.items()}


def _out_of_bounds(
    item: Mapping[str, Any], requests: Mapping[str, Decimal], limits: Mapping[str, Decimal]
) -> Iterator[str]:
    for name, text in sorted((item.get("min") or {}).items()):
        rule, least = f"minimum {name} usage per {item['type']} is {text}", parse_quantity(text)
        if name not in requests:
            yield f"{rule}. No request is specified"
        elif requests[name] < least:
            yield f"{rule}, but request is {requests[name]}"
        elif limits.get(name, least) < least:
            yield f"{rule}, but limit is {limits[name]}"
    for name, text in sorted((item.get("max") or {}).items()):
        rule, most = f"maximum {name} usage per {item['type']} is {text}", parse_quantity(text)
        if name not in limits:
            yield f"{rule}. No limit is specified"
        elif limits[name] > most:
            yield f"{rule}, but limit is {limits[name]}"
    for name, text in sorted((item.get("maxLimitRequestRatio") or {}).items()):
        request, limit = requests.get(name), limits.get(name)
        if request and limit is not None and limit / request > parse_quantity(text):
            rule = f"{name} max limit to request ratio per {item['type']} is {text}"
            yield f"{rule}, but provided ratio is {limit / request}"


def _new_pod(request: AdmissionRequest) -> Obj | None:
    attributes = request.attributes
    is_pod = (attributes.group, attributes.resource, attributes.subresource) == ("", "pods", "")
    return request.obj if is_pod and request.operation == "CREATE" else None


def _refuse(request: AdmissionRequest, reason: str) -> Exception:
    attributes = request.attributes
    return forbidden_error(attributes.group, attributes.resource, attributes.name, reason)


def service_account(request: AdmissionRequest, core: ServerState) -> None:
    """Sets a pod's service account and refuses a pod whose service account does not exist."""
    pod = _new_pod(request)
    if pod is None:
        return
    spec = pod["spec"]
    name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
    spec["serviceAccountName"] = spec["serviceAccount"] = name
    namespace = request.attributes.namespace
    if core.store.find(SERVICE_ACCOUNTS, namespace, name) is None:
        raise _refuse(
            request, f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'
        )


def default_toleration_seconds(request: AdmissionRequest, core: ServerState) -> None:
    """Lets a pod stay five minutes on a node that is not ready or unreachable, unless its tolerations differ."""
    del core
    pod = _new_pod(request)
    if pod is None:
        return
    tolerations = pod["spec"].get("tolerations") or []
    missing = [taint for taint in _TAINTS if not any(_tolerates(each, taint) for each in tolerations)]
    added = [
        {"key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATION_SECONDS}
        for taint in missing
    ]
    if added:
        pod["spec"]["tolerations"] = [*tolerations, *added]


def _tolerates(toleration: Mapping[str, Any], taint: str) -> bool:
    return toleration.get("key") in {None, "", taint} and toleration.get("effect") in {None, "", "NoExecute"}


def priority(request: AdmissionRequest, core: ServerState) -> None:
    """Sets a pod's priority from its class; without a class from the default class, else 0."""
    pod = _new_pod(request)
    if pod is None:
        return
    spec = pod["spec"]
    name = spec.get("priorityClassName")
    if name:
        found = core.store.get(CLASSES, "", name)
        if found is None:
            raise _refuse(request, f"no PriorityClass with name {name} was found")
    else:
        defaults = [each for each in core.store.list(CLASSES) if each.get("globalDefault")]
        found = min(defaults, key=lambda each: int(each["value"]), default=None)
        if found is not None:
            spec["priorityClassName"] = found["metadata"]["name"]
    value = found["value"] if found else 0
    if spec.get("priority") not in {None, value}:
        raise _refuse(
            request,
            f"the integer value of priority ({spec['priority']}) must not be provided in pod spec; "
            f"priority admission controller computed {value} from the given PriorityClass name",
        )
    spec["priority"] = value
    policy = (found or {}).get("preemptionPolicy", "PreemptLowerPriority")
    if spec.get("preemptionPolicy") not in {None, policy}:
        raise _refuse(
            request,
            f"the string value of PreemptionPolicy ({spec['preemptionPolicy']}) must not be provided in pod spec; "
            f"priority admission controller computed {policy} from the given PriorityClass name",
        )
    spec["preemptionPolicy"] = policy


def runtime_class(request: AdmissionRequest, core: ServerState) -> None:
    """Copies overhead and node selection of a pod's RuntimeClass; refuses a class that does not exist."""
    pod = _new_pod(request)
    name = pod["spec"].get("runtimeClassName") if pod else None
    if pod is None or not name:
        return
    found = core.store.get(RUNTIME_CLASSES, "", name)
    if found is None:
        raise _refuse(request, f'pod rejected: RuntimeClass "{name}" not found')
    overhead = (found.get("overhead") or {}).get("podFixed")
    if overhead:
        pod["spec"].setdefault("overhead", dict(overhead))
    scheduling = found.get("scheduling") or {}
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        selector = pod["spec"].setdefault("nodeSelector", {})
        if selector.get(key, value) != value:
            raise _refuse(request, f"conflict: runtimeClass.scheduling.nodeSelector[{key}] = {value}")
        selector[key] = value
    if scheduling.get("tolerations"):
        tolerations = pod["spec"].setdefault("tolerations", [])
        tolerations += [dict(each) for each in scheduling["tolerations"] if each not in tolerations]


def storage_in_use_protection(request: AdmissionRequest, core: ServerState) -> None:
    """Adds the finalizer that keeps a deleted volume or claim until nothing uses it."""
    del core
    attributes = request.attributes
    finalizer = _PROTECTION.get(attributes.resource) if not attributes.group and not attributes.subresource else None
    if finalizer is None or request.operation != "CREATE" or request.obj is None:
        return
    finalizers = request.obj["metadata"].setdefault("finalizers", [])
    if finalizer not in finalizers:
        finalizers.append(finalizer)


def default_storage_class(request: AdmissionRequest, core: ServerState) -> None:
    """Gives a claim without a class the default one; of several defaults the newest, then the first by name."""
    attributes = request.attributes
    is_claim = (attributes.group, attributes.resource, attributes.subresource) == ("", "persistentvolumeclaims", "")
    claim = request.obj if is_claim and request.operation == "CREATE" else None
    if claim is None or claim["spec"].get("storageClassName") is not None:
        return
    marked = [each for each in core.store.list(STORAGE_CLASSES) if _is_default_class(each)]
    marked.sort(key=lambda each: each["metadata"]["name"])
    marked.sort(key=lambda each: str(each["metadata"]["creationTimestamp"]), reverse=True)
    if marked:
        claim["spec"]["storageClassName"] = marked[0]["metadata"]["name"]


def _is_default_class(item: Mapping[str, Any]) -> bool:
    return (item["metadata"].get("annotations") or {}).get(DEFAULT_CLASS) == "true"


def node_restriction(request: AdmissionRequest, core: ServerState) -> None:
    """Keeps a kubelet from creating and deleting ResourceSlices of other nodes.

    Source: ``admitResourceSlice`` of ``plugin/pkg/admission/noderestriction/admission.go``. The rules for other
    kinds are missing here.
    """
    del core
    attributes = request.attributes
    node = node_of(attributes.user)
    if node is None or (attributes.group, attributes.resource) != SLICES:
        return
    if not node:
        raise _refuse(request, f'could not determine node from user "{attributes.user.name}"')
    shown = {"CREATE": request.obj, "DELETE": request.old}.get(request.operation)
    if shown is not None and shown["spec"].get("nodeName") != node:
        verb = request.operation.lower()
        raise _refuse(request, f"can only {verb} ResourceSlice with the same NodeName as the requesting node")


def taint_rule_time(request: AdmissionRequest, core: ServerState) -> None:
    """Says since when the taint of a DeviceTaintRule has its effect.

    A time is set if there is none, and anew if the effect changes and the time does not
    (``pkg/registry/resource/devicetaintrule/strategy.go``).
    """
    attributes = request.attributes
    if (attributes.group, attributes.resource) != (SLICES.group, "devicetaintrules") or request.obj is None:
        return
    taint, old = (((each or {}).get("spec") or {}).get("taint") or {} for each in (request.obj, request.old))
    changed = bool(old) and taint.get("effect") != old.get("effect") and taint.get("timeAdded") == old.get("timeAdded")
    if taint and (changed or not taint.get("timeAdded")):
        taint["timeAdded"] = core.timestamp()


def device_taint_time(request: AdmissionRequest, core: ServerState) -> None:
    """Says since when a device has a taint, where the driver does not; kube-apiserver does so while it decodes."""
    attributes = request.attributes
    if (attributes.group, attributes.resource) != SLICES or request.obj is None:
        return
    for device in (request.obj.get("spec") or {}).get("devices") or ():
        for taint in device.get("taints") or ():
            if not taint.get("timeAdded"):
                taint["timeAdded"] = core.timestamp()


#: All plugins, in kube-apiserver's order.
PLUGINS: Sequence[AdmissionPlugin] = (
    namespace_lifecycle,
    limit_ranger,
    service_account,
    node_restriction,
    priority,
    default_toleration_seconds,
    default_storage_class,
    storage_in_use_protection,
    runtime_class,
    device_taint_time,
    taint_rule_time,
)
