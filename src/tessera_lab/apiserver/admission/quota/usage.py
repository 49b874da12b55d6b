"""Usage of one object in a ResourceQuota: requests and limits of a pod, the number 1 of any other object.

A pod's requests are summed as in the scheduler (``k8s.io/component-helpers/resource``): app containers add up; an init
container adds to the sidecars started before it; sidecars add to everything after them; overhead is added last. A
missing request equals the limit. The pod's own ``spec.resources`` replace the sums of CPU, memory and huge pages; it
cannot have extended resources. A claim counts the devices that it may get by class, and by the extended resource that
the class stands for (``pkg/quota/v1/evaluator/core/resource_claims.go``), which quotas count of pods too. While a
container is being resized, the largest of its desired, allocated and actual requests counts. A pod that has ended
counts as an object (``count/pods``) only.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any

from tessera.kube.quantity import format_quantity, parse_quantity
from tessera_lab.apiserver.interfaces import GroupResource
from tessera_lab.apiserver.kinds.claim_rules import RESULTS
from tessera_lab.apiserver.pods.amounts import max_amounts, of_pods, sum_amounts, sum_containers

Usage = dict[str, Decimal]
Part = Mapping[str, Any]

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
