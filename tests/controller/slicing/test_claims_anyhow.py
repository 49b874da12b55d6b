"""Claims under any order of events, with the controller killed between any two writes.

No device is given twice (:mod:`tests.support.claim_cluster` checks each write), no slots overlap, and when all pods are
gone, nothing is left: neither slices nor allocations.
"""

import random
from dataclasses import replace
from functools import partial
from typing import Any

from tests.support.claim_cluster import ClaimCluster, request, selecting
from tests.support.searching import steps

from tessera.api.names import GATE
from tessera.controller.objects.pod_info import PodInfo

#: Each node with the number of its cards, and whether they are given whole, or in how many shares.
NODES: dict[str, dict[str, int]] = {
    "n1": {"count": 1},
    "n2": {"count": 2},
    "w1": {"count": 3, "whole": True},
    "w2": {"count": 2, "whole": True},
    "s1": {"count": 2, "shares": 4},
    "s2": {"count": 1, "shares": 3},
}
WHOLE, SHARES = "gpu.tessera.dev", "gpu-shares.tessera.dev"
REQUESTS: tuple[dict[str, Any], ...] = (
    request("x", "mig-1g.5gb.tessera.dev"),
    request("x", "mig-1g.5gb.tessera.dev"),
    request("x", "mig-3g.20gb.tessera.dev"),
    request("x", "mig-1g.5gb.tessera.dev", count=2),
    request("x", "mig-1g.5gb.tessera.dev", **selecting("device.attributes['gpu.tessera.dev'].index == 1")),
    request("x", "mig-1g.5gb.tessera.dev", **selecting("device.attributes['gpu.tessera.dev'].start in [0, 4]")),
    request("x", WHOLE),
    request("x", SHARES),
    request("x", SHARES, count=2),
    request("x", SHARES, capacity={"requests": {"shares": "2"}}),
    request("x", SHARES, capacity={"requests": {"memory": "12Gi"}}),
    request("x", SHARES, **selecting("device.attributes['gpu.tessera.dev'].index == 1")),
    request("x", WHOLE, count=2),
    request("x", WHOLE, allocationMode="All"),
    request("x", WHOLE, **selecting("device.attributes['gpu.tessera.dev'].index == 1")),
    {
        "name": "x",
        "firstAvailable": [
            {"name": "a", "deviceClassName": WHOLE, "count": 4},
            {"name": "b", "deviceClassName": "mig-3g.20gb.tessera.dev"},
        ],
    },
)
RULES: tuple[list[dict[str, str]], ...] = (
    [],
    [{"matchAttribute": "resource.kubernetes.io/pcieRoot"}],
    [{"distinctAttribute": "gpu.tessera.dev/index"}],
)
STEPS = (
    *("create", "create", "share", "drop", "delete", "finish"),
    *("serve", "serve", "decide", "die", "clear", "refuse", "move"),
)


class History:
    """A random history of one cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = ClaimCluster()
        self.cluster.pass_time(1)
        for name in NODES:
            self.node(name)
        self.given = 0
        #: Pods that wait at the end though their claims are allocated.
        self.stuck: list[str] = []

    def node(self, name: str, *, new: bool = True) -> None:
        """A node comes, or publishes its devices again."""
        make: Any = self.cluster.claim_node if new else self.cluster.publish
        make(name, **NODES[name])

    def template(self, pod: str, name: str, *requests: Any, **devices: Any) -> str:
        return self.cluster.template_claim(name, pod, *requests, **devices)

    def step(self, number: int) -> None:
        """One thing happens."""
        cluster, choice = self.cluster, self.random.choice
        match choice(STEPS):
            case "create":
                requests = self.random.choices(REQUESTS, k=choice((1, 1, 2)))
                rules = choice(RULES) if requests[0].get("exactly", {}).get("count") else []
                make = choice((cluster.claim, partial(self.template, f"p{number}")))
                keys = [make(f"c{number}-{n}", each, constraints=rules) for n, each in enumerate(requests)]
                cluster.user(f"p{number}", *keys, gates=choice(((), (GATE,))))
            case "share" if cluster.claims:
                keys = self.random.choices(sorted(cluster.claims), k=choice((1, 2)))
                cluster.user(f"p{number}", *dict.fromkeys(keys), gates=choice(((), (GATE,))))
            case "drop" if cluster.claims:
                cluster.delete_claim(choice(sorted(cluster.claims)))
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
                cluster.refusing ^= {choice(list(NODES))}
                cluster.pass_time(choice((1, 700)))
            case "move":
                node = choice(list(NODES))
                cluster.withdraw(node)
                if choice((True, False)):
                    self.node(node, new=False)

    def _may_run(self, pod: PodInfo) -> bool:
        """True if all claims of a pod are allocated, on one node."""
        claims = self.cluster.claims
        nodes = {self.cluster.node_of(key) if key in claims else "" for key in pod.device_claims}
        return len(nodes) == 1 and nodes != {""}

    def end(self) -> None:
        """All nodes take pods again; then all pods go."""
        cluster = self.cluster
        self.given = sum(bool(cluster.devices(key)) for key in cluster.claims)
        cluster.refusing.clear()
        for node in NODES:
            cluster.withdraw(node)
            self.node(node, new=False)
        for _ in range(3):
            cluster.settle()
            cluster.pass_time(4_000)
        cluster.settle()
        living = [pod for pod in cluster.pods.values() if not (pod.finished or pod.terminating)]
        waiting = [pod for pod in living if not pod.node]
        self.stuck = [pod.key for pod in waiting if self._may_run(pod)]
        for pod in list(cluster.pods.values()):
            cluster.remove(pod)
        cluster.settle()


def test_no_device_is_given_twice_and_nothing_is_left() -> None:
    given = 0
    for seed in range(6, 6 + steps(60)):  # the seeds before give hardly any device
        history = History(seed)
        for number in range(40):
            history.step(number)
            assert history.cluster.overlaps() == [], seed
        history.end()
        assert history.stuck == [], seed
        assert history.cluster.empty(), (seed, history.cluster.objects)
        assert [key for key in history.cluster.claims if history.cluster.devices(key)] == [], seed
        given += history.given
    assert given > steps(60), "hardly any claim got a device"
