"""ResourceClaims, their templates and DeviceClasses: defaults and rules. Pure.

Source: ``pkg/apis/resource/{v1/defaults.go,validation}`` of Kubernetes 1.36, and what a real server 1.36.2 refused.

CEL selectors of devices are judged as the API server judges them before it stores them.

Source: ``validateCELSelector`` of ``pkg/apis/resource/validation`` (Kubernetes 1.36): too long, does not compile, or
costs too much in the worst case. The worst case is an estimate: one unit a node of the expression, and a macro as often
as its list may be long. What an expression really costs is bounded again when it is evaluated.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tessera.cel.evaluator import compile_expression
from tessera.cel.syntax import Call, CelError, CelExpression, ListLiteral, MapLiteral, children, parse
from tessera.dra.limits import EXPRESSION_COST
from tessera.dra.selectors import FIELDS, VARIABLES
from tessera_lab.apiserver.field_errors import (
    forbidden_cause,
    invalid_cause,
    required_cause,
    too_long_cause,
    unsupported_cause,
)
from tessera_lab.apiserver.interfaces import Obj, StatusCause
from tessera_lab.apiserver.kinds.slice_rules import (
    check_driver,
    check_fully_qualified,
    check_label,
    check_list,
    check_pool,
    check_subdomain,
)
from tessera_lab.apiserver.pods.defaults import canonicalize_quantities
from tessera_lab.apiserver.pods.rules import overcommits

#: Longest expression, bytes (``CELSelectorExpressionMaxLength``).
LENGTH = 10 * 1024
#: Entries of a map or a list of unknown length: a device has so many attributes at most.
_ENTRIES = 32
_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})


def check_selector(selector: Mapping[str, Any], path: str) -> Iterator[StatusCause]:
    """Yields the errors of a selector."""
    if not selector.get("cel"):
        yield required_cause(f"{path}.cel")
        return
    expression, place = str(selector["cel"].get("expression") or ""), f"{path}.cel.expression"
    if len(expression.encode()) > LENGTH:
        yield too_long_cause(place, LENGTH)
        return
    try:
        compile_expression(expression, VARIABLES, FIELDS)
    except CelError as error:
        yield invalid_cause(place, expression, f"compilation failed: {error}")
        return
    if _worst_cost(parse(expression)) > EXPRESSION_COST:
        yield forbidden_cause(place, "too complex, exceeds cost limit")


def _worst_cost(node: CelExpression) -> int:
    if isinstance(node, Call) and node.name in _MACROS and node.target is not None:
        body = sum(map(_worst_cost, node.args[1:]))
        return 1 + _worst_cost(node.target) + _longest(node.target) * (1 + body)
    return 1 + sum(map(_worst_cost, children(node)))


def _longest(node: CelExpression) -> int:
    if isinstance(node, ListLiteral):
        return len(node.items)
    return len(node.entries) if isinstance(node, MapLiteral) else _ENTRIES


Read = Mapping[str, Any]

REQUESTS, SELECTORS, CONSTRAINTS, CONFIGS, ALTERNATIVES, RESULTS, RESERVATIONS = 32, 32, 32, 32, 8, 32, 256
#: Longest opaque parameters, bytes.
PARAMETERS_LENGTH = 10 * 1024
_MODES = ("All", "ExactCount")
_IMMUTABLE = "field is immutable"
_NO_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"


# -- defaults -------------------------------------------------------------------------------------------------------


def default_claim(claim: Obj) -> None:
    """Sets the defaults of a ResourceClaim."""
    _default_spec(claim.setdefault("spec", {}))


def default_claim_template(template: Obj) -> None:
    """Sets the defaults of a ResourceClaimTemplate."""
    _default_spec(template.setdefault("spec", {}).setdefault("spec", {}))


def prepare_new_claim(claim: Obj) -> None:
    """The status that a new claim starts with."""
    claim["status"] = {}


def default_claim_status(claim: Obj) -> None:
    """Sets the defaults of a claim's status."""
    status = claim.setdefault("status", {})
    for key in ("reservedFor", "devices"):
        if not status.get(key):
            status.pop(key, None)
    for result in _results(status):
        _default_tolerations(result)


def drop_deallocated_devices(claim: Obj, old: Read) -> None:
    """Drops the status of devices that a write of the status takes from the claim."""
    status = claim.get("status") or {}
    allocated = {_device(each) for each in _results(status)}
    lost = {_device(each) for each in _results(old.get("status") or {})} - allocated
    if lost and status.get("devices"):
        status["devices"] = [each for each in status["devices"] if _device(each) not in lost]


def _device(each: Read) -> tuple[str, str, str]:
    return device_key(each)[:3]


def _default_spec(spec: Obj) -> None:
    for request in (spec.setdefault("devices", {}) or {}).get("requests") or ():
        for each in [request.get("exactly"), *(request.get("firstAvailable") or ())]:
            if isinstance(each, dict):
                each.setdefault("allocationMode", "ExactCount")
                if each["allocationMode"] == "ExactCount":
                    each.setdefault("count", 1)
                _default_tolerations(each)
                canonicalize_quantities(each.get("capacity") or {}, "requests")


def _default_tolerations(holder: Obj) -> None:
    for each in holder.get("tolerations") or ():
        each.setdefault("operator", "Equal")


# -- specs ----------------------------------------------------------------------------------------------------------


def validate_device_class(obj: Read) -> Sequence[StatusCause]:
    """Returns the errors of a DeviceClass."""
    spec = obj.get("spec") or {}
    found = [
        *check_list(spec.get("selectors"), "spec.selectors", check_selector, limit=SELECTORS),
        *check_list(spec.get("config"), "spec.config", _check_config, limit=CONFIGS),
    ]
    name = spec.get("extendedResourceName")
    if name is not None and ("/" not in name or overcommits(name) or name.startswith("requests.")):
        found.append(invalid_cause("spec.extendedResourceName", name, "must be a valid extended resource name"))
    return found


def validate_claim(claim: Read) -> Sequence[StatusCause]:
    """Returns the errors of a ResourceClaim."""
    return list(_check_devices((claim.get("spec") or {}).get("devices") or {}, "spec.devices"))


def validate_claim_template(template: Read) -> Sequence[StatusCause]:
    """Returns the errors of a ResourceClaimTemplate."""
    spec = (template.get("spec") or {}).get("spec") or {}
    return list(_check_devices(spec.get("devices") or {}, "spec.spec.devices"))


def validate_same_spec(obj: Read, old: Read) -> Sequence[StatusCause]:
    """Refuses a change of the spec of a claim or a template."""
    same = obj.get("spec") == old.get("spec")
    return () if same else [invalid_cause("spec", obj.get("spec"), _IMMUTABLE)]


def _check_devices(devices: Read, path: str) -> Iterator[StatusCause]:
    names = request_names(devices)

    def known(name: Any, place: str) -> Iterator[StatusCause]:
        return _check_request_name(name, place, names)

    def constraint(each: Read, place: str) -> Iterator[StatusCause]:
        yield from check_list(each.get("requests"), f"{place}.requests", known, limit=REQUESTS, key=str)
        given = [key for key in ("matchAttribute", "distinctAttribute") if each.get(key) is not None]
        if len(given) != 1:
            text = 'exactly one of "matchAttribute" or "distinctAttribute" is required'
            yield required_cause(place, text + (", but multiple fields are set" if given else ""))
        for key in given:
            yield from check_fully_qualified(each[key], f"{place}.{key}")

    def config(each: Read, place: str) -> Iterator[StatusCause]:
        yield from check_list(each.get("requests"), f"{place}.requests", known, limit=REQUESTS, key=str)
        yield from _check_config(each, place)

    yield from check_list(
        devices.get("requests"), f"{path}.requests", _check_request, limit=REQUESTS, key=lambda each: each.get("name")
    )
    yield from check_list(devices.get("constraints"), f"{path}.constraints", constraint, limit=CONSTRAINTS)
    yield from check_list(devices.get("config"), f"{path}.config", config, limit=CONFIGS)


def request_names(devices: Read) -> frozenset[str]:
    """The names by which a claim's results can refer to its requests: ``name`` and ``name/subrequest``."""
    found: set[str] = set()
    for each in devices.get("requests") or ():
        found.add(str(each.get("name", "")))
        found |= {f"{each.get('name', '')}/{sub.get('name', '')}" for sub in each.get("firstAvailable") or ()}
    return frozenset(found)


def _check_request_name(name: Any, path: str, names: frozenset[str]) -> Iterator[StatusCause]:
    parts = str(name or "").split("/")
    if len(parts) <= 2:
        for part in parts:
            yield from check_label(part, path)
    if name not in names:
        yield invalid_cause(path, name or "", _NO_REQUEST)


def _check_request(request: Read, path: str) -> Iterator[StatusCause]:
    yield from check_label(request.get("name"), f"{path}.name")
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable")
    rule = "exactly one of `exactly` or `firstAvailable` is required"
    if not alternatives and exactly is None:
        yield required_cause(path, rule)
    elif alternatives and exactly is not None:
        yield invalid_cause(path, None, f"{rule}, but multiple fields are set")
    elif exactly is not None:
        yield from _check_exact(exactly, f"{path}.exactly")
    else:
        yield from check_list(
            alternatives,
            f"{path}.firstAvailable",
            _check_alternative,
            limit=ALTERNATIVES,
            key=lambda each: each.get("name"),
        )


def _check_alternative(request: Read, path: str) -> Iterator[StatusCause]:
    yield from check_label(request.get("name"), f"{path}.name")
    yield from _check_exact(request, path)


def _check_exact(request: Read, path: str) -> Iterator[StatusCause]:
    name = request.get("deviceClassName")
    if not name:
        yield required_cause(f"{path}.deviceClassName")
    else:
        yield from check_subdomain(name, f"{path}.deviceClassName")
    yield from check_list(request.get("selectors"), f"{path}.selectors", check_selector, limit=SELECTORS)
    mode, count = request.get("allocationMode"), request.get("count") or 0
    if mode == "All" and count:
        yield invalid_cause(f"{path}.count", count, "must not be specified when allocationMode is 'All'")
    elif mode == "ExactCount" and count <= 0:
        yield invalid_cause(f"{path}.count", count, "must be greater than zero")
    elif mode not in _MODES:
        yield unsupported_cause(f"{path}.allocationMode", mode, _MODES)
    yield from check_list(request.get("tolerations"), f"{path}.tolerations", _check_toleration)


def _check_toleration(toleration: Read, path: str) -> Iterator[StatusCause]:
    operator = toleration.get("operator") or "Equal"
    if operator not in {"Equal", "Exists"}:
        yield unsupported_cause(f"{path}.operator", operator, ("Equal", "Exists"))
    if operator == "Exists" and toleration.get("value"):
        yield invalid_cause(f"{path}.value", toleration["value"], "must be empty for operator `Exists`")
    if operator == "Equal" and not toleration.get("key"):
        yield required_cause(f"{path}.key", "must not be empty when operator is not `Exists`")
    effect = toleration.get("effect")
    if effect and effect not in {"NoSchedule", "NoExecute"}:
        yield unsupported_cause(f"{path}.effect", effect, ("NoExecute", "NoSchedule"))


def _check_config(config: Read, path: str) -> Iterator[StatusCause]:
    opaque = config.get("opaque")
    if opaque is None:
        yield required_cause(f"{path}.opaque")
        return
    yield from check_driver(opaque.get("driver"), f"{path}.opaque.driver")
    place, parameters = f"{path}.opaque.parameters", opaque.get("parameters")
    if parameters is None:
        yield required_cause(place)
    elif not isinstance(parameters, dict):
        yield invalid_cause(place, "<value omitted>", "must be a valid JSON object")
    elif len(msgspec.json.encode(parameters)) > PARAMETERS_LENGTH:
        yield too_long_cause(place, PARAMETERS_LENGTH)


# -- status ---------------------------------------------------------------------------------------------------------


def validate_claim_status(claim: Read, old: Read) -> Sequence[StatusCause]:
    """Returns the errors of a new status of a claim.

    Nobody checks that an allocated device exists, or that no other claim has it.
    """
    status, was = claim.get("status") or {}, old.get("status") or {}
    names = request_names((claim.get("spec") or {}).get("devices") or {})
    allocation, before = status.get("allocation"), was.get("allocation")
    found = list(_check_reservations(status, was, deleted=bool(claim["metadata"].get("deletionTimestamp"))))
    found += check_list(status.get("devices"), "status.devices", _device_checker(status), key=device_key)
    if allocation is not None and before is not None:
        if allocation != before:
            found.append(invalid_cause("status.allocation", allocation, _IMMUTABLE))
    elif allocation is not None:
        found += _check_allocation(allocation, "status.allocation", names)
    return found


def device_key(each: Read) -> tuple[str, str, str, str]:
    """Driver, pool, device and share of a result or of a device's status."""
    return (each.get("driver", ""), each.get("pool", ""), each.get("device", ""), each.get("shareID") or "")


def _results(status: Read) -> Sequence[Obj]:
    return ((status.get("allocation") or {}).get("devices") or {}).get("results") or ()


def _check_reservations(status: Read, was: Read, *, deleted: bool) -> Iterator[StatusCause]:
    path, reserved = "status.reservedFor", status.get("reservedFor") or ()
    yield from check_list(reserved, path, _check_consumer, limit=RESERVATIONS, key=lambda each: each.get("uid"))
    if reserved and status.get("allocation") is None:
        yield forbidden_cause(path, "may not be specified when `allocated` is not set")
    elif deleted and any(each not in (was.get("reservedFor") or ()) for each in reserved):
        text = "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set"
        yield forbidden_cause(path, text)


def _check_consumer(consumer: Read, path: str) -> Iterator[StatusCause]:
    for key in ("resource", "name", "uid"):
        if not consumer.get(key):
            yield required_cause(f"{path}.{key}")


def _device_checker(status: Read) -> Any:
    allocated = {device_key(each) for each in _results(status)}

    def check(each: Read, path: str) -> Iterator[StatusCause]:
        yield from check_driver(each.get("driver"), f"{path}.driver")
        yield from check_pool(each.get("pool"), f"{path}.pool")
        yield from check_label(each.get("device"), f"{path}.device")
        if device_key(each) not in allocated:
            shown = {key: value for key in ("driver", "pool", "device", "shareID") if (value := each.get(key))}
            yield invalid_cause(path, shown, "must be an allocated device in the claim")

    return check


def _check_allocation(allocation: Read, path: str, names: frozenset[str]) -> Iterator[StatusCause]:
    devices = allocation.get("devices") or {}

    def known(name: Any, place: str) -> Iterator[StatusCause]:
        return _check_request_name(name, place, names)

    def result(each: Read, place: str) -> Iterator[StatusCause]:
        yield from known(each.get("request"), f"{place}.request")
        yield from check_driver(each.get("driver"), f"{place}.driver")
        yield from check_pool(each.get("pool"), f"{place}.pool")
        yield from check_label(each.get("device"), f"{place}.device")

    def config(each: Read, place: str) -> Iterator[StatusCause]:
        source = each.get("source")
        if not source:
            yield required_cause(f"{place}.source")
        elif source not in {"FromClaim", "FromClass"}:
            yield unsupported_cause(f"{place}.source", source, ("FromClaim", "FromClass"))
        yield from check_list(each.get("requests"), f"{place}.requests", known, limit=REQUESTS, key=str)
        yield from _check_config(each, place)

    yield from check_list(devices.get("results"), f"{path}.devices.results", result, limit=RESULTS)
    yield from check_list(devices.get("config"), f"{path}.devices.config", config, limit=2 * CONFIGS)
    selector = allocation.get("nodeSelector")
    if selector is not None and not selector.get("nodeSelectorTerms"):
        yield required_cause(f"{path}.nodeSelector.nodeSelectorTerms", "must have at least one node selector term")
