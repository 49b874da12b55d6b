"""A kernel is announced to a whole cluster: its image is built before a node boots into it; simulated time."""

from collections.abc import Callable

import pytest
from tests.cluster.driverlab import COSTS, K1, K2, Drivers, builder, node, precompiled

from tessera.api.nodes.node_marks import DriverStrategy
from tessera.driver.kernels import CONFIG_MAP
from tessera.driver.next_kernels import COVERAGE_ANNOTATION
from tessera.kube.resources import CONFIGMAPS

NAMESPACE = "tessera-system"
BUILDING = {"tessera.dev/driver-build-repository": "registry.local/built"}
BUILT = f"registry.local/built/driver:525.125.06-{K2}-ubuntu22.04"


async def covered(lab: Drivers) -> str:
    """Returns the coverage that the controller wrote beside the list."""
    held = await lab.client.get(CONFIGMAPS, CONFIG_MAP, NAMESPACE)
    return held.metadata.annotations.get(COVERAGE_ANNOTATION, "")


async def comes_to(lab: Drivers, beginning: str, seconds: float) -> None:
    for _ in range(round(seconds / 10)):
        if (await covered(lab)).startswith(beginning):
            return
        await lab.clock.sleep(10)
    raise AssertionError(f"not {beginning!r} within {seconds:.0f} s but {await covered(lab)!r}")


def test_the_image_is_there_before_a_node_with_the_kernel_is(with_drivers: Callable[..., None]) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy(annotations=BUILDING)
        await lab.served("a", strategy=DriverStrategy.PRECOMPILED)
        await lab.config_map(CONFIG_MAP, {"ubuntu22.04": K2})
        await comes_to(lab, f"0/1 covered. ubuntu22.04 {K2} amd64: ", 60)
        await lab.until(lambda: len(lab.jobs.cache) == 1, "its build is under way", 60)
        await comes_to(lab, "1/1 covered", COSTS.build_seconds + 300)
        assert lab.catalogue.find_image(BUILT) is not None
        lab.cluster.add_node(node("b", K2))
        await lab.served("b", strategy=DriverStrategy.MIRROR, seconds=COSTS.compile_seconds)
        assert len(lab.jobs.cache) == 1
        assert not lab.never_pulled

    with_drivers(scenario, [node("a", K1)], precompiled(K1) | builder())


@pytest.mark.soak
def test_a_controller_that_is_killed_meanwhile_orders_no_second_build(with_drivers: Callable[..., None]) -> None:
    async def scenario(lab: Drivers) -> None:
        await lab.policy(annotations=BUILDING)
        await lab.served("a")
        await lab.config_map(CONFIG_MAP, {"ubuntu22.04": K2})
        await lab.until(lambda: len(lab.jobs.cache) == 1, "its build is under way", 60)
        await lab.kill()
        await comes_to(lab, "1/1 covered", COSTS.build_seconds + 300)
        assert len(lab.jobs.cache) == 1

    with_drivers(scenario, [node("a", K1)], precompiled(K1))
