"""Time to Ready by image: only of changes that were seen, bounded, without the time in a queue."""

from typing import Any

import msgspec

from tessera.clock import rfc3339
from tessera.kube.resources import Pod
from tessera.signals.ready_times import IMAGES, ReadyTimes, image_of


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
