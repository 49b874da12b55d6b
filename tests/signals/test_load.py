"""The load of a service is the sum over its ready pods, or not known."""

from typing import Any

import msgspec
import pytest

from tessera.api.nodes.usage import Bucket, ServiceUsage
from tessera.signals.load import quantile, sum_load
from tessera.signals.page import (
    JOULES,
    KV_CACHE,
    LOAD,
    REQUESTS,
    RUNNING,
    TTFT_P50,
    TTFT_P90,
    WAITING,
    Service,
    SignalsPage,
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
