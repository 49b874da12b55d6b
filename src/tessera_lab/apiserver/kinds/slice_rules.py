"""ResourceSlices: defaults and rules, and names in all objects of ``resource.k8s.io``. Pure.

Source of rules and texts: ``pkg/apis/resource/{types.go,validation}`` of Kubernetes 1.36; the limits are those that a
real server 1.36.2 gave. The server takes a device that consumes a counter of an unknown set; the scheduler then
allocates nothing of the pool.
"""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from tessera.kube.quantity import parse_quantity
from tessera_lab.apiserver.field_errors import (
    SUBDOMAIN,
    SUBDOMAIN_RULE,
    duplicate_cause,
    forbidden_cause,
    invalid_cause,
    label_causes,
    required_cause,
    too_long_cause,
    too_many_cause,
    unsupported_cause,
)
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.pods.defaults import canonicalize_quantities

Check = Callable[[Any, str], Iterator[StatusCause]]

#: Longest name of a driver and of an attribute's domain (``DeviceMaxDomainLength``), a label and an identifier.
DRIVER_LENGTH, LABEL_LENGTH, IDENTIFIER_LENGTH, SUBDOMAIN_LENGTH = 63, 63, 32, 253

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_IDENTIFIER_RULE = (
    "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric characters "
    "or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is '[A-Za-z_][A-Za-z0-9_]*')"
)
Read = Mapping[str, Any]
#: Devices of one slice; with taints or counters.
DEVICES, ADVANCED_DEVICES = 128, 64
COUNTER_SETS, COUNTERS, CONSUMED_SETS, ATTRIBUTES, TAINTS, TEXT_LENGTH, CONDITIONS = 8, 32, 2, 32, 16, 64, 4
#: Values that a request policy may list (``CapacityRequestPolicyDiscreteMaxOptions``).
VALID_VALUES = 10
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_VALUES = ("bool", "int", "string", "version")
_SELECTION = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)"
    r"(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?"
    r"(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?"
)


def check_label(name: Any, path: str) -> Iterator[StatusCause]:
    """Yields the errors of the name of a device, request or counter."""
    text = str(name or "")
    if len(text) > LABEL_LENGTH:
        yield invalid_cause(path, text, f"must be no more than {LABEL_LENGTH} characters")
    yield from label_causes(path, text)


def check_subdomain(name: str, path: str) -> Iterator[StatusCause]:
    """Yields the errors of the name of an object or a node."""
    if len(name) > SUBDOMAIN_LENGTH:
        yield invalid_cause(path, name, f"must be no more than {SUBDOMAIN_LENGTH} characters")
    if not SUBDOMAIN.fullmatch(name):
        yield invalid_cause(path, name, SUBDOMAIN_RULE)


def check_driver(name: Any, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a driver's name."""
    text = str(name or "")
    if not text:
        yield required_cause(path)
        return
    if len(text) > DRIVER_LENGTH:
        yield too_long_cause(path, DRIVER_LENGTH)
    yield from check_subdomain(text.lower(), path)


def check_pool(name: Any, path: str) -> Iterator[StatusCause]:
    """Yields the errors of a pool's name: subdomains, separated by slashes."""
    text = str(name or "")
    if not text:
        yield required_cause(path)
        return
    if len(text) > SUBDOMAIN_LENGTH:
        yield too_long_cause(path, SUBDOMAIN_LENGTH)
    for part in text.split("/"):
        yield from check_subdomain(part, path)


def check_qualified(name: str, path: str) -> Iterator[StatusCause]:
    """Yields the errors of the name of an attribute or a capacity: an identifier, with or without a domain."""
    domain, slash, identifier = name.rpartition("/")
    if "/" in domain:
        yield invalid_cause(path, name, "must not contain more than one slash")
        return
    if slash and not domain:
        yield invalid_cause(path, "", "the domain must not be empty")
    elif slash:
        yield from check_driver(domain, path)
    if slash and not identifier:
        yield invalid_cause(path, "", "the name must not be empty")
        return
    if len(identifier) > IDENTIFIER_LENGTH:
        yield too_long_cause(path, IDENTIFIER_LENGTH)
    if not _IDENTIFIER.fullmatch(identifier):
        yield invalid_cause(path, identifier, _IDENTIFIER_RULE)


def check_fully_qualified(name: str, path: str) -> Iterator[StatusCause]:
    """Yields the errors of an attribute's name that must have its domain."""
    yield from check_qualified(name, path)
    if "/" not in name:
        yield invalid_cause(path, name, "a fully qualified name must be a domain and a name separated by a slash")


def check_list(
    items: Sequence[Any] | None,
    path: str,
    check: Check,
    *,
    limit: int | None = None,
    key: Callable[[Any], Hashable] | None = None,
) -> Iterator[StatusCause]:
    """Yields the errors of a list: too many entries and nothing else, or those of its entries and second ones.

    Args:
        items: the list; None for an absent one.
        path: its path.
        check: yields the errors of one entry.
        limit: most entries that it may have.
        key: what must be unique in the list.
    """
    found = items or ()
    if limit is not None and len(found) > limit:
        yield too_many_cause(path, len(found), limit)
        return
    for index, each in enumerate(found):
        yield from check(each, f"{path}[{index}]")
    seen: set[Hashable] = set()
    for index, each in enumerate(found) if key else ():
        value = key(each)  # type: ignore[misc]
        if value in seen:
            yield duplicate_cause(f"{path}[{index}]", value)
        seen.add(value)


def default_slice(obj: Obj) -> None:
    """Writes the quantities of a slice as Kubernetes stores them."""
    spec = obj.setdefault("spec", {})
    for device in spec.get("devices") or ():
        for each in (device.get("capacity") or {}).values():
            _canonicalize_value(each)
        for each in device.get("consumesCounters") or ():
            for counter in (each.get("counters") or {}).values():
                _canonicalize_value(counter)
    for each in spec.get("sharedCounters") or ():
        for counter in (each.get("counters") or {}).values():
            _canonicalize_value(counter)


def _canonicalize_value(holder: Obj) -> None:
    amounts: Obj = {"all": {"value": holder.get("value", "0")}}
    canonicalize_quantities(amounts, "all")
    holder["value"] = amounts["all"]["value"]


def validate_slice(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of a ResourceSlice."""
    return list(_check_spec(obj.get("spec") or {}))


def validate_slice_update(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses a slice that moves to another pool, driver or node."""
    new, was = obj.get("spec") or {}, old.get("spec") or {}
    pairs = (
        ("spec.pool.name", (new.get("pool") or {}).get("name"), (was.get("pool") or {}).get("name")),
        ("spec.driver", new.get("driver"), was.get("driver")),
        ("spec.nodeName", new.get("nodeName"), was.get("nodeName")),
    )
    return [invalid_cause(path, now, "field is immutable") for path, now, before in pairs if now != before]


def validate_taint_rule(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of a DeviceTaintRule."""
    spec = obj.get("spec") or {}
    selector, place = spec.get("deviceSelector") or {}, "spec.deviceSelector"
    checks = {"driver": check_driver, "pool": check_pool, "device": check_label}
    given = [check(selector[key], f"{place}.{key}") for key, check in checks.items() if key in selector]
    return [*chain(*given), *_check_taint(spec.get("taint") or {}, "spec.taint")]


def _check_spec(spec: Read) -> Iterator[StatusCause]:
    yield from check_driver(spec.get("driver"), "spec.driver")
    yield from _check_pool(spec.get("pool") or {}, "spec.pool")
    yield from _check_selection(spec, "spec", _SELECTION)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        yield invalid_cause("spec", "", "only one of `sharedCounters` or `devices` is allowed")
    devices = spec.get("devices") or ()
    advanced = any(each.get("taints") or each.get("consumesCounters") for each in devices)

    def device(each: Read, path: str) -> Iterator[StatusCause]:
        return _check_device(each, path, own_nodes=bool(spec.get("perDeviceNodeSelection")))

    yield from check_list(
        devices,
        "spec.devices",
        device,
        limit=ADVANCED_DEVICES if advanced else DEVICES,
        key=lambda each: each.get("name"),
    )
    yield from check_list(
        spec.get("sharedCounters"),
        "spec.sharedCounters",
        _check_counter_set,
        limit=COUNTER_SETS,
        key=lambda each: each.get("name"),
    )


def _check_pool(pool: Read, path: str) -> Iterator[StatusCause]:
    yield from check_pool(pool.get("name"), f"{path}.name")
    count, generation = pool.get("resourceSliceCount") or 0, pool.get("generation") or 0
    if count <= 0:
        yield invalid_cause(f"{path}.resourceSliceCount", count, "must be greater than zero")
    if generation < 0:
        yield invalid_cause(f"{path}.generation", generation, "must be greater than or equal to zero")


def _check_selection(holder: Read, path: str, fields: Sequence[str], suffix: str = "") -> Iterator[StatusCause]:
    """Yields the errors of the fields that say which nodes reach a slice or a device: exactly one is set."""
    given = [f"`{key}`" for key in fields if holder.get(key)]
    if holder.get("nodeName") == "":
        yield invalid_cause(f"{path}.nodeName", "", "must be either unset or set to a non-empty string")
    elif holder.get("nodeName"):
        yield from check_subdomain(holder["nodeName"], f"{path}.nodeName")
    for key in ("allNodes", "perDeviceNodeSelection"):
        if key in fields and holder.get(key) is False:
            yield invalid_cause(f"{path}.{key}", value=False, reason="must be either unset or set to true")
    terms = (holder.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    if holder.get("nodeSelector") is not None and len(terms) != 1:
        place = f"{path}.nodeSelector.nodeSelectorTerms"
        yield invalid_cause(place, terms, "must have exactly one node selector term")
    listed = ", ".join(f"`{key}`" for key in fields)
    rule = f"exactly one of {listed} is required{suffix}"
    if not given:
        yield required_cause(path, rule)
    elif len(given) > 1:
        yield invalid_cause(path, f"{{{', '.join(given)}}}", rule + ("" if suffix else ", but multiple fields are set"))


def _check_device(device: Read, path: str, *, own_nodes: bool) -> Iterator[StatusCause]:
    yield from check_label(device.get("name"), f"{path}.name")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacity) > ATTRIBUTES:
        text = f"the total number of attributes and capacities must not exceed {ATTRIBUTES}"
        yield invalid_cause(path, len(attributes) + len(capacity), text)
    for name, value in attributes.items():
        yield from check_qualified(name, f"{path}.attributes")
        yield from _check_attribute(value, f"{path}.attributes[{name}]")
    for name, value in capacity.items():
        yield from check_qualified(name, f"{path}.capacity")
        place = f"{path}.capacity[{name}]"
        yield from _check_capacity(value, place, shared=bool(device.get("allowMultipleAllocations")))
    yield from check_list(device.get("taints"), f"{path}.taints", _check_taint, limit=TAINTS)
    yield from check_list(
        device.get("consumesCounters"),
        f"{path}.consumesCounters",
        _check_consumption,
        limit=CONSUMED_SETS,
        key=lambda each: each.get("counterSet"),
    )
    fields = ("nodeName", "nodeSelector", "allNodes")
    suffix = " when `perDeviceNodeSelection` is set to true in the ResourceSlice spec"
    if own_nodes:
        yield from _check_selection(device, path, fields, suffix)
    elif any(device.get(key) is not None for key in fields):
        text = "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true"
        yield invalid_cause(path, None, f"{text} in the ResourceSlice spec")
    for key in ("bindingConditions", "bindingFailureConditions"):
        if len(device.get(key) or ()) > CONDITIONS:
            yield too_many_cause(f"{path}.{key}", len(device[key]), CONDITIONS)


def _check_attribute(value: Read, path: str) -> Iterator[StatusCause]:
    given = [key for key in _VALUES if value.get(key) is not None]
    for key in ("string", "version"):
        text = value.get(key)
        if text is not None and len(text.encode()) > TEXT_LENGTH:
            yield too_long_cause(f"{path}.{key}", TEXT_LENGTH)
    version = value.get("version")
    if version is not None and not _VERSION.fullmatch(version):
        yield invalid_cause(f"{path}.version", version, "must be a string compatible with semver.org spec 2.0.0")
    if len(given) != 1:
        yield invalid_cause(path, value if given else "", "exactly one value must be specified")


def _check_capacity(value: Read, path: str, *, shared: bool) -> Iterator[StatusCause]:
    policy = value.get("requestPolicy")
    if policy is None:
        return
    place = f"{path}.requestPolicy"
    if not shared:
        yield forbidden_cause(place, "allowMultipleAllocations must be true")
        return
    values, allowed = policy.get("validValues") or (), policy.get("validRange")
    if values and allowed is not None:
        text = 'exactly one policy can be specified, cannot specify "validValues" and "validRange" at the same time'
        yield forbidden_cause(place, text)
    elif (values or allowed is not None) and policy.get("default") is None:
        given = "validValues" if values else "validRange"
        yield required_cause(f"{place}.default", f"required when {given} is defined")
    elif values:
        yield from _check_valid_values(values, policy["default"], f"{place}.validValues")
    elif allowed is not None:
        yield from _check_valid_range(allowed, policy["default"], value.get("value", "0"), f"{place}.validRange")


def _check_valid_values(values: Sequence[Any], default: Any, path: str) -> Iterator[StatusCause]:
    if len(values) > VALID_VALUES:
        yield too_many_cause(path, len(values), VALID_VALUES)
    elif parse_quantity(str(default)) not in [parse_quantity(str(each)) for each in values]:
        yield invalid_cause(path, str(default), "default value is not valid according to the requestPolicy")


def _check_valid_range(allowed: Read, default: Any, most: Any, path: str) -> Iterator[StatusCause]:
    if allowed.get("min") is None:
        yield required_cause(f"{path}.min", "required when validRange is defined")
        return
    least, value = parse_quantity(str(allowed["min"])), parse_quantity(str(default))
    if least > parse_quantity(str(most)):
        yield invalid_cause(f"{path}.min", str(allowed["min"]), f"min is larger than capacity value: {most}")
    if value < least:
        yield invalid_cause(f"{path}.default", str(default), f"default is less than min: {allowed['min']}")
    if allowed.get("max") is not None and value > parse_quantity(str(allowed["max"])):
        yield invalid_cause(f"{path}.default", str(default), f"default is more than max: {allowed['max']}")
    step = allowed.get("step")
    if step is not None and parse_quantity(str(step)) <= 0:
        yield invalid_cause(f"{path}.step", str(step), "must be greater than zero")
    elif step is not None and (value - least) % parse_quantity(str(step)):
        text = f"value is not a multiple of a given step ({step}) from ({allowed['min']})"
        yield invalid_cause(f"{path}.step", str(default), text)


def _check_taint(taint: Read, path: str) -> Iterator[StatusCause]:
    if not taint.get("key"):
        yield required_cause(f"{path}.key")
    effect = taint.get("effect")
    if not effect:
        yield required_cause(f"{path}.effect")
    elif effect not in _EFFECTS:
        yield unsupported_cause(f"{path}.effect", effect, _EFFECTS)


def _check_counter_set(counters: Read, path: str) -> Iterator[StatusCause]:
    yield from _check_counters(counters, "name", path)


def _check_consumption(consumption: Read, path: str) -> Iterator[StatusCause]:
    yield from _check_counters(consumption, "counterSet", path)


def _check_counters(holder: Read, name: str, path: str) -> Iterator[StatusCause]:
    if not holder.get(name):
        yield required_cause(f"{path}.{name}")
    else:
        yield from check_label(holder[name], f"{path}.{name}")
    counters = holder.get("counters") or {}
    if not counters:
        yield required_cause(f"{path}.counters")
    elif len(counters) > COUNTERS:
        yield too_many_cause(f"{path}.counters", len(counters), COUNTERS)
    else:
        for key in counters:
            yield from check_label(key, f"{path}.counters")
