"""Plays a storm: a seed says which machines there are, what happens to them, and when."""

import logging
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from tests.cluster.distance import Network, distant
from tests.cluster.driverlab import Drivers, play
from tests.cluster.storm import mishaps, people
from tests.cluster.storm.calm import comes_right, goes_on, look_at_round, put_right
from tests.cluster.storm.scene import Scene
from tests.cluster.storm.story import Story
from tests.cluster.storm.world import Machines, Registries, images
from tests.support.virtual_lab import COMMANDS

from tessera_lab.cluster.cluster import SimulatedCluster
from tessera_lab.installation.install import build_entrypoint
from tessera_lab.kubelet.context import ContainerContext, Entrypoint

#: How many of the images there are not at first: one in so many.
_MISSING = 4
#: Between Tessera and the API server.
_NETWORKS = (Network(), Network(0.02), Network(0.5), Network(0.1, 0.01))
#: Pauses between two happenings, seconds, up to six of them: in a round where all comes at once, and in others.
_PAUSES = ((0.0, 0.01, 0.03, 0.3, 1.7), (0.03, 0.3, 1.7, 10.0, 30.0, 130.0))
#: So many rounds happen to a rollout.
_ROLLED_OUT = 0.6
#: In which nobody does anything, between two rounds.
_LULL = 1500.0

Action = Callable[[Scene], Awaitable[None]]
ACTIONS: Sequence[Action] = (*people.ACTIONS, *mishaps.ACTIONS)


def storm(folder: Path, seed: int, rounds: int = 3) -> Story:
    """Plays one to its end.

    Args:
        folder: where nodes keep files.
        seed: of everything.
        rounds: how often something happens, followed by half an hour in which nothing does.

    Returns:
        What happened, and what should not have.
    """
    rng = random.Random(seed)
    machines = Machines(rng)
    network = rng.choice(_NETWORKS)
    specs = [machines.draw() for _ in range(rng.randint(3, 5))]
    story = Story()

    async def scenario(lab: Drivers) -> None:
        assert isinstance(lab.catalogue, Registries)
        story.note(f"{network}")
        for spec in specs:
            story.note(f"{spec.name}: {spec.os_image} {spec.kernel} {spec.architecture}")
        await _rage(Scene(lab, lab.catalogue, machines, rng, story), rounds)

    log = logging.getLogger()
    log.addHandler(story)
    try:
        play(
            folder,
            scenario,
            specs,
            images(),
            registries=Registries,
            processes=_watched(story),
            cluster_type=distant(network),
            seed=seed,
        )
    finally:
        log.removeHandler(story)
    return story


async def _rage(s: Scene, rounds: int) -> None:
    named = [name for name in s.images if "driver:" in name]
    for name in s.rng.sample(named, len(named) // _MISSING):
        s.registries.delete(name)
    await people.good_policy(s)
    for _ in range(s.rng.randint(0, 3)):
        await people.workload(s)
    await s.lab.clock.sleep(s.rng.choice([0.0, _LULL]))
    for _ in range(rounds):
        if s.rng.random() < _ROLLED_OUT:
            await people.good_policy(s)
        pauses = s.rng.choice(_PAUSES)
        for _ in range(s.rng.randint(2, 10)):
            await s.rng.choice(ACTIONS)(s)
            for _ in range(s.rng.randint(1, 6)):
                await s.lab.clock.sleep(s.rng.choice(pauses))
            s.always.look_at_evictions()
        await s.lab.clock.sleep(_LULL)
        look_at_round(s)
    await put_right(s)
    await comes_right(s)
    await goes_on(s)
    s.always.look_at_evictions()
    s.story.note(f"{s.always.most} nodes were under way at once, {s.always.evicted} pods were evicted")


def _watched(story: Story) -> Callable[[SimulatedCluster], Entrypoint]:
    """Tessera's processes; one that crashes is told of."""
    bound = build_entrypoint(COMMANDS)

    def watched(cluster: SimulatedCluster) -> Entrypoint:
        inner = bound(cluster)

        async def run(context: ContainerContext) -> int:
            try:
                return await inner(context)
            except Exception:
                story.problem(f"{context.argv[1]} of {context.host.name} crashed: {traceback.format_exc()[-3000:]}")
                raise

        return run

    return watched
