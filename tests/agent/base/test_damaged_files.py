"""State files damaged while the agent was away: the next agent starts, and all ends as if nothing had happened."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

import pytest
from tests.support.searching import steps

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.conftest import Scene

FOREIGN = ("1g.5gb", 0, 6)
SLICES = [("1g.5gb", 0, 2), ("2g.10gb", 0, 4), ("3g.20gb", 1, 4)]
NESTED = b'{"owners":' * 50_000


def damage(path: Path, chance: random.Random) -> None:
    """One of the ways in which a file goes bad."""
    content = path.read_bytes()
    at = chance.randrange(len(content))
    flipped = bytes([content[at] ^ (1 << chance.randrange(8))])
    path.write_bytes(
        chance.choice(
            [
                b"",
                b"\xff",
                NESTED,
                chance.randbytes(100),
                content[:at],
                content[:at] + b"\xff" + content[at + 1 :],
                content[:at] + flipped + content[at + 1 :],
            ]
        )
    )


def test_pods_keep_their_slices_after_any_damage_to_the_agents_files(play_anew: Callable[..., None]) -> None:
    """The foreign slice stays too: what nobody can prove to be ours is not destroyed."""
    damaged: set[str] = set()

    async def story(scene: Scene, seed: int) -> None:
        chance = random.Random(seed)
        scene.foreign(FOREIGN)
        await scene.begin_slicing()
        await scene.admit_promised("web", {"main": {"1g.5gb": 1, "2g.10gb": 1}, "side": {"3g.20gb": 1}}, *SLICES)
        before = [await scene.start("web", container) for container in ("main", "side")]
        await scene.reported("web", "created")
        for _ in range(2):
            await scene.kill_agent()
            for path in sorted(scene.options.state_dir.glob("*.json")):
                damaged.add(path.name)
                damage(path, chance)
            scene.start_agent()
            await scene.until(functools.partial(scene.allocatable, "nvidia.com/mig-3g.20gb", 4))
            assert [await scene.start("web", container) for container in ("main", "side")] == before
            assert sorted(scene.places()) == sorted([FOREIGN, *SLICES])
        await scene.finish_and_release("web")
        assert scene.places() == [FOREIGN]
        await scene.until(scene.journal_is_empty)
        assert scene.cdi_files() == []

    for seed in range(steps(50)):
        play_anew(functools.partial(story, seed=seed), cards="2xA100-40GB")
    assert damaged >= {"journal.json", "owners.json"}


@pytest.mark.parametrize("label", ["all-1g.5gb", "all-disabled"])
def test_a_node_with_a_layout_offers_the_same_after_any_damage_to_the_agents_files(
    play_anew: Callable[..., None], label: str
) -> None:
    offered = ("nvidia.com/mig-1g.5gb", 7) if label == "all-1g.5gb" else ("nvidia.com/gpu", 1)
    damaged: set[str] = set()

    async def story(scene: Scene, seed: int) -> None:
        chance = random.Random(seed)
        await scene.begin(label=label)
        for _ in range(2):
            await scene.until(functools.partial(scene.allocatable, *offered))
            await scene.kill_agent()
            for path in sorted(scene.options.state_dir.glob("*.json")):
                damaged.add(path.name)
                damage(path, chance)
            scene.start_agent()
        await scene.until(functools.partial(scene.allocatable, *offered))

    for seed in range(steps(40)):
        play_anew(functools.partial(story, seed=seed))
    assert damaged >= {"layout.json", "resources.json", "owners.json"}
