"""External metrics in the wire format of k8s.io/metrics: per namespace, never a number that is not known."""

from typing import Any

import msgspec
import pytest

from tessera.dashboard.view.external_metrics import STALE, answer
from tessera.kube.errors import BadRequest, ServiceUnavailable
from tessera.signals.page import LOAD, REPLICAS, ROOM, SIGNALS, Service, SignalsPage

VALUES = {REPLICAS: 2.0, ROOM: 1.0, LOAD: 50.0}
PAGE = SignalsPage(
    leads=True,
    taken=1_700_000_000.0,
    age=3.0,
    services=(
        Service(namespace="team", kind="Deployment", name="vllm", values=VALUES),
        Service(namespace="team", kind="StatefulSet", name="tgi", values={REPLICAS: 1.0}),
        Service(namespace="other", kind="Deployment", name="vllm", values=VALUES),
    ),
)


def ask(metric: str, selector: str = "", namespace: str = "team", page: SignalsPage | str = PAGE) -> dict[str, Any]:
    found = answer(["v1beta1", "namespaces", namespace, metric], selector, page)
    return dict(found or {})


def values(*question: str) -> dict[str, str]:
    return {each["metricLabels"]["name"]: each["value"] for each in ask(*question)["items"]}


def test_the_wire_format() -> None:
    assert ask(ROOM, "name=vllm") == {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {
                "metricName": "tessera_service_room",
                "metricLabels": {"kind": "Deployment", "name": "vllm"},
                "timestamp": "2023-11-14T22:13:20Z",
                "value": "1000m",
            }
        ],
    }


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ((REPLICAS,), {"vllm": "2000m", "tgi": "1000m"}),
        ((REPLICAS, "kind=StatefulSet"), {"tgi": "1000m"}),
        ((REPLICAS, "name in (tgi,x)"), {"tgi": "1000m"}),
        ((ROOM,), {"vllm": "1000m"}),  # of the other one it is not known
        ((REPLICAS, "", "nowhere"), {}),
        (("no_such_metric",), {}),
        ((LOAD, "name=vllm"), {"vllm": "50000m"}),
        ((LOAD, "name=vllm,per-replica=16"), {"vllm": "48000m"}),  # three replicas carry 48
        ((LOAD, "name=vllm,per-replica=20"), {"vllm": "50000m"}),
        ((LOAD, "name=tgi,per-replica=20"), {}),
    ],
)
def test_what_a_scaler_asks_for(question: tuple[str, ...], wanted: dict[str, str]) -> None:
    assert values(*question) == wanted


@pytest.mark.parametrize("selector", ["name=a=b=c,,=", "per-replica=many", "per-replica=0", "per-replica=nan"])
def test_a_wrong_selector_is_named(selector: str) -> None:
    with pytest.raises(BadRequest, match="labelSelector"):
        ask(LOAD, selector)


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("no controller leads at this moment", "no controller leads"),
        (msgspec.structs.replace(PAGE, age=STALE + 1), "61 s old"),
    ],
)
def test_old_or_unknown_signals_are_an_error_and_never_nothing(page: SignalsPage | str, text: str) -> None:
    with pytest.raises(ServiceUnavailable, match=text):
        ask(ROOM, page=page)


def test_discovery_lists_every_metric() -> None:
    listed = answer(["v1beta1"], "", PAGE)
    assert listed is not None
    assert {each["name"] for each in listed["resources"]} == set(SIGNALS)
    assert all((each["namespaced"], each["verbs"]) == (True, ["get"]) for each in listed["resources"])
    assert (answer([], "", PAGE) or {})["name"] == "external.metrics.k8s.io"
    assert answer(["v1beta1", "nodes"], "", PAGE) is None
