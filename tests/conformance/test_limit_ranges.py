"""LimitRanges: what they write into new pods, and which pods they refuse."""

from typing import Any

import pytest
from tests.support.conformance_api import Api, gated_pod

THING = "example.com/thing"


def limit_range(**item: Any) -> Any:
    return {"metadata": {"name": "bounds"}, "spec": {"limits": [{"type": "Container", **item}]}}


async def test_a_maximum_is_what_containers_get_that_ask_for_nothing(api: Api, core: str) -> None:
    made = (await api("POST", f"{core}/limitranges", limit_range(max={THING: 1, "memory": "2Gi"}))).ok()
    (item,) = made["spec"]["limits"]
    assert item["default"] == item["defaultRequest"] == {THING: "1", "memory": "2Gi"}
    pod = (await api("POST", f"{core}/pods", gated_pod("a"))).ok()
    amounts = {THING: "1", "memory": "2Gi"}
    assert pod["spec"]["containers"][0]["resources"] == {"limits": amounts, "requests": amounts}
    assert f"{THING}, memory limit for container" in pod["metadata"]["annotations"]["kubernetes.io/limit-ranger"]
    asks = gated_pod("b", limits={THING: "1", "memory": "1Gi"})
    pod = (await api("POST", f"{core}/pods", asks)).ok()
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {THING: "1", "memory": "1Gi"}
    assert "annotations" not in pod["metadata"]


@pytest.mark.parametrize(
    ("item", "limits", "words"),
    [
        ({"max": {THING: 1}}, {THING: "2"}, f"maximum {THING} usage per Container is 1, but limit is 2"),
        ({"min": {THING: 2}}, {THING: "1"}, f"minimum {THING} usage per Container is 2, but request is 1"),
        ({"type": "Pod", "max": {THING: 1}}, {THING: "2"}, f"maximum {THING} usage per Pod is 1, but limit is 2"),
        ({"type": "Pod", "min": {THING: 1}}, {"cpu": "1"}, f"minimum {THING} usage per Pod is 1"),
    ],
)
async def test_a_pod_out_of_bounds_is_refused(api: Api, core: str, item: Any, limits: Any, words: str) -> None:
    (await api("POST", f"{core}/limitranges", limit_range(**item))).ok()
    assert words in (await api("POST", f"{core}/pods", gated_pod("a", limits=limits))).refused(403, "Forbidden")
