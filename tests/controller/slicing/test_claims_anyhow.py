"""Claims under any order of events, with the controller killed between any two writes.

No device is given twice (:mod:`tests.support.claim_cluster` checks each write), no slots overlap, and when all pods are
gone, nothing is left: neither slices nor allocations.
"""

import random
from dataclasses import replace

import pytest
from tests.support.claim_cluster import ClaimCluster, request

from tessera.api.names import GATE

NODES = ("n1", "n2")
CLASSES = ("mig-1g.5gb.tessera.dev", "mig-3g.20gb.tessera.dev")
STEPS = ("create", "create", "share", "delete", "finish", "serve", "serve", "decide", "die", "clear", "refuse", "move")


class History:
    """A random history of one cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = ClaimCluster()
        self.cluster.pass_time(1)
        for name in NODES:
            self.cluster.claim_node(name)
        self.given = 0

    def step(self, number: int) -> None:
        """One thing happens."""
        cluster, choice = self.cluster, self.random.choice
        match choice(STEPS):
            case "create":
                classes = self.random.choices(CLASSES, k=choice((1, 1, 2)))
                keys = [cluster.claim(f"c{number}-{n}", request("x", each)) for n, each in enumerate(classes)]
                cluster.user(f"p{number}", *keys, gates=choice(((), (GATE,))))
            case "share" if cluster.claims:
                keys = self.random.choices(sorted(cluster.claims), k=choice((1, 2)))
                cluster.user(f"p{number}", *dict.fromkeys(keys), gates=choice(((), (GATE,))))
            case "delete" if cluster.pods:
                cluster.remove(cluster.pods[choice(sorted(cluster.pods))])
            case "finish" if cluster.pods:
                pod = cluster.pods[choice(sorted(cluster.pods))]
                cluster.put(replace(pod, finished=bool(pod.node)))
            case "serve":
                for _ in range(3):
                    cluster.run()
                    cluster.agents()
                    cluster.schedule()
            case "decide":
                cluster.run()
            case "die":
                cluster.slicer.decide()
                for write in cluster.slicer.pop_writes()[: self.random.randrange(4)]:
                    cluster.answer(write)
                cluster.restart()
            case "clear":
                cluster.release()
            case "refuse":
                cluster.refusing ^= {choice(NODES)}
                cluster.pass_time(choice((1, 700)))
            case "move":
                node = choice(NODES)
                cluster.withdraw(node)
                if choice((True, False)):
                    cluster.publish(node)

    def end(self) -> None:
        """All nodes take pods again; then all pods go."""
        cluster = self.cluster
        self.given = sum(bool(cluster.devices(key)) for key in cluster.claims)
        cluster.refusing.clear()
        for node in NODES:
            cluster.withdraw(node)
            cluster.publish(node)
        for _ in range(3):
            cluster.settle()
            cluster.pass_time(4_000)
        for pod in list(cluster.pods.values()):
            cluster.remove(pod)
        cluster.settle()


@pytest.mark.parametrize("seeds", [range(first, first + 20) for first in range(0, 60, 20)])
def test_no_device_is_given_twice_and_nothing_is_left(seeds: range) -> None:
    given = 0
    for seed in seeds:
        history = History(seed)
        for number in range(40):
            history.step(number)
            assert history.cluster.overlaps() == [], seed
        history.end()
        assert history.cluster.empty(), (seed, history.cluster.objects)
        assert [key for key in history.cluster.claims if history.cluster.devices(key)] == [], seed
        given += history.given
    assert given > len(seeds), "hardly any claim got a device"
