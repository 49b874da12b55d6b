"""ResourceQuota: refuses writes that exceed a quota, and keeps ``status.used`` in step with the store.

Two halves. :meth:`QuotaAdmission.admit` compares a new object with ``status.hard`` and ``status.used`` and changes
nothing; between this call and the commit there is no await. :class:`QuotaTracker` follows the store and applies every
change of a counted object to ``status.used`` inside the write, whoever made the change; it counts a new or changed
quota from all objects. So a quota is exact at any moment, while kube-apiserver's lags until its controller recounts.

An object uses requests and limits of a pod, the number 1 of any other object.

A pod's requests are summed as in the scheduler (``k8s.io/component-helpers/resource``): app containers add up; an init
container adds to the sidecars started before it; sidecars add to everything after them; overhead is added last. A
missing request equals the limit. The pod's own ``spec.resources`` replace the sums of CPU, memory and huge pages; it
cannot have extended resources. A claim counts the devices that it may get by class, and by the extended resource that
the class stands for (``pkg/quota/v1/evaluator/core/resource_claims.go``), which quotas count of pods too. While a
container is being resized, the largest of its desired, allocated and actual requests counts. A pod that has ended
counts as an object (``count/pods``) only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from tessera.kube.quantity import format_quantity, parse_quantity
from tessera_lab.apiserver.interfaces import AdmissionRequest, GroupResource, ObjectReader, QuotaUpdate
from tessera_lab.apiserver.kinds.claim_rules import RESULTS
from tessera_lab.apiserver.pods.amounts import max_amounts, of_pods, sum_amounts, sum_containers
from tessera_lab.apiserver.status import forbidden_error
from tessera_lab.apiserver.storage.store import Change, Store, deep_copy

Usage = dict[str, Decimal]

PODS = GroupResource("", "pods")
RESOURCE_CLAIMS = GroupResource("resource.k8s.io", "resourceclaims")
DEVICE_CLASSES = GroupResource("resource.k8s.io", "deviceclasses")
#: Quota resource of the devices of a class, after the class's name.
_DEVICES = ".deviceclass.resource.k8s.io/devices"
_IMPLICIT = "requests.deviceclass.resource.kubernetes.io/"
COMPUTE = ("cpu", "memory", "ephemeral-storage")
#: Core resources that may be counted by their bare name.
LEGACY = frozenset(
    {"configmaps", "persistentvolumeclaims", "replicationcontrollers", "resourcequotas", "secrets", "services"}
)
Part = Mapping[str, Any]
QUOTAS = GroupResource("", "resourcequotas")
#: Compute resources that every container must state if a quota limits them.
DEMANDED = ("cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory")


def extended_names(classes: Iterable[Part]) -> Mapping[str, str]:
    """The extended resource that each class stands for, where it names one."""
    names = {each["metadata"]["name"]: each["spec"].get("extendedResourceName") for each in classes}
    return {name: found for name, found in names.items() if found}


def object_usage(resource: GroupResource, obj: Part, extended: Mapping[str, str] = MappingProxyType({})) -> Usage:
    """The object's usage, by quota resource name; ``extended`` is of :func:`extended_names`."""
    group, plural = resource
    counted: Usage = {f"count/{plural}.{group}" if group else f"count/{plural}": Decimal(1)}
    if resource == PODS:
        return counted | (_pod(obj) if counts_for_quota(obj) else {})
    if not group and plural in LEGACY:
        counted[plural] = Decimal(1)
    if resource == GroupResource("", "services"):
        counted |= _service(obj.get("spec") or {})
    if resource == RESOURCE_CLAIMS:
        counted |= _claim(obj.get("spec") or {}, extended)
    return counted


def pod_amounts(spec: Part) -> tuple[Usage, Usage]:
    """The requests and the limits of a pod, summed over its containers."""
    requests = _total(spec, lambda each: _parse(requests_of(each)))
    return requests, _total(spec, lambda each: _parse(_limits_of(each)))


def counts_for_quota(pod: Part) -> bool:
    """True if a pod still holds resources: it has not ended."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def counted_resources(name: str) -> frozenset[GroupResource]:
    """The resources whose objects a quota resource counts; none for an unknown quota resource."""
    if name.startswith("count/"):
        plural, _, group = name.removeprefix("count/").partition(".")
        return frozenset({GroupResource(group, plural)})
    if name.partition(".")[0] == "services":
        return frozenset({GroupResource("", "services")})
    if name in LEGACY:
        return frozenset({GroupResource("", name)})
    if name.endswith(_DEVICES):
        return frozenset({RESOURCE_CLAIMS})
    if name.startswith("requests.") and "/" in name:
        return frozenset({PODS, RESOURCE_CLAIMS})
    compute = name in ("pods", *COMPUTE) or name.startswith(("requests.", "limits.", "hugepages-"))
    return frozenset({PODS} if compute else ())


def _claim(spec: Part, extended: Mapping[str, str]) -> Usage:
    """Devices by class and extended resource; of alternatives the largest of each class."""
    found: Usage = {}
    for request in (spec.get("devices") or {}).get("requests") or ():
        most: Usage = {}
        for each in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if each:
                name = each.get("deviceClassName", "")
                count = RESULTS if each.get("allocationMode") == "All" else each.get("count") or 1
                names = [f"{name}{_DEVICES}", f"{_IMPLICIT}{name}", f"requests.{extended.get(name, '')}"]
                most = max_amounts(most, dict.fromkeys(names, Decimal(count)))
        found = sum_amounts([found, most])
    return found


def _service(spec: Part) -> Usage:
    kind = spec.get("type")
    ports = Decimal(len(spec.get("ports") or ()))
    if kind == "LoadBalancer":
        return {"services.loadbalancers": Decimal(1), "services.nodeports": ports}
    return {"services.nodeports": ports} if kind == "NodePort" else {}


def _pod(pod: Part) -> Usage:
    spec = pod.get("spec") or {}
    found: Usage = {"pods": Decimal(1)}
    states = {each.get("name"): each for each in _container_states(pod.get("status") or {})}

    def held(container: Part) -> Usage:
        return _held(container, states.get(container.get("name")) or {})

    own = spec.get("resources") or {}
    for name, value in (_total(spec, held) | _of_pod(requests_of(spec), spec)).items():
        found |= dict.fromkeys(_request_names(name), value)
    for name, value in (_total(spec, lambda each: _parse(_limits_of(each))) | _of_pod(own.get("limits"), spec)).items():
        if name in COMPUTE:
            found[f"limits.{name}"] = value
    return found


def _container_states(status: Part) -> Iterator[Part]:
    for field in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(field) or ()


def _held(container: Part, state: Part) -> Usage:
    """A container's requests: the largest of those desired, allocated and in force."""
    actual = (state.get("resources") or {}).get("requests") or {}
    held = max_amounts(_parse(actual), _parse(state.get("allocatedResources") or {}))
    return max_amounts(_parse(requests_of(container)), held)


def _of_pod(quantities: Mapping[str, Any] | None, spec: Part) -> Usage:
    """The amounts of ``spec.resources`` that replace the sums over containers, with overhead."""
    own = {name: value for name, value in (quantities or {}).items() if of_pods(name)}
    overhead = {name: value for name, value in (spec.get("overhead") or {}).items() if name in own}
    return sum_amounts([_parse(own), _parse(overhead)])


def _request_names(name: str) -> Iterator[str]:
    if name in COMPUTE or name.startswith("hugepages-"):
        yield name
        yield f"requests.{name}"
    elif "/" in name and not name.startswith("requests.") and "kubernetes.io/" not in name:
        yield f"requests.{name}"


def requests_of(container: Part) -> Mapping[str, str]:
    """Returns a container's requests; a missing request equals the limit."""
    resources = container.get("resources") or {}
    return {**(resources.get("limits") or {}), **(resources.get("requests") or {})}


def _limits_of(container: Part) -> Mapping[str, str]:
    return (container.get("resources") or {}).get("limits") or {}


def _total(spec: Part, of: Callable[[Part], Usage]) -> Usage:
    return sum_amounts([sum_containers(spec, of), _parse(spec.get("overhead") or {})])


def _parse(quantities: Mapping[str, Any]) -> Usage:
    return {name: parse_quantity(str(value)) for name, value in quantities.items()}


def format_amount(value: Decimal, like: str) -> str:
    """Prints a quantity in the form of ``like``: with binary suffixes if ``like`` has them."""
    return format_quantity(value, binary=like.endswith("i"))


class QuotaAdmission:
    """Implements :class:`tessera_lab.apiserver.interfaces.Quota`."""

    def admit(self, request: AdmissionRequest, reader: ObjectReader) -> Sequence[QuotaUpdate]:
        """Checks a create, or an update that asks for more, against every quota of the namespace.

        Returns:
            No updates: :class:`QuotaTracker` keeps ``status.used``.

        Raises:
            tessera_lab.apiserver.status.StatusError: 403, in Kubernetes' words.
        """
        attributes = request.attributes
        if request.obj is None or request.operation not in ("CREATE", "UPDATE") or attributes.subresource:
            return ()
        resource = GroupResource(attributes.group, attributes.resource)
        for quota in reader.list(QUOTAS, attributes.namespace):
            extended = extended_names(reader.list(DEVICE_CLASSES, None)) if resource == RESOURCE_CLAIMS else {}
            reason = quota_exceeded_error(quota, resource, request.obj, request.old, extended)
            if reason:
                name = request.obj["metadata"].get("name") or attributes.name
                raise forbidden_error(attributes.group, attributes.resource, name, reason)
        return ()


def quota_exceeded_error(
    quota: Part, resource: GroupResource, obj: Part, old: Part | None, extended: Mapping[str, str]
) -> str:
    """Returns why the quota refuses the object; empty if it admits the object."""
    if not quota_selects(quota, resource, obj):
        return ""
    hard = hard_limits(quota)
    if resource == PODS and old is None:
        missing = _unset_resources(hard, obj)
        if missing:
            return f"failed quota: {quota['metadata']['name']}: must specify {missing}"
    before = _usage_in_quota(quota, resource, old, extended) if old is not None else {}
    used_now = (quota.get("status") or {}).get("used") or {}
    over: list[tuple[str, Decimal, str]] = []
    for name, value in sorted(object_usage(resource, obj, extended).items()):
        more = value - before.get(name, Decimal(0))
        used = str(used_now.get(name, "0"))
        if name in hard and more > 0 and parse_quantity(used) + more > parse_quantity(hard[name]):
            over.append((name, more, used))
    if not over:
        return ""
    requested = ",".join(f"{name}={format_amount(more, hard[name])}" for name, more, _ in over)
    used = ",".join(f"{name}={text}" for name, _, text in over)
    limited = ",".join(f"{name}={hard[name]}" for name, _, _ in over)
    return f"exceeded quota: {quota['metadata']['name']}, requested: {requested}, used: {used}, limited: {limited}"


def hard_limits(quota: Part) -> Mapping[str, str]:
    """Returns the limits in force."""
    limits = (quota.get("spec") or {}).get("hard") or {}
    return {name: str(value) for name, value in limits.items()}


def _unset_resources(hard: Part, pod: Part) -> str:
    """Returns the containers that omit a limited resource: ``limits.cpu for: a,b; memory for: a``."""
    spec = pod.get("spec") or {}
    found = []
    for name in sorted(set(DEMANDED) & set(hard)):
        kind, _, resource = name.rpartition(".")
        lacking = sorted(
            each.get("name", "")
            for each in [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
            if resource not in (_limits(each) if kind == "limits" else requests_of(each))
        )
        if lacking:
            found.append(f"{name} for: {','.join(lacking)}")
    return "; ".join(found)


def _limits(container: Part) -> Part:
    found: Part = (container.get("resources") or {}).get("limits") or {}
    return found


def quota_selects(quota: Part, resource: GroupResource, obj: Part) -> bool:
    """True if the quota's scopes select the object; scopes select pods only."""
    spec = quota.get("spec") or {}
    tests: list[Part] = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    tests += (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    if not tests:
        return True
    return resource == PODS and all(_in_scope(test, obj) for test in tests)


def _in_scope(test: Part, pod: Part) -> bool:
    spec = pod.get("spec") or {}
    name = test.get("scopeName", "")
    if name == "PriorityClass":
        return _matches_requirement(test, spec.get("priorityClassName") or "")
    everywhere = [*(spec.get("containers") or ()), *(spec.get("initContainers") or ())]
    best_effort = not any(set(requests_of(each)) & {"cpu", "memory"} for each in everywhere)
    terminating = (spec.get("activeDeadlineSeconds") or -1) >= 0
    return {
        "BestEffort": best_effort,
        "NotBestEffort": not best_effort,
        "Terminating": terminating,
        "NotTerminating": not terminating,
    }.get(str(name), False)


def _matches_requirement(test: Part, value: str) -> bool:
    values = test.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": bool(value),
        "DoesNotExist": not value,
    }.get(str(test.get("operator")), False)


class QuotaTracker:
    """Keeps ``status.hard`` and ``status.used`` of every quota in a store up to date.

    It begins with the quotas and objects that are stored when it is made.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._followed: set[GroupResource] = set()
        store.listen(QUOTAS, self._on_quota_change)
        for stored in store.select(QUOTAS, None):
            self._recount(stored.obj["metadata"].get("namespace") or "", stored.obj["metadata"]["name"])

    def _on_quota_change(self, change: Change) -> None:
        quota, old = change.new.obj, change.old
        if change.kind == "DELETED" or (old is not None and old.obj.get("spec") == quota.get("spec")):
            return
        self._recount(quota["metadata"].get("namespace") or "", quota["metadata"]["name"])

    def _recount(self, namespace: str, name: str) -> None:
        quota = self._store.get(QUOTAS, namespace, name)
        if quota is None:
            return
        hard = hard_limits(quota)
        total: Usage = {key: Decimal(0) for key in hard}
        for resource in {found for key in hard for found in counted_resources(key)}:
            self._follow(resource)
            for obj in self._store.list(resource, namespace):
                _add_usage(total, _usage_in_quota(quota, resource, obj, self._extended(resource)), 1)
        self._write(namespace, name, hard, total)

    def _extended(self, resource: GroupResource) -> Mapping[str, str]:
        return extended_names(self._store.list(DEVICE_CLASSES, None)) if resource == RESOURCE_CLAIMS else {}

    def _follow(self, resource: GroupResource) -> None:
        if resource not in self._followed:
            self._followed.add(resource)
            self._store.listen(resource, lambda change: self._on_object_change(resource, change))

    def _on_object_change(self, resource: GroupResource, change: Change) -> None:
        namespace = change.new.obj["metadata"].get("namespace") or ""
        for quota in list(self._store.list(QUOTAS, namespace)) if namespace else ():
            used = (quota.get("status") or {}).get("used")
            if used is None or not _is_usage_change(resource, change, hard_limits(quota)):
                continue
            extended = self._extended(resource)
            total = {name: parse_quantity(str(value)) for name, value in used.items()}
            if change.old is not None:
                _add_usage(total, _usage_in_quota(quota, resource, change.old.obj, extended), -1)
            if change.kind != "DELETED":
                _add_usage(total, _usage_in_quota(quota, resource, change.new.obj, extended), 1)
            self._write(namespace, quota["metadata"]["name"], hard_limits(quota), total)

    def _write(self, namespace: str, name: str, hard: Mapping[str, str], total: Usage) -> None:
        found = self._store.find(QUOTAS, namespace, name)
        if found is None:
            return
        status = {"hard": dict(hard), "used": {key: format_amount(total[key], hard[key]) for key in sorted(hard)}}
        if found.obj.get("status") != status:
            self._store.put(QUOTAS, {**deep_copy(found.obj), "status": status}, found)


def _is_usage_change(resource: GroupResource, change: Change, hard: Iterable[str]) -> bool:
    """True if a change can alter a quota's usage: most updates of pods only touch their status."""
    if change.kind == "MODIFIED" and change.old is not None and resource == PODS:
        same = change.old.obj.get("spec") == change.new.obj.get("spec")
        if same and counts_for_quota(change.old.obj) == counts_for_quota(change.new.obj):
            return False
    return any(resource in counted_resources(name) for name in hard)


def _usage_in_quota(quota: Part, resource: GroupResource, obj: Part, extended: Mapping[str, str]) -> Usage:
    return object_usage(resource, obj, extended) if quota_selects(quota, resource, obj) else {}


def _add_usage(total: Usage, part: Usage, sign: int) -> None:
    for name in total.keys() & part.keys():
        total[name] += sign * part[name]
