"""Every claim spec of NVIDIA's driver (dra-driver-nvidia-gpu 95932046: demo, test, tests) runs or says why it does not.

The table holds the facts of each file: what its claims ask for, how many pods have one, and on which cards. Version
v1beta1 differs in the place of the class only; the API server converts it. The driver has NVIDIA's name here.
"""

from typing import Any

import msgspec
import pytest
from tests.support.device_claims import profile_class, read_geometry

from tessera.dra.claims import ClaimSpec, DeviceClass, DeviceConfig, is_our_class
from tessera.dra.devices import Holdings, Pool
from tessera.dra.driver_objects import check_served, device_classes
from tessera.dra.matching import NoMatch, match_claims
from tessera.dra.node_devices import NVIDIA_DRIVER, NodeCard, PublishOptions, node_pools
from tessera.dra.opaque_configs import ConfigRefused, check_configs, settings_of
from tessera.dra.requests import ClaimRefused, read_demand
from tessera.dra.selectors import DeviceSelectors
from tessera.mig.geometry import Engines, GpuModel
from tessera.mig.models import model_by_short_name

A100, H100_94 = model_by_short_name("A100-40GB"), model_by_short_name("H100-SXM5-94GB")
#: A class of NVIDIA's other driver, which is installed beside ours.
CHANNELS = msgspec.convert(
    {
        "metadata": {"name": "compute-domain-default-channel.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": "device.driver == 'compute-domain.nvidia.com'"}}]},
    },
    DeviceClass,
)
CLASSES = {
    each.metadata.name: each
    for each in [
        CHANNELS,
        *(msgspec.convert(each, DeviceClass) for each in device_classes(NVIDIA_DRIVER)),
        msgspec.convert(profile_class(NVIDIA_DRIVER, "1g.12gb"), DeviceClass),
    ]
}
#: Versions of resource.k8s.io that Kubernetes 1.34 and later serve.
SERVED = {"v1", "v1beta1", "v1beta2"}
SELECTORS = DeviceSelectors()


def cards(model: GpuModel, count: int = 8, **more: Any) -> list[NodeCard]:
    assert model.table is not None
    return [
        NodeCard(
            uuid=f"GPU-{index}",
            minor=index,
            index=index,
            product=model.product_name,
            compute_capability=model.compute_capability,
            memory_mib=model.memory_mib,
            engines=Engines(multiprocessors=108),
            geometry=read_geometry(model.table),
            **more,
        )
        for index in range(count)
    ]


def pools(node_cards: list[NodeCard]) -> tuple[Pool, ...]:
    options = PublishOptions(driver=NVIDIA_DRIVER, placed_by_us=False)
    return node_pools("n1", node_cards, ("580.159.04", 13000), options)


PLAIN = pools(cards(A100))
#: One card in 4 shares, as with NVIDIA's `consumableShares`.
SHARED = pools(cards(A100, 1, shares=4, sharing="time-slicing"))
LARGE = pools(cards(H100_94))


NONE_MATCHES = f"{len(PLAIN[0].devices)} do not match the selectors"


def gpu(name: str = "gpu", class_name: str = "gpu.nvidia.com", *selectors: str, **more: Any) -> dict[str, Any]:
    query = {"deviceClassName": class_name, "selectors": [{"cel": {"expression": each}} for each in selectors], **more}
    return {"name": name, "exactly": query}


def mig(name: str, *selectors: str) -> dict[str, Any]:
    return gpu(name, "mig.nvidia.com", *selectors)


def config(request: str, kind: str, sharing: Any = None, driver: str = NVIDIA_DRIVER, **more: Any) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, **more}
    if sharing is not None:
        parameters["sharing"] = sharing
    return {"requests": [request], "opaque": {"driver": driver, "parameters": parameters}}


PROFILE = "device.attributes['gpu.nvidia.com'].profile == '{}'"
PRODUCT = 'device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*{}.*$")'
SMS = "device.capacity['gpu.nvidia.com'].multiprocessors.{}(quantity(\"{}\"))"
HALF_MPS = {
    "strategy": "MPS",
    "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "10Gi"},
}
LONG = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}
SHORT = {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}
EVEN = " || ".join(f"device.attributes['gpu.nvidia.com'].index == {each}" for each in (0, 2, 4, 6))
EVEN_A100 = f"device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*a100.*$')\n&&\n({EVEN})\n"
NO_PASSTHROUGH = "exactly.deviceClassName is vfio.gpu.nvidia.com: cards are not given to virtual machines"
CHANNEL = {"requests": [gpu("channel", CHANNELS.metadata.name)]}
NO_INTERVAL = "spec.devices.config[0].opaque.parameters.sharing.timeSlicingConfig.interval is {}: NVML cannot set it"
RUNS, ELSEWHERE = "runs", "another driver's"


class Spec(msgspec.Struct, kw_only=True):
    """The facts of some files: the claims of each pod, the number of pods, the cards, and the answer."""

    files: str
    claims: list[dict[str, Any]]
    pods: int = 1
    on: tuple[Pool, ...] = PLAIN
    answer: str = RUNS
    version: str = "v1"


ONE = {"requests": [gpu()]}
SPECS = [
    Spec(
        files="quickstart/v1/gpu-test1 quickstart/v1beta1/gpu-test1 gpu-2pods-2gpus gpu-job-rct-parallel gpu-job-rct",
        claims=[ONE],
        pods=2,
    ),
    Spec(
        files="quickstart/v1/gpu-test2 quickstart/v1beta1/gpu-test2 quickstart/v1/gpu-test3"
        " quickstart/v1beta1/gpu-test3 gpu-1pod-2cnt-1gpu gpu-2pods-1gpu gpu-simple-full gpu-cuda-busgrind"
        " gpu-cuda-demo-suite gpu-pod-fail-restart rc-shared-gpu pods-shared-gpu timeslicing",
        claims=[ONE],
    ),
    Spec(
        files="quickstart/v1/gpu-test4 quickstart/v1beta1/gpu-test4",
        claims=[
            {
                "requests": [
                    mig("mig-1g-5gb-0", PROFILE.format("1g.5gb")),
                    mig("mig-1g-5gb-1", PROFILE.format("1g.5gb")),
                    mig("mig-2g-10gb", PROFILE.format("2g.10gb")),
                    mig("mig-3g-20gb", PROFILE.format("3g.20gb")),
                ],
                "constraints": [{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}],
            }
        ],
        pods=4,
    ),
    Spec(
        files="quickstart/v1/gpu-test5 quickstart/v1beta1/gpu-test5",
        claims=[
            {
                "requests": [gpu("ts-gpu"), gpu("mps-gpu")],
                "config": [config("ts-gpu", "GpuConfig", LONG), config("mps-gpu", "GpuConfig", HALF_MPS)],
            }
        ],
        answer=NO_INTERVAL.format("Long"),
    ),
    Spec(
        files="quickstart/v1/gpu-test6 quickstart/v1beta1/gpu-test6",
        claims=[
            {
                "requests": [gpu("gpu", "gpu.nvidia.com", EVEN_A100)],
                "config": [config("gpu", "GpuConfig", LONG)],
            }
        ],
        pods=4,
        answer=NO_INTERVAL.format("Long"),
    ),
    Spec(files="quickstart/gpu-test7 gpu-two-claims-one-pod", claims=[ONE, ONE]),
    Spec(files="quickstart/gpu-test8", claims=[{"requests": [gpu(count=2)]}]),
    Spec(
        files="quickstart/v1/gpu-test-mps quickstart/v1beta1/gpu-test-mps",
        claims=[{"requests": [gpu("mps-gpu")], "config": [config("mps-gpu", "GpuConfig", HALF_MPS)]}],
    ),
    Spec(
        files="gpu-mps",
        claims=[{"requests": [gpu()], "config": [config("gpu", "GpuConfig", HALF_MPS)]}],
    ),
    Spec(
        files="gpu-timeslicing",
        claims=[{"requests": [gpu()], "config": [config("gpu", "GpuConfig", SHORT)]}],
        answer=NO_INTERVAL.format("Short"),
    ),
    Spec(files="consumable-shares/integer-sharing", claims=[ONE], pods=4, on=SHARED),
    Spec(
        files="consumable-shares/unlimited-sharing consumable-shares-unlimited",
        claims=[{"requests": [gpu(count=1)]}],
        pods=2,
        on=SHARED,
    ),
    Spec(
        files="gpu-consumable-shares-integer",
        claims=[{"requests": [gpu(capacity={"requests": {"shares": 1}})]}],
        pods=2,
        on=SHARED,
    ),
    Spec(
        files="consumable-shares/memory-sharing",
        claims=[{"requests": [gpu(capacity={"requests": {"memory": "4Gi"}})]}],
        pods=2,
        on=SHARED,
    ),
    Spec(
        files="consumable-shares-memory gpu-consumable-shares-memory",
        claims=[{"requests": [gpu(capacity={"requests": {"memory": "2Gi"}})]}],
        pods=2,
        on=SHARED,
    ),
    # A limit of a container that kube-scheduler turns into a claim.
    Spec(files="extended-resources/gpu-full", claims=[{"requests": [gpu("container-0-request-0")]}]),
    Spec(
        files="extended-resources/mig-1g-12gb",
        claims=[{"requests": [gpu("container-0-request-0", "mig-1g.12gb.nvidia.com")]}],
        on=LARGE,
    ),
    Spec(files="gpu-anymig", claims=[{"requests": [mig("anymig")]}]),
    Spec(
        files="gpu-simple-mig",
        claims=[
            {
                "requests": [
                    mig(
                        "mig1g",
                        SMS.format("isGreaterThan", 10)
                        + "\n&&\n"
                        + "device.capacity['gpu.nvidia.com'].memory.isGreaterThan(quantity(\"10Gi\"))",
                    )
                ]
            }
        ],
    ),
    Spec(
        files="gpu-simple-mig-ts",
        claims=[
            {
                "requests": [mig("mig1gts", SMS.format("isGreaterThan", 10))],
                "config": [config("mig1gts", "MigDeviceConfig", {"strategy": "TimeSlicing"})],
            }
        ],
    ),
    Spec(
        files="gpu-multiple-mig",
        claims=[
            {"requests": [mig("mig1", SMS.format("isLessThan", 30)), mig("mig2", SMS.format("isGreaterThan", 50))]}
        ],
    ),
    Spec(
        files="driver-version",
        claims=[
            {
                "requests": [
                    gpu(
                        "gpu",
                        "gpu.nvidia.com",
                        'device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("570.86.15")) >= 0',
                        count=1,
                    )
                ]
            }
        ],
    ),
    Spec(
        files="memory-size",
        claims=[
            {
                "requests": [
                    gpu(
                        "gpu",
                        "gpu.nvidia.com",
                        'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("16Gi")) >= 0',
                        count=1,
                    )
                ]
            }
        ],
    ),
    Spec(
        files="product-type",
        claims=[{"requests": [gpu("gpu-by-product", "gpu.nvidia.com", PRODUCT.format("a100"), count=1)]}],
    ),
    # What these files want to see is a pod that waits.
    Spec(
        files="error-handling",
        claims=[{"requests": [gpu("gpu", "gpu.nvidia.com", PRODUCT.format("h300"), count=2)]}],
        answer=f"request gpu wants 2 devices of class gpu.nvidia.com: {NONE_MATCHES}",
    ),
    Spec(
        files="gpu-cel-nomatch",
        claims=[
            {
                "requests": [
                    gpu(
                        "gpu",
                        "gpu.nvidia.com",
                        'device.attributes["gpu.nvidia.com"].productName == "NONEXISTENT-GPU-XYZ"',
                    )
                ]
            }
        ],
        answer=f"request gpu wants a device of class gpu.nvidia.com: {NONE_MATCHES}",
    ),
    Spec(
        files="quickstart/v1/gpu-test-vfio-config",
        claims=[
            {
                "requests": [gpu("gpu", "vfio.gpu.nvidia.com")],
                "config": [
                    config("gpu", "VfioDeviceConfig", iommu={"backendPolicy": "LegacyOnly", "enableAPIDevice": True})
                ],
            }
        ],
        answer=NO_PASSTHROUGH,
    ),
    Spec(
        files="quickstart/v1/gpu-test-vfiopci",
        claims=[{"requests": [gpu("gpu", "vfio.gpu.nvidia.com")]}],
        answer=NO_PASSTHROUGH,
    ),
    Spec(
        files="fabric-manager-partitioning/resourceClaimTemplates fabric-manager-partitioning/pod",
        claims=[
            {
                "requests": [gpu("gpus", "vfio.gpu.nvidia.com", allocationMode="ExactCount", count=2)],
                "constraints": [{"requests": ["gpus"], "matchAttribute": "gpu.nvidia.com/partition2"}],
            }
        ],
        answer=NO_PASSTHROUGH,
    ),
    # Compute domains are the business of NVIDIA's other driver, which may run beside ours.
    Spec(
        files="imex/channel-injection imex/channel-injection-all imex/nvbandwidth-test-job imex/nvbandwidth-test-job-1"
        " imex/nvbandwidth-test-job-2 nvb.tmpl",
        claims=[CHANNEL],
        answer=ELSEWHERE,
    ),
    Spec(files="imex/nvbandwidth-test-no-compute-domain-job", claims=[{"requests": [gpu("r", count=2)]}]),
    Spec(
        files="rc-opaque-cfg-unknown-field",
        claims=[
            {
                "requests": [gpu("chan", CHANNELS.metadata.name)],
                "config": [
                    config(
                        "chan",
                        "ComputeDomainChannelConfig",
                        driver="compute-domain.nvidia.com",
                        unexpectedField="foo",
                    )
                ],
            }
        ],
        answer=ELSEWHERE,
    ),
    Spec(
        files="quickstart/v1/imex-test1 quickstart/v1beta1/imex-test1",
        claims=[ONE, {"requests": [gpu("channel", "imex.nvidia.com")]}],
        answer="spec.devices.requests[0].exactly.deviceClassName is imex.nvidia.com: the cluster has no DeviceClass",
    ),
    # Versions that no server since 1.34 has; the API server refuses the objects.
    Spec(
        files="mig+mps/sharing-demo-claims mig+mps/sharing-demo-claims-1 mig+mps/sharing-demo-job"
        " mig+mps/sharing-demo-job-1 mig+mps/sharing-demo-parameters mig+mps/sharing-demo-parameters-1"
        " selectors/claims selectors/parameters selectors/pods",
        claims=[],
        version="v1alpha2",
        answer="apiVersion is resource.k8s.io/v1alpha2",
    ),
    Spec(
        files="quickstart/v1beta1/gpu-test-vfiopci",
        claims=[{"requests": [gpu("gpu", "vfio.gpu.nvidia.com")]}],
        version="v1alpha3",
        answer="apiVersion is resource.k8s.io/v1alpha3",
    ),
]
# Not listed: clusters/kind and clusters/nvkind (how to make a cluster), and the two files of nvidia-mig-parted.


def answer(spec: Spec) -> str:
    """What the cluster says to the claims of a file."""
    if spec.version not in SERVED:
        return f"apiVersion is resource.k8s.io/{spec.version}: Kubernetes has no such version since 1.34"
    claims = [msgspec.convert({"devices": each}, ClaimSpec) for each in spec.claims]
    holdings = Holdings()
    for number in range(spec.pods):
        demands = []
        for claim in claims:
            name = f"claim ns/pod-{number}"
            try:
                check_served(name, claim, NVIDIA_DRIVER)
                demand = read_demand(name, claim, CLASSES)
                check_configs(_configs(claim), NVIDIA_DRIVER)
            except (ClaimRefused, ConfigRefused) as refused:
                return str(refused)
            queries = [each for alternatives in demand.requests for each in alternatives]
            if any(is_our_class(CLASSES[each.class_name], NVIDIA_DRIVER) for each in queries):
                demands.append(demand)
        if not demands:
            return ELSEWHERE
        found = match_claims(demands, spec.on, holdings, SELECTORS)
        if isinstance(found, NoMatch):
            return found.reason
        for each in found:
            holdings.take(each.device, each.amounts)
            kind = str(each.device.attributes["gpu.nvidia.com/type"])
            settings_of(_configs(claims[each.claim]), NVIDIA_DRIVER, each.demand.name, kind)
    return RUNS


def _configs(claim: ClaimSpec) -> list[tuple[str, DeviceConfig]]:
    return [(f"spec.devices.config[{index}]", each) for index, each in enumerate(claim.devices.config)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.files.split()[0])
def test_a_spec_of_nvidia_runs_or_is_refused_with_its_field(spec: Spec) -> None:
    found = answer(spec)
    assert found == spec.answer if spec.answer in (RUNS, ELSEWHERE) else spec.answer in found


def test_the_table_has_every_file_once() -> None:
    listed = [name for spec in SPECS for name in spec.files.split()]
    assert len(listed) == len(set(listed))
    assert len(listed) == 73


def test_a_card_with_four_shares_gives_no_fifth() -> None:
    spec = Spec(files="x", claims=[ONE], pods=5, on=SHARED)
    assert "1 held by others" in answer(spec)
