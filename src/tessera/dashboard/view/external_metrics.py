"""The API ``external.metrics.k8s.io/v1beta1``, by which HorizontalPodAutoscalers read the signals of services. Pure.

The wire format is that of k8s.io/metrics (``pkg/apis/external_metrics/v1beta1/types.go``). The API server has decided
by RBAC that the asker may read the metric in the namespace; the answer has services of that namespace alone.

A selector matches the labels ``kind`` and ``name`` of a service. One label more is a number: with ``per-replica: "8"``
the load is bounded by what the replicas that have a place, and those that still fit, carry at 8 each. So a scaler with
the same ``averageValue`` asks for no pod that does not fit. A value that is not known is no item: a scaler that finds
no item changes nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tessera.clock import rfc3339
from tessera.kube.errors import BadRequest, ServiceUnavailable, Status
from tessera.kube.resources.selectors import Selector, parse_selector
from tessera.signals.page import LOAD, REPLICAS, ROOM, SIGNALS, Service, SignalsPage

GROUP, VERSION = "external.metrics.k8s.io", "v1beta1"
API_VERSION = f"{GROUP}/{VERSION}"
#: The name of the APIService, of which a cluster has one.
API_SERVICE = f"{VERSION}.{GROUP}"
PER_REPLICA = "per-replica"

_VERSION_ENTRY = {"groupVersion": API_VERSION, "version": VERSION}
GROUP_ENTRY = {"name": GROUP, "versions": [_VERSION_ENTRY], "preferredVersion": _VERSION_ENTRY}
#: Seconds after which values are not told any more: the controller takes new ones every 15.
STALE = 60.0
_THOUSANDTHS = 1000


def answer(path: Sequence[str], selector: str, page: SignalsPage | str) -> Mapping[str, Any] | None:
    """The document at a path of the group; None if there is none.

    Args:
        path: its parts after the group.
        selector: the query's ``labelSelector``.
        page: the signals, or why they are not known.

    Raises:
        BadRequest: the selector cannot be read.
        ServiceUnavailable: the signals are not known.
    """
    match path:
        case []:
            return {"kind": "APIGroup", "apiVersion": "v1", **GROUP_ENTRY}
        case [version] if version == VERSION:
            return _resources()
        case [version, "namespaces", namespace, metric] if version == VERSION:
            return _values(namespace, metric, selector, page)
    return None


def _resources() -> Mapping[str, Any]:
    listed = [
        {"name": name, "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        for name in SIGNALS
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": API_VERSION, "resources": listed}


def _values(namespace: str, metric: str, text: str, page: SignalsPage | str) -> Mapping[str, Any]:
    selector, per_replica = _read_selector(text)
    page = require_fresh(page)
    found = (each for each in page.services if each.namespace == namespace)
    items = list(_items(found, metric, selector, per_replica, rfc3339(page.taken)))
    return {"kind": "ExternalMetricValueList", "apiVersion": API_VERSION, "metadata": {}, "items": items}


def require_fresh(page: SignalsPage | str) -> SignalsPage:
    """The signals.

    Args:
        page: the signals, or why they are not known.

    Raises:
        ServiceUnavailable: they are not known, or old.
    """
    if isinstance(page, SignalsPage) and page.age <= STALE:
        return page
    why = page if isinstance(page, str) else f"the controller's signals are {page.age:.0f} s old"
    message = f"nobody tells the signals of services: {why}"
    raise ServiceUnavailable(Status(code=503, reason="ServiceUnavailable", message=message))


def _items(
    services: Iterator[Service], metric: str, selector: Selector, per_replica: float | None, taken: str
) -> Iterator[Mapping[str, Any]]:
    for each in services:
        labels = {"kind": each.kind, "name": each.name}
        value = value_of(each, metric, per_replica)
        if metric in SIGNALS and value is not None and selector.matches(labels):
            quantity = f"{round(value * _THOUSANDTHS)}m"
            yield {"metricName": metric, "metricLabels": labels, "timestamp": taken, "value": quantity}


def value_of(service: Service, metric: str, per_replica: float | None) -> float | None:
    """The value of a metric, a load as far as the replicas that have or find a place carry it; None if not known."""
    load = service.values.get(metric)
    if load is None or per_replica is None or metric != LOAD:
        return load
    replicas, room = service.values.get(REPLICAS), service.values.get(ROOM)
    return None if replicas is None or room is None else min(load, per_replica * (replicas + room))


def _read_selector(text: str) -> tuple[Selector, float | None]:
    """A selector without the number of :data:`PER_REPLICA`, and that number."""
    try:
        whole = parse_selector(text).requirements
        numbers = [value for each in whole if each.key == PER_REPLICA for value in each.values]
        number = float(numbers[0]) if numbers else None
    except ValueError as error:
        raise _bad_request(text, str(error)) from None
    selector = Selector(tuple(each for each in whole if each.key != PER_REPLICA))
    if number is not None and not 0 < number < float("inf"):
        raise _bad_request(text, f"{PER_REPLICA} is a number greater than 0")
    return selector, number


def _bad_request(text: str, why: str) -> BadRequest:
    message = f'labelSelector "{text[:200]}": {why}; write kind=Deployment,name=NAME'
    return BadRequest(Status(code=400, reason="BadRequest", message=message))
