"""LimitRanger: gives containers the default amounts of a namespace's LimitRanges, and refuses amounts out of bounds.

As ``plugin/pkg/admission/limitranger`` of Kubernetes, for new pods. The bounds hold for what the pod has before the
webhooks, and are not looked at again after them.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from tessera.kube.quantity import parse_quantity
from tessera_lab.apiserver.admission.quota.usage import pod_amounts, requests_of
from tessera_lab.apiserver.interfaces import AdmissionRequest, GroupResource, Obj
from tessera_lab.apiserver.request.server_state import ServerState
from tessera_lab.apiserver.status import forbidden_error

LIMIT_RANGES = GroupResource("", "limitranges")
#: Tells a pod's owner what was set.
ANNOTATION = "kubernetes.io/limit-ranger"

Amounts = Mapping[str, str]


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
