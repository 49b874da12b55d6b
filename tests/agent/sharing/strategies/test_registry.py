"""Adding a strategy: its kind and rules, its class, its row; nothing else knows the strategies by name."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from tests.agent.sharing.conftest import SHARED, SLICE_4, Scene

from tessera.agent.base.settings import ServicePlan
from tessera.agent.sharing.strategies import STRATEGIES, NodeService
from tessera.api.sharing.devices import SHARING_RULES, AdvertisedDevice, AdvertisedResource, SharingKind
from tessera.kubelet.interfaces import Mount
from tessera.nvml.interface import GpuInfo

SOURCE = Path(__file__).parents[4] / "src"


class Edits(msgspec.Struct, frozen=True):
    envs: Mapping[str, str]
    mounts: tuple[Mount, ...]


class Licensed:
    """Shares that a container may use once the site has a licence for them."""

    def __init__(self) -> None:
        self.licences = 0

    def plan_service(self, resource: AdvertisedResource, cards: Mapping[str, GpuInfo], /) -> ServicePlan | None:
        return None

    def not_ready_reason(self, resource: str, device: AdvertisedDevice, service: NodeService, /) -> str:
        return "" if int(device.id.partition("::")[2]) < self.licences else "no licence is left"

    def container_edits(self, resource: str, service: NodeService, /) -> Edits:
        return Edits(envs={"LICENCE_OF": resource}, mounts=())


def test_the_advertiser_follows_a_strategy_that_it_has_never_seen(play: Callable[..., None]) -> None:
    licensed = Licensed()

    async def story(scene: Scene) -> None:
        licensed.licences = 3
        await scene.begin(SLICE_4)
        await scene.until(lambda: scene.allocatable.get(SHARED) == 3)
        assert set(scene.advertiser.withheld_entries.values()) == {"no licence is left"}
        await scene.admit("client", {SHARED: 1})
        assert scene.env("client")["LICENCE_OF"] == SHARED
        licensed.licences = 4
        scene.changes.notify()
        await scene.until(lambda: scene.allocatable[SHARED] == 4)
        assert not scene.advertiser.withheld_entries

    play(story, "1xA100-40GB", strategies={**STRATEGIES, SharingKind.TIME_SLICING: licensed})


def test_every_kind_has_its_strategy_and_its_rules() -> None:
    assert set(STRATEGIES) == set(SharingKind)
    assert set(SHARING_RULES) == set(SharingKind) - {SharingKind.NONE}


def test_no_other_module_asks_for_one_kind() -> None:
    """But the label ``nvidia.com/mps.capable``, which is about MPS alone."""
    named = re.compile(r"SharingKind\.(?!NONE)[A-Z]")
    files = {path.name for path in SOURCE.rglob("*.py") if named.search(path.read_text())}
    assert files == {"devices.py", "strategies.py", "label_facts.py"}
