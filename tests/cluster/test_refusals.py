"""Requests that can never work are refused when they are made, with what is wrong and what exists."""

import pytest
from tests.support.virtual_lab import InLab, VirtualLab

from tessera.kube.client.errors import ApiError
from tessera.kube.resources import PODS

CASES = [
    ("a profile with a typo", {"nvidia.com/mig-3g.20b": "1"}, ["3g.20b", "3g.20gb"]),
    ("a profile that no card has", {"nvidia.com/mig-3g.40gb": "1"}, ["3g.40gb", "3g.20gb"]),
    ("a negative count", {"nvidia.com/mig-1g.5gb": "-1"}, ["nvidia.com/mig-1g.5gb"]),
    ("a fraction", {"nvidia.com/mig-1g.5gb": "500m"}, ["nvidia.com/mig-1g.5gb"]),
    ("a slice beside a whole GPU", {"nvidia.com/mig-1g.5gb": "1", "nvidia.com/gpu": "1"}, ["nvidia.com/gpu"]),
]


@pytest.mark.parametrize(("limits", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_bad_request_is_refused(in_lab: InLab, limits: dict[str, str], words: list[str]) -> None:
    async def scenario(lab: VirtualLab) -> None:
        with pytest.raises(ApiError) as refusal:
            await lab.create("bad", limits)
        for word in words:
            assert word in str(refusal.value)

    in_lab(scenario, nodes="1xA100-40GB")


def test_a_pod_may_not_choose_its_devices_itself(in_lab: InLab) -> None:
    async def scenario(lab: VirtualLab) -> None:
        container = {
            "name": "c",
            "image": "i",
            "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
            "resources": {"limits": {"nvidia.com/mig-1g.5gb": "1"}},
        }
        with pytest.raises(ApiError, match="NVIDIA_VISIBLE_DEVICES"):
            await lab.client.create(
                PODS.as_dicts(), {"metadata": {"name": "bad"}, "spec": {"containers": [container]}}, "default"
            )

    in_lab(scenario, nodes="1xA100-40GB")


@pytest.mark.parametrize(
    ("limits", "largest"),
    [
        ({"nvidia.com/mig-1g.5gb": 50}, "2 cards NVIDIA A100-SXM4-40GB holds 14 x 1g.5gb"),
        ({"nvidia.com/mig-7g.40gb": 2, "nvidia.com/mig-1g.5gb": 1}, "holds 2 x 7g.40gb"),
        ({"nvidia.com/mig-1g.5gb.me": 3}, "holds 2 x 1g.5gb.me"),
    ],
)
def test_more_than_any_empty_node_holds_is_refused_with_the_largest_that_fits(
    in_lab: InLab, limits: dict[str, int], largest: str
) -> None:
    async def scenario(lab: VirtualLab) -> None:
        with pytest.raises(ApiError, match=largest):
            await lab.create("huge", limits)

    in_lab(scenario, nodes="1xA100-40GB,2xA100-40GB")
