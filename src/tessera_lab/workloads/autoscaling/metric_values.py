"""Values of metrics, as a HorizontalPodAutoscaler reads them from aggregated APIs. Values are in thousandths."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tessera.kube.client.client import Client
from tessera.kube.client.errors import ApiError
from tessera.kube.quantity import parse_quantity
from tessera_lab.apiserver.handlers.subresource_handler import selector_text
from tessera_lab.workloads.autoscaling.replica_calculator import MetricError

Json = Mapping[str, Any]

_EXTERNAL, _CUSTOM = "/apis/external.metrics.k8s.io/v1beta1", "/apis/custom.metrics.k8s.io/v1beta2"


def thousandths(text: Any) -> int:
    """A quantity in thousandths, rounded up (``MilliValue``)."""
    return -int(-parse_quantity(str(text)) * 1000 // 1)


def milli_text(value: int) -> str:
    """Thousandths as a quantity: ``1500m``, or ``2`` for whole units."""
    return f"{value}m" if value % 1000 else str(value // 1000)


class MetricReader:
    """Reads ``external.metrics.k8s.io`` and ``custom.metrics.k8s.io``.

    Args:
        client: calls the API server.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    async def external(self, namespace: str, metric: Json) -> list[int]:
        """The values of an external metric, one for each set of labels.

        Raises:
            MetricError: there is none, or nobody answers.
        """
        name, selector = metric["name"], selector_text(metric.get("selector"))
        items = await self._items(
            f"{_EXTERNAL}/namespaces/{namespace}/{name}", [("labelSelector", selector)], "external"
        )
        return [thousandths(each["value"]) for each in items]

    async def of_pods(self, namespace: str, metric: Json, pods: str) -> dict[str, int]:
        """The values of pods that a selector matches, by name.

        Raises:
            MetricError: as above.
        """
        query = [("labelSelector", pods), ("metricLabelSelector", selector_text(metric.get("selector")))]
        items = await self._items(f"{_CUSTOM}/namespaces/{namespace}/pods/*/{metric['name']}", query, "custom")
        return {each["describedObject"]["name"]: thousandths(each["value"]) for each in items}

    async def of_object(self, namespace: str, metric: Json, described: Json) -> int:
        """The value of an object.

        Raises:
            MetricError: as above.
        """
        group = described.get("apiVersion", "").rpartition("/")[0]
        plural = described["kind"].lower() + "s" + (f".{group}" if group else "")
        path = f"{_CUSTOM}/namespaces/{namespace}/{plural}/{described['name']}/{metric['name']}"
        items = await self._items(path, [("metricLabelSelector", selector_text(metric.get("selector")))], "custom")
        return thousandths(items[0]["value"])

    async def _items(self, path: str, query: Sequence[tuple[str, str]], api: str) -> Sequence[Json]:
        given = [each for each in query if each[1]]
        try:
            answer = await self._client.request("GET", path, query=given)
        except (ApiError, OSError) as error:
            raise MetricError(f"unable to fetch metrics from {api} metrics API: {error}") from None
        items: Sequence[Json] = msgspec.json.decode(answer.body).get("items") or ()
        if not items:
            raise MetricError(f"no metrics returned from {api} metrics API")
        return items
