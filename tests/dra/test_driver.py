"""Opaque configurations, the driver's name and its classes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.support.device_claims import profile_class

from tessera.api.names import CLAIM_DRIVERS
from tessera.doctor.manifests import deploy_folder, read_manifests
from tessera.dra.claims import ClaimSpec, DeviceClass, DeviceConfig, is_our_class
from tessera.dra.devices import Holdings, Pool
from tessera.dra.driver_objects import (
    check_served,
    device_classes,
    find_rival,
    plan_slices,
)
from tessera.dra.matching import NoMatch, match_claims
from tessera.dra.node_devices import DRIVER, NVIDIA_DRIVER, NodeCard, PublishOptions, node_pools
from tessera.dra.opaque_configs import (
    ConfigRefused,
    DeviceSettings,
    MpsSettings,
    check_configs,
    read_config,
    settings_of,
)
from tessera.dra.requests import GUARD, ClaimRefused, read_demand
from tessera.dra.resource_slices import ResourceSlice
from tessera.dra.selectors import DeviceSelectors
from tessera.mig.models import model_by_short_name

PLACE = "claim ns/c: spec.devices.config[0]"


def config(parameters: Any, *requests: str, driver: str = DRIVER) -> DeviceConfig:
    return msgspec.convert({"requests": requests, "opaque": {"driver": driver, "parameters": parameters}}, DeviceConfig)


def gpu(**sharing: Any) -> dict[str, Any]:
    return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig", "sharing": sharing}


def mig(**sharing: Any) -> dict[str, Any]:
    return gpu(**sharing) | {"kind": "MigDeviceConfig"}


def mps(**values: Any) -> dict[str, Any]:
    return gpu(strategy="MPS", mpsConfig=values)


@pytest.mark.parametrize(
    ("parameters", "settings"),
    [
        (gpu() | {"sharing": None}, DeviceSettings(kind="GpuConfig")),
        (gpu(strategy="TimeSlicing"), DeviceSettings(kind="GpuConfig", strategy="TimeSlicing", interval="Default")),
        (
            gpu(strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"}),
            DeviceSettings(kind="GpuConfig", strategy="TimeSlicing", interval="Long"),
        ),
        (mig(strategy="TimeSlicing"), DeviceSettings(kind="MigDeviceConfig", strategy="TimeSlicing")),
        (mig(strategy="MPS"), DeviceSettings(kind="MigDeviceConfig", strategy="MPS", mps=MpsSettings())),
        (
            mps(
                defaultActiveThreadPercentage=50,
                defaultPinnedDeviceMemoryLimit="10Gi",
                defaultPerDevicePinnedMemoryLimit={"0": "512Mi", "GPU-1": 2**20},
                multiUser=True,
            ),
            DeviceSettings(
                kind="GpuConfig",
                strategy="MPS",
                mps=MpsSettings(
                    thread_percent=50,
                    pinned_mib=10240,
                    pinned_mib_by_device={"0": 512, "GPU-1": 1},
                    multi_user=True,
                ),
            ),
        ),
    ],
)
def test_every_field_is_read(parameters: Any, settings: DeviceSettings) -> None:
    assert read_config(PLACE, config(parameters), DRIVER) == settings


@pytest.mark.parametrize(
    ("parameters", "field", "rule"),
    [
        ({}, "parameters.apiVersion", "must be resource.nvidia.com/v1beta1, not nothing"),
        ("text", "parameters", "must be a mapping"),
        (gpu() | {"apiVersion": "v1"}, "parameters.apiVersion", 'must be resource.nvidia.com/v1beta1, not "v1"'),
        (gpu() | {"kind": "GpuConfg"}, "parameters.kind", "did you mean GpuConfig?"),
        (gpu() | {"kind": "VfioDeviceConfig"}, "parameters.kind", "cards are not given to virtual machines"),
        (gpu() | {"shring": {}}, "parameters.shring", "unknown; did you mean sharing?"),
        (gpu(), "parameters.sharing.strategy", "must be TimeSlicing or MPS, not nothing"),
        (gpu(strategy="Exclusive"), "parameters.sharing.strategy", 'must be TimeSlicing or MPS, not "Exclusive"'),
        (
            gpu(strategy="TimeSlicing", mpsConfig={}),
            "parameters.sharing.mpsConfig",
            "belongs to strategy MPS, and the strategy is TimeSlicing",
        ),
        (gpu(strategy="MPS", timeSlicingConfig={}), "parameters.sharing.timeSlicingConfig", "belongs to strategy Time"),
        (mig(strategy="TimeSlicing", timeSlicingConfig={}), "parameters.sharing.timeSlicingConfig", "unknown"),
        (
            gpu(strategy="TimeSlicing", timeSlicingConfig={"interval": "Longer"}),
            "parameters.sharing.timeSlicingConfig.interval",
            "must be Default, Short, Medium or Long",
        ),
        (
            mps(defaultActiveThreadPercentage=101),
            "mpsConfig.defaultActiveThreadPercentage",
            "must be 0 to 100, not 101",
        ),
        (mps(defaultActiveThreadPercentage=-1), "mpsConfig.defaultActiveThreadPercentage", "must be 0 or more, not -1"),
        (mps(defaultPinnedDeviceMemoryLimit="1K"), "mpsConfig.defaultPinnedDeviceMemoryLimit", "quantity '1K'"),
        (mps(defaultPinnedDeviceMemoryLimit="1k"), "mpsConfig.defaultPinnedDeviceMemoryLimit", "must be 1Mi or more"),
        (
            mps(defaultPerDevicePinnedMemoryLimit={"0": "x"}),
            "mpsConfig.defaultPerDevicePinnedMemoryLimit.0",
            "quantity 'x'",
        ),
        (mps(multiUser="yes"), "mpsConfig.multiUser", 'must be true or false, not "yes"'),
        (mps(threads=5), "mpsConfig.threads", "unknown; the keys here are"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_field(parameters: Any, field: str, rule: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_config(PLACE, config(parameters), DRIVER)
    assert str(refused.value).startswith(f"{PLACE}.opaque.parameters")
    assert field in str(refused.value)
    assert rule in str(refused.value)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(_JSON, st.sampled_from(("sharing", "kind", "apiVersion")), _JSON)
def test_any_parameters_are_read_or_refused(parameters: Any, key: str, value: Any) -> None:
    refused = []
    for each in (parameters, gpu() | {key: value}, gpu(strategy="MPS", mpsConfig=value), mig(strategy=value)):
        try:
            read_config(PLACE, config(each), DRIVER)
        except ConfigRefused as error:
            refused.append(str(error))
    assert all(text.startswith(PLACE) for text in refused)


def test_a_configuration_of_another_driver_is_not_read() -> None:
    assert read_config(PLACE, config({"anything": 1}, driver="other.example.com"), DRIVER) is None
    with pytest.raises(ConfigRefused, match="has no opaque"):
        check_configs([(PLACE, DeviceConfig())], DRIVER)


def test_the_last_configuration_for_a_request_counts() -> None:
    configs = [
        ("class", config(gpu(strategy="MPS"))),
        ("claim", config(gpu(strategy="TimeSlicing"), "a", "b/x")),
        ("claim", config(mig(strategy="MPS"))),
    ]
    found = [settings_of(configs, DRIVER, name, "gpu").strategy for name in ("a", "b/x", "b/y", "a/z")]
    assert found == ["TimeSlicing", "TimeSlicing", "MPS", "TimeSlicing"]
    assert settings_of(configs, DRIVER, "c", "mig") == DeviceSettings(
        kind="MigDeviceConfig", strategy="MPS", mps=MpsSettings()
    )
    assert settings_of([], DRIVER, "a", "gpu") == DeviceSettings(kind="GpuConfig")


def test_a_configuration_for_a_request_must_be_of_its_devices_kind() -> None:
    with pytest.raises(
        ConfigRefused, match=r"x\.opaque\.parameters\.kind is GpuConfig, but request a has a device of type mig"
    ):
        settings_of([("x", config(gpu(strategy="MPS"), "a"))], DRIVER, "a", "mig")


# -- name and classes -------------------------------------------------------------------------------------------------


def test_an_installation_makes_these_classes() -> None:
    """With their guards, so that kube-scheduler's allocator takes no device on any version."""
    objects = read_manifests(deploy_folder() / "options" / "claims.yaml")
    found = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "DeviceClass"}
    assert found == {
        each["metadata"]["name"]: each["spec"]
        for driver in CLAIM_DRIVERS
        for each in device_classes(driver, guarded=True)
    }


def test_the_page_shows_a_class_that_keeps_the_allocator_away() -> None:
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
    (text,) = (each for each in page.split("```") if "kind: DeviceClass" in each)
    shown = yaml.safe_load(text.removeprefix("yaml"))
    assert shown["spec"]["selectors"][-1] == {"cel": {"expression": GUARD}}
    assert is_our_class(msgspec.convert(shown, DeviceClass), DRIVER)


CARD = NodeCard(
    uuid="GPU-0",
    minor=0,
    index=0,
    product="NVIDIA A100-SXM4-40GB",
    compute_capability=(8, 0),
    memory_mib=40960,
    geometry=model_by_short_name("A100-40GB").geometry,
)
SHARED = msgspec.structs.replace(CARD, uuid="GPU-1", minor=1, index=1, shares=2)


def _pools(driver: str, **options: Any) -> tuple[Pool, ...]:
    return node_pools("n1", (CARD, SHARED), ("580.1.2", 13000), PublishOptions(driver=driver, **options))


def test_slices_of_another_program_with_our_name_are_a_rival() -> None:
    ours = [msgspec.convert(each, ResourceSlice) for each in plan_slices(_pools(NVIDIA_DRIVER), ()).create]
    assert find_rival(NVIDIA_DRIVER, "n1", ours) == ""
    theirs = msgspec.convert(
        {"metadata": {"name": "0-gpu.nvidia.com-n1-x7k2p"}, "spec": {"driver": NVIDIA_DRIVER, "nodeName": "n1"}},
        ResourceSlice,
    )
    assert "node n1: ResourceSlice 0-gpu.nvidia.com-n1-x7k2p of driver gpu.nvidia.com is another program's" in (
        find_rival(NVIDIA_DRIVER, "n1", [*ours, theirs])
    )
    assert find_rival(NVIDIA_DRIVER, "n2", [theirs]) == ""
    assert find_rival(DRIVER, "n1", [theirs]) == ""


@pytest.mark.parametrize("guarded", [False, True])
def test_each_class_chooses_its_devices(guarded: bool) -> None:
    found = {}
    for driver in (DRIVER, NVIDIA_DRIVER):
        written = [*device_classes(driver, guarded=guarded), profile_class(driver, "3g.20gb", guarded=guarded)]
        classes = {each["metadata"]["name"]: msgspec.convert(each, DeviceClass) for each in written}
        assert all(is_our_class(each, driver) for each in classes.values())
        for name in classes:
            query = {"deviceClassName": name, "tolerations": [{"operator": "Exists"}]}
            spec = msgspec.convert({"devices": {"requests": [{"name": "r", "exactly": query}]}}, ClaimSpec)
            demand = read_demand("claim ns/c", spec, classes)
            pools = _pools(driver, taints=not guarded)
            chosen = match_claims([demand], pools, Holdings(), DeviceSelectors())
            found[name] = "" if isinstance(chosen, NoMatch) else chosen[0].device.id.device
    assert found == {
        "gpu.tessera.dev": "gpu-0",
        "mig.tessera.dev": "gpu-0-mig-1g5gb-19-6",
        "gpu-shares.tessera.dev": "gpu-1-shares",
        "mig-3g.20gb.tessera.dev": "gpu-0-mig-3g20gb-9-4",
        "gpu.nvidia.com": "gpu-0",
        "mig.nvidia.com": "gpu-0-mig-1g5gb-19-6",
        "vfio.gpu.nvidia.com": "",
        "mig-3g.20gb.nvidia.com": "gpu-0-mig-3g20gb-9-4",
    }


def test_the_guard_keeps_the_allocator_of_kubernetes_away() -> None:
    for each in device_classes(DRIVER, guarded=True):
        texts = [selector["cel"]["expression"] for selector in each["spec"]["selectors"]]
        results = [DeviceSelectors().matches(texts[-1], device) for pool in _pools(DRIVER) for device in pool.devices]
        assert {(result.matches, result.problem) for result in results} == {(False, "")}


def test_cards_for_virtual_machines_are_refused_also_as_an_alternative() -> None:
    alternatives = [
        {"name": "a", "deviceClassName": "gpu.nvidia.com"},
        {"name": "b", "deviceClassName": "vfio.gpu.nvidia.com"},
    ]
    spec = msgspec.convert({"devices": {"requests": [{"name": "r", "firstAvailable": alternatives}]}}, ClaimSpec)
    with pytest.raises(ClaimRefused, match=r"requests\[0\]\.firstAvailable\[1\]\.deviceClassName is vfio"):
        check_served("claim ns/c", spec, NVIDIA_DRIVER)
