"""Slices of a pod, counted as kubelet hands devices from container to container."""

import pytest

from tessera.api.slice_requests import ContainerSlices, SliceRequestError, container_slices, pod_slices, slices_of
from tessera.kube.resources import Container, EnvVar, Pod, PodSpec, ResourceRequirements


def app(**counts: int) -> ContainerSlices:
    return ContainerSlices(name="app", counts=counts)


def init(**counts: int) -> ContainerSlices:
    return ContainerSlices(name="init", counts=counts, init=True)


def sidecar(**counts: int) -> ContainerSlices:
    return ContainerSlices(name="sidecar", counts=counts, init=True, sidecar=True)


@pytest.mark.parametrize(
    ("containers", "slices"),
    [
        ([app(a=1)], "a"),
        ([app(a=3)], "aaa"),
        ([app(a=1), app(b=1)], "ab"),
        ([app(a=1), app(a=1)], "aa"),
        ([app(b=1, a=2)], "aab"),
        ([init(a=1), app(a=1)], "a"),
        ([init(a=2), app(a=1)], "aa"),
        ([init(a=1), app(a=2)], "aa"),
        ([init(a=1), init(a=2), app(a=1), app(a=1)], "aa"),
        ([init(a=1), app(b=1)], "ab"),
        ([sidecar(a=1), app(a=1)], "aa"),
        ([init(a=2), sidecar(a=1), app(a=2)], "aaa"),
        ([sidecar(a=1), init(a=2), app(a=2)], "aaa"),
        ([sidecar(a=1), init(a=3), app(a=1)], "aaaa"),
        ([], ""),
    ],
)
def test_devices_of_init_containers_are_used_again_and_sidecars_keep_theirs(
    containers: list[ContainerSlices], slices: str
) -> None:
    assert "".join(pod_slices(containers)) == slices


@pytest.mark.parametrize("count", [129, 10**30])
def test_more_slices_than_any_node_has_are_refused_whatever_the_number(count: int) -> None:
    with pytest.raises(SliceRequestError, match=f"asks for {count} slices; .* no node has more than 128"):
        pod_slices([app(a=count)])
    with pytest.raises(SliceRequestError, match="asks for 129 slices"):
        pod_slices([app(a=64), app(b=65)])
    assert len(pod_slices([app(a=64), app(b=64)])) == 128


@pytest.mark.parametrize("amount", ["1", "1.0", "1000m", "1e0"])
def test_a_whole_number_may_be_written_in_any_way(amount: str) -> None:
    assert container_slices("c", {"nvidia.com/mig-1g.5gb": amount}, {}).counts == {"1g.5gb": 1}


def test_zero_is_no_request() -> None:
    assert container_slices("c", {"nvidia.com/mig-1g.5gb": "0", "nvidia.com/gpu": "1"}, {}).counts == {}


@pytest.mark.parametrize(
    ("limits", "requests", "env", "text"),
    [
        ({"nvidia.com/mig-1g.5gb": "0.5"}, {}, [], "slices come whole"),
        ({"nvidia.com/mig-1g.5gb": "-1"}, {}, [], "must not be negative"),
        ({"nvidia.com/mig-1g.5gb": "one"}, {}, [], "is no quantity"),
        ({"nvidia.com/mig-1g.5gb": "2"}, {"nvidia.com/mig-1g.5gb": "1"}, [], "cannot be overcommitted"),
        ({}, {"nvidia.com/mig-1g.5gb": "1"}, [], "set it in limits"),
        ({"nvidia.com/mig-1g.5gb": "1", "nvidia.com/gpu": "1"}, {}, [], "beside nvidia.com/gpu"),
        ({"nvidia.com/mig-1g.5gb": "1", "nvidia.com/gpu.shared": "1"}, {}, [], "beside nvidia.com/gpu.shared"),
        ({"nvidia.com/mig-1g.5gb": "1"}, {}, ["NVIDIA_VISIBLE_DEVICES"], "remove the variable"),
        ({"nvidia.com/mig-1g.5gb": "1"}, {}, ["CUDA_VISIBLE_DEVICES"], "remove the variable"),
    ],
)
def test_what_cannot_be_served_is_refused_and_says_where(
    limits: dict[str, str], requests: dict[str, str], env: list[str], text: str
) -> None:
    with pytest.raises(SliceRequestError, match=text) as caught:
        container_slices("worker", limits, requests, env)
    assert 'container "worker"' in str(caught.value)


def test_a_pod_is_read_container_by_container() -> None:
    def container(name: str, restart: str = "", **limits: str) -> Container:
        named = {f"nvidia.com/mig-{profile}": amount for profile, amount in limits.items()}
        return Container(name=name, restart_policy=restart, resources=ResourceRequirements(limits=named))

    pod = Pod(
        spec=PodSpec(
            init_containers=(container("warm", a="1"), container("proxy", "Always", a="1"), container("plain")),
            containers=(container("app", a="1"),),
        )
    )
    assert [(one.name, one.init, one.sidecar) for one in slices_of(pod)] == [
        ("warm", True, False),
        ("proxy", True, True),
        ("app", False, False),
    ]
    assert pod_slices(slices_of(pod)) == ("a", "a")


def test_environment_of_containers_without_slices_is_their_own_business() -> None:
    plain = Container(name="plain", env=(EnvVar(name="NVIDIA_VISIBLE_DEVICES"),))
    assert slices_of(Pod(spec=PodSpec(containers=(plain,)))) == ()
