"""Build orders of a pool: content, name, and refusal of objects that others wrote."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tessera.driver.build.orders import (
    BuildFamily,
    BuildOrder,
    BuildSettings,
    UnbuildableError,
    check_settings,
    make_order,
    order_for,
)
from tessera.driver.driver_sets import PoolKey
from tessera.gpu_operator.driver_policy import DriverPolicy, ImageSource

Ordered = Callable[..., BuildOrder]


def test_the_target_is_the_tag_that_nodes_look_for_first(ordered: Ordered, rhcos_64k: PoolKey) -> None:
    assert ordered().target == "registry.local/nvidia/driver:525.125.06-5.15.0-69-generic-ubuntu22.04"
    assert ordered(version="525").target == "registry.local/nvidia/driver:525-5.15.0-69-generic-ubuntu22.04"
    long = "registry.local/nvidia/driver:550.54.14-5.14.0-284.54.1.el9_2.aarch64_64k-rhcos4.15"
    assert ordered(rhcos_64k, "550.54.14").target == long


def test_a_policy_with_a_build_repository_says_all_that_an_order_needs(rhcos: PoolKey) -> None:
    policy = DriverPolicy(
        kind="ClusterPolicy",
        name="cluster-policy",
        use_precompiled=True,
        source=ImageSource(repository="quay.io/vemporop", image="nvidia-gpu-driver", version="525.125.06"),
        build_repository="registry.local/gpu/",
        build_secret="push-here",
        kernel_module_type="open",
    )
    toolkit = "registry.local/dtk@sha256:" + "0" * 64
    made = order_for(policy, rhcos, settings=BuildSettings(builder_images={rhcos.kernel: toolkit}))
    assert made.target == "registry.local/gpu/nvidia-gpu-driver:525.125.06-5.14.0-284.54.1.el9_2.x86_64-rhcos4.15"
    assert (made.open_modules, made.settings.push_secret) == (True, "push-here")
    assert made.builder_image == toolkit


def test_without_a_build_repository_there_is_no_order(jammy: PoolKey) -> None:
    policy = DriverPolicy(kind="ClusterPolicy", name="cluster-policy", source=ImageSource(image="x", version="525"))
    with pytest.raises(UnbuildableError, match="ClusterPolicy 'cluster-policy': a build needs a repository"):
        order_for(policy, jammy)


@pytest.mark.parametrize(
    ("version", "module_type", "open_modules"),
    [
        ("550.54.14", "auto", False),
        ("580", "auto", True),
        ("580", "proprietary", False),
        ("525", "open", True),
        ("560.35.03", "", True),
    ],
)
def test_the_branch_decides_where_nobody_does(
    ordered: Ordered, version: str, module_type: str, open_modules: bool
) -> None:
    assert ordered(version=version, module_type=module_type).open_modules is open_modules


def test_two_who_order_the_same_image_order_one_build(ordered: Ordered) -> None:
    settings = BuildSettings(base_images={"ubuntu22.04": "registry.local/ubuntu:22.04"})
    assert ordered().name == ordered(settings=settings, module_type="open").name


def test_architectures_that_share_a_tag_are_two_builds_that_take_turns(ordered: Ordered, jammy: PoolKey) -> None:
    here, there = ordered(), ordered(msgspec.structs.replace(jammy, architecture="arm64"))
    assert here.target == there.target
    assert here.name != there.name
    assert here.tag_key == there.tag_key
    assert here.shares_tag


def test_a_kernel_that_names_its_architecture_shares_no_tag(ordered: Ordered, rhcos_64k: PoolKey) -> None:
    assert not ordered(rhcos_64k, "550.54.14").shares_tag


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"os_id": "sles"}, "no way to build for 'sles' is known; known are almalinux"),
        ({"kernel": "5.15.0-69$(reboot)"}, "kernel '5.15.0-69\\$\\(reboot\\)' is not of the form"),
        ({"kernel": "5.15.0\n-69"}, "kernel"),
        ({"kernel": "5" * 200}, "kernel"),
        ({"os_version": "22.04;true"}, "version of the operating system"),
        ({"architecture": "riscv64"}, "only amd64 and arm64 are known"),
        ({"ostree": "x y"}, "version of RHCOS"),
    ],
)
def test_what_a_node_says_is_refused_where_it_could_be_a_command(
    jammy: PoolKey, changed: dict[str, str], says: str
) -> None:
    pool = msgspec.structs.replace(jammy, **changed)
    with pytest.raises(UnbuildableError, match=says):
        make_order(pool, version="525", target="registry.local/driver:525")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"version": "latest"}, "driver version 'latest' is not of the form .* a branch like 525"),
        ({"version": "525 --help"}, "driver version"),
        ({"target": "registry.local/driver"}, "target 'registry.local/driver'.*write registry/path/image:tag"),
        ({"target": "registry.local/driver:x y"}, "target"),
        ({"module_type": "closed"}, "kernel module type 'closed': write auto, open or proprietary"),
        ({"settings": BuildSettings(buildah_image="-v")}, "image '-v'"),
        ({"settings": BuildSettings(push_secret="../x")}, "push secret"),
        ({"settings": BuildSettings(downloads="file:///etc")}, "address of downloads"),
    ],
)
def test_what_a_policy_says_is_refused_too(jammy: PoolKey, given: dict[str, Any], says: str) -> None:
    said: dict[str, Any] = {"version": "525", "target": "registry.local/driver:525"} | given
    with pytest.raises(UnbuildableError, match=says):
        make_order(jammy, **said)


def test_a_branch_alone_names_no_file_to_compile(rhcos: PoolKey) -> None:
    with pytest.raises(UnbuildableError, match=r"does not name NVIDIA's \.run file"):
        make_order(rhcos, version="550", target="registry.local/driver:550")


def test_images_of_a_build_are_taken_by_digest() -> None:
    pinned = f"registry.local/image@sha256:{'0' * 64}"
    settings = BuildSettings(
        buildah_image=pinned, base_images={"ubuntu22.04": pinned}, builder_images={"5.14.0-427.13.1.el9_4": pinned}
    )
    assert check_settings(settings) is settings


def test_ubuntu_takes_packages_and_rhcos_compiles_in_its_own_toolkit(ordered: Ordered, rhcos: PoolKey) -> None:
    assert ordered().family is BuildFamily.UBUNTU
    assert (ordered().base_image, ordered().builder_image) == ("docker.io/library/ubuntu:22.04", "")
    compiled = ordered(rhcos, "550.54.14")
    assert compiled.family is BuildFamily.RHEL
    assert compiled.base_image == "registry.access.redhat.com/ubi9/ubi:latest"
    assert compiled.builder_image.endswith("/openshift/driver-toolkit:415.92.202402201450-0")


def test_plain_rhel_compiles_in_a_base_image_that_installs_the_headers(rhcos: PoolKey, ordered: Ordered) -> None:
    plain = msgspec.structs.replace(rhcos, os_id="rhel", os_version="9.2", ostree="")
    assert ordered(plain, "550.54.14").builder_image == "registry.access.redhat.com/ubi9/ubi:latest"


def test_rhcos_without_its_version_needs_a_toolkit_by_name(rhcos: PoolKey) -> None:
    unknown = msgspec.structs.replace(rhcos, ostree="")
    with pytest.raises(UnbuildableError, match="which Driver Toolkit fits is not known"):
        make_order(unknown, version="550.54.14", target="registry.local/driver:550")
    settings = BuildSettings(builder_images={rhcos.kernel: "quay.io/dtk:1"})
    assert (
        make_order(unknown, version="550.54.14", target="r.local/d:5", settings=settings).builder_image
        == "quay.io/dtk:1"
    )
