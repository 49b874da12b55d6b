"""The load of a service is the sum over its ready pods, or not known."""

from typing import Any

import msgspec
import pytest

from tessera.api.nodes.usage import Bucket, ServiceUsage
from tessera.clock import rfc3339
from tessera.kube.resources import Pod
from tessera.signals.page import (
    IMAGES,
    JOULES,
    KV_CACHE,
    LOAD,
    REQUESTS,
    RUNNING,
    TTFT_P50,
    TTFT_P90,
    WAITING,
    ReadyTimes,
    Service,
    SignalsPage,
    image_of,
    quantile,
    sum_load,
)


def usage(**facts: Any) -> ServiceUsage:
    return ServiceUsage(namespace="team", pod="p", uid="u", **facts)


def test_the_pods_of_a_service_add_up() -> None:
    buckets = (Bucket(0.1, 5.0), Bucket(1.0, 10.0), Bucket(None, 10.0))
    one = usage(requests=2.0, running=3.0, waiting=4.0, kv_cache=0.2, first_token=buckets)
    assert sum_load([one, one]) == {
        REQUESTS: 4.0,
        RUNNING: 6.0,
        WAITING: 8.0,
        LOAD: 14.0,
        KV_CACHE: 0.2,
        TTFT_P50: 0.1,
        TTFT_P90: pytest.approx(0.82),
    }


def test_a_server_that_does_not_tell_what_runs_has_the_load_that_waits() -> None:
    assert sum_load([usage(waiting=4.0)]) == {WAITING: 4.0, LOAD: 4.0}


@pytest.mark.parametrize("other", [None, usage(error="the page is compressed"), usage(waiting=-1.0)])
def test_one_pod_that_is_not_known_makes_the_load_unknown(other: ServiceUsage | None) -> None:
    assert LOAD not in sum_load([usage(waiting=4.0), other])


@pytest.mark.parametrize(
    ("requests", "powers", "joules"),
    [
        (2.0, [100.0, 140.0], 60_000.0),
        (2.0, [100.0, None], None),
        (2.0, [], None),
        (0.0, [100.0, 140.0], None),
        (None, [100.0, 140.0], None),
        (1e-320, [100.0, 140.0], None),
        (2.0, [100.0, -140.0], None),
    ],
)
def test_joules_for_a_thousand_requests_are_known_with_all_powers_and_some_requests(
    requests: float | None, powers: list[float | None], joules: float | None
) -> None:
    found = sum_load([usage(requests=requests), usage(requests=requests)], powers)
    assert found.get(JOULES) == joules


def test_no_pod_can_make_the_page_of_all_services_unreadable() -> None:
    """JSON has no infinity: msgspec writes null, and the reader wants a number."""
    values = sum_load([usage(requests=1e-320, running=1e18, waiting=1e18)], [1e18])
    page = SignalsPage(services=(Service(namespace="team", kind="Deployment", name="d", values=values),))
    assert msgspec.json.decode(msgspec.json.encode(page), type=SignalsPage) == page


def test_no_pod_has_no_load() -> None:
    assert sum_load([]) == {}


@pytest.mark.parametrize(
    ("buckets", "share", "wanted"),
    [
        ({}, 0.5, None),
        ({1.0: 0.0, float("inf"): 0.0}, 0.5, None),
        ({1.0: 10.0, 2.0: 20.0, float("inf"): 20.0}, 0.75, 1.5),
        ({1.0: 1.0, float("inf"): 20.0}, 0.9, 1.0),  # beyond the last bound
    ],
)
def test_quantiles_are_those_of_prometheus(buckets: dict[float, float], share: float, wanted: float | None) -> None:
    assert quantile(buckets, share) == wanted


def pod(
    uid: str, *, ready: float | None = None, scheduled: float = 100.0, image: str = "vllm", card: bool = True
) -> Pod:
    limits = {"nvidia.com/mig-1g.5gb": "1"} if card else {"cpu": "1"}
    conditions: list[Any] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": rfc3339(scheduled)}]
    if ready is not None:
        conditions.append({"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(ready)})
    body = {
        "metadata": {"uid": uid, "name": uid, "namespace": "a"},
        "spec": {
            "nodeName": "n1",
            "containers": [
                {"name": "side", "image": "side"},
                {"name": "m", "image": image, "resources": {"limits": limits}},
            ],
        },
        "status": {"conditions": conditions},
    }
    return msgspec.convert(body, Pod)


def start(times: ReadyTimes, uid: str, seconds: float, **facts: Any) -> None:
    times.observe(pod(uid, **facts))
    times.observe(pod(uid, ready=100.0 + seconds, **facts))


def test_the_quantiles_are_those_of_starts_by_image() -> None:
    times = ReadyTimes()
    for number in range(10):
        start(times, f"p{number}", 10.0 * (number + 1))
    start(times, "other", 7.0, image="tgi")
    assert times.quantiles() == {"vllm": (50.0, 90.0), "tgi": (7.0, 7.0)}


def test_a_pod_that_was_listed_as_ready_or_flaps_counts_once_at_most() -> None:
    times = ReadyTimes()
    times.observe(pod("listed", ready=9000.0))
    assert times.quantiles() == {}
    start(times, "seen", 5.0)
    times.observe(pod("seen", ready=8000.0))
    assert times.quantiles() == {"vllm": (5.0, 5.0)}


def test_a_pod_that_is_gone_before_it_was_ready_does_not_count() -> None:
    times = ReadyTimes()
    times.observe(pod("p"))
    times.drop(pod("p"))
    times.observe(pod("p", ready=200.0))
    assert times.quantiles() == {}


def test_pods_without_cards_have_no_times() -> None:
    assert image_of(pod("p", card=False)) == ""
    assert image_of(pod("p", image="x" * 300)) == ""


def test_of_many_images_the_last_ones_are_known() -> None:
    times = ReadyTimes()
    for number in range(IMAGES + 5):
        start(times, f"p{number}", 1.0, image=f"image-{number}")
    found = times.quantiles()
    assert (len(found), "image-4" in found, "image-5" in found) == (IMAGES, False, True)
