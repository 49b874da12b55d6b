"""Controller and agent as processes of their own, out of the cluster with a kubeconfig, killed while pods come and go.

The lab runs without Tessera; its nodes keep their simulated cards in files, which the agent shares. Admission stays in
the cluster: the webhook is stateless, and what dies here is what holds state.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

PROFILES = ("1g.5gb", "2g.10gb", "3g.20gb", "1g.10gb")


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "2xA100-40GB", "--no-tessera", "--slice-latency", "0.1"]


class Processes:
    """Tessera's two processes with a state, by name."""

    def __init__(self, cluster: Any) -> None:
        node = cluster.folder / "n" / "node-1"
        self._env = cluster.env
        self._log = (cluster.folder / "processes.log").open("ab")
        self._commands = {
            "controller": ["--identity", "outside"],
            "agent": [
                *("--node-name", "node-1", "--simulate", "2xA100-40GB", "--simulated-state", str(node / "cards.json")),
                *("--plugin-dir", str(node / "dp"), "--pod-resources-dir", str(node / "pr")),
                *("--cdi-dir", str(node / "cdi"), "--state-dir", str(node / "state")),
            ],
        }
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._commands)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "tessera", name, *self._commands[name]]
        self._running[name] = subprocess.Popen(
            command, env={**os.environ, **self._env}, stdout=self._log, stderr=self._log
        )

    def kill(self, name: str) -> None:
        process = self._running.pop(name)
        assert process.poll() is None, f"{name} ended by itself with {process.returncode}"
        process.kill()
        process.wait()

    def end(self) -> None:
        for name in list(self._running):
            self.kill(name)
        self._log.close()


@pytest.fixture(scope="module")
def processes(cluster: Any) -> Iterator[Processes]:
    for part in ("namespaces", "crds", "rbac", "webhook", "admission"):
        cluster.kubectl("apply", "-f", f"deploy/{part}{'/' if part == 'crds' else '.yaml'}")
    running = Processes(cluster)
    try:
        for name in running.names:
            running.start(name)
        cluster.eventually(lambda: "node-1" in cluster.kubectl("get", "instaslices", "-A"))
        cluster.eventually(lambda: _trusted(cluster))
        yield running
    finally:
        running.end()


def _trusted(cluster: Any) -> bool:
    hooks = cluster.get("mutatingwebhookconfiguration", "tessera-webhook")["webhooks"]
    return all(hook["clientConfig"].get("caBundle") for hook in hooks)


def test_processes_out_of_the_cluster_serve_it(cluster: Any, processes: Processes) -> None:
    cluster.kubectl("apply", "-f", "examples/vllm.yaml")
    cluster.kubectl("rollout", "status", "deployment/vllm", "--timeout=180s")
    assert cluster.tessera("lab", "smi", "node-1").count("MIG 3g.20gb") == 1
    cluster.kubectl("delete", "deployment", "vllm")
    cluster.eventually(lambda: not cluster.slices("node-1"))
    cluster.eventually(lambda: "MIG" not in _devices(cluster))


@pytest.mark.soak
def test_processes_are_killed_while_pods_come_and_go(cluster: Any, processes: Processes) -> None:
    _churn(cluster, processes, random.Random(1), rounds=3)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
def test_processes_are_killed_for_long(cluster: Any, processes: Processes, seed: int) -> None:
    _churn(cluster, processes, random.Random(seed), rounds=40)


def _churn(cluster: Any, processes: Processes, rng: random.Random, *, rounds: int) -> None:
    """Pods come and go while controller and agent die at random moments; at the end everything adds up."""
    alive: list[str] = []
    for number in range(rounds):
        name = f"p{number}"
        cluster.apply(cluster.pod(name, {f"nvidia.com/mig-{rng.choice(PROFILES)}": 1}))
        alive.append(name)
        # The moment of death is the test's input, so this waits for nothing.
        time.sleep(rng.random() * 0.4)
        victim = rng.choice(processes.names)
        processes.kill(victim)
        if len(alive) > 3:
            cluster.kubectl("delete", "pod", alive.pop(rng.randrange(len(alive))), "--wait=false")
        processes.start(victim)
    cluster.kubectl("wait", *(f"pod/{name}" for name in alive), "--for=condition=Ready", "--timeout=180s")
    uids = {each["metadata"]["uid"] for each in cluster.get("pods")["items"]}
    cluster.eventually(lambda: set(cluster.slices("node-1")) == uids)
    cluster.eventually(lambda: _devices(cluster).count("MIG ") == len(uids))
    _no_two_overlap(cluster)
    cluster.kubectl("delete", "pods", "--all", "--wait", "--timeout=180s")
    cluster.eventually(lambda: not cluster.slices("node-1"))
    cluster.eventually(lambda: "MIG " not in _devices(cluster))


def _devices(cluster: Any) -> str:
    listing: str = cluster.tessera("lab", "smi", "node-1")
    return listing


def _no_two_overlap(cluster: Any) -> None:
    results = cluster.slices("node-1").values()
    taken = [
        (result["gpuUUID"], slot)
        for result in results
        for slot in range(
            result["migPlacement"]["start"], result["migPlacement"]["start"] + result["migPlacement"]["size"]
        )
    ]
    assert len(taken) == len(set(taken))
