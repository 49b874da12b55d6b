"""A pod that takes too much memory is ended or evicted, and no other pod is; with real processes and evictions.

Where this machine lets us make cgroups, the kernel itself names the pods.
"""

import asyncio
import os
import signal
import subprocess
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.memory_limits.conftest import CONTAINER, GIB, Node, hog_and_neighbour, play
from tests.support.cgroups import cgroup_hierarchies

from tessera.agent.base.host import ProcessTable, parse_cgroup
from tessera.agent.base.settings import EnforcementMode
from tessera.api.names import PodUid
from tessera.kube.resources import PODS
from tessera_lab.simulation.virtual_time import run_virtual


def test_a_hog_is_ended_and_its_neighbour_lives(node: Node) -> None:
    async def story() -> None:
        hog, neighbour = await hog_and_neighbour(node)
        await asyncio.sleep(15.5)
        assert hog.wait(60) == -signal.SIGTERM
        assert neighbour.poll() is None
        assert node.told[-1][:2] == ("hog", "GpuMemoryProcessTerminated")
        assert f"its process {hog.pid} was asked to end (SIGTERM)" in node.told[-1][2]
        assert node.gauge("tessera_memory_decisions_total", action="terminate", outcome="sent") == 1
        node.machine.end_process(hog.pid)
        await asyncio.sleep(100)
        assert neighbour.poll() is None

    play(node, EnforcementMode.KILL, story)


def test_the_grace_for_peaks_at_the_start_is_kept(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)
        await asyncio.sleep(30)
        assert hog.poll() is None
        await asyncio.sleep(12)
        assert hog.wait(60) == -signal.SIGTERM

    play(node, EnforcementMode.KILL, story, start_grace=30.0)


def test_several_processes_of_a_pod_share_its_limit(node: Node) -> None:
    async def story() -> None:
        await node.share(4, block="mps")
        pod = await node.pod("hog", f"{node.gpu}::0")
        small, large = node.process(pod, 7), node.process(pod, 8)
        await asyncio.sleep(15.5)
        assert large.wait(60) == -signal.SIGTERM
        assert small.poll() is None
        assert node.memory("used", "hog") == 15

    play(node, EnforcementMode.KILL, story)


def put_into_a_cgroup(child: subprocess.Popen[bytes], pod: PodUid, stack: ExitStack) -> bool:
    """True if the machine allows a cgroup for the process with the name that kubelet gives a container's."""
    if parse_cgroup(Path("/proc/self/cgroup").read_text()) is not None:
        return False  # everything here is in the pod that runs the tests
    for hierarchy in cgroup_hierarchies():
        top = hierarchy / f"tessera-watch-{os.getpid()}"
        path = top / "kubepods" / "burstable" / f"pod{pod}" / CONTAINER
        with suppress(OSError):
            for folder in (top, *(top / each for each in reversed(path.relative_to(top).parents[:-1])), path):
                folder.mkdir(exist_ok=True)
                stack.callback(_remove, folder)
            (path / "cgroup.procs").write_text(str(child.pid))
            stack.callback(child.wait)
            stack.callback(child.kill)
            return True
    return False


def _remove(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def test_all_the_way_with_the_machine_s_own_processes_and_cgroups(node: Node) -> None:
    """Watch, decision, pidfd, signal; on machines where cgroups can be made the kernel itself names the pod."""

    async def story(stack: ExitStack) -> None:
        await node.watch(EnforcementMode.KILL).take_sample()
        hog, neighbour = await hog_and_neighbour(node)
        children = {"hog": hog, "neighbour": neighbour}
        moved = [
            put_into_a_cgroup(child, PodUid(node.pods[name].metadata.uid), stack) for name, child in children.items()
        ]
        if all(moved):
            node.table = ProcessTable()
        watch = node.watch(EnforcementMode.KILL)
        for _ in range(3):
            await watch.take_sample()
            await node.clock.sleep(5)
        assert hog.wait(60) == -signal.SIGTERM
        assert neighbour.poll() is None
        assert node.reasons()[-1] == ("hog", "GpuMemoryProcessTerminated")

    with ExitStack() as stack:

        async def played() -> None:
            await node.begin()
            await story(stack)

        run_virtual(played())


def test_a_process_that_ended_meanwhile_is_not_signalled(node: Node) -> None:
    async def story() -> None:
        hog, neighbour = await hog_and_neighbour(node)

        def ends(reason: str) -> None:
            if reason == "GpuMemoryLimitExceeded":
                hog.kill()
                hog.wait()

        node.before_telling = ends
        await asyncio.sleep(15.5)
        assert node.gauge("tessera_memory_decisions_total", action="terminate", outcome="ended") == 1
        assert ("hog", "GpuMemoryProcessTerminated") not in node.reasons()
        assert neighbour.poll() is None

    play(node, EnforcementMode.KILL, story)


def test_another_process_that_has_the_pid_meanwhile_is_not_signalled(node: Node) -> None:
    async def story() -> None:
        innocent, _ = await hog_and_neighbour(node)
        node.proc.earlier(innocent)

        def is_replaced(reason: str) -> None:
            if reason == "GpuMemoryLimitExceeded":
                node.proc.now(innocent)

        node.before_telling = is_replaced
        await asyncio.sleep(15.5)
        assert node.gauge("tessera_memory_decisions_total", action="terminate", outcome="ended") == 1
        await asyncio.sleep(5)
        assert innocent.poll() is None

    play(node, EnforcementMode.KILL, story)


def test_a_hog_is_evicted_once_with_an_event(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)
        await asyncio.sleep(15.5)
        left = await node.client.get(PODS, "hog", "team")
        assert left.metadata.deletion_timestamp is not None
        assert node.told[-1][:2] == ("hog", "GpuMemoryEvicted")
        assert "its limit there is 10.00 GiB" in node.told[-1][2]
        node.pods["hog"] = left
        await asyncio.sleep(100)
        assert node.reasons().count(("hog", "GpuMemoryEvicted")) == 1
        assert hog.poll() is None, "ending it is kubelet's business"

    play(node, EnforcementMode.EVICT, story)


def test_an_eviction_that_a_disruption_budget_blocks_is_reported(node: Node) -> None:
    async def story() -> None:
        budget = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "none", "namespace": "team"},
            "spec": {"minAvailable": 2, "selector": {}},
        }
        left = {"observedGeneration": 1, "disruptionsAllowed": 0, "desiredHealthy": 2, "currentHealthy": 2}
        await node.client.request("POST", "/apis/policy/v1/namespaces/team/poddisruptionbudgets", body=budget)
        await node.client.request(
            "PATCH",
            "/apis/policy/v1/namespaces/team/poddisruptionbudgets/none/status",
            body={"status": {**left, "expectedPods": 2}},
            content_type="application/merge-patch+json",
        )
        await hog_and_neighbour(node)
        await node.client.merge_patch(PODS, "hog", {"status": {"phase": "Running"}}, "team", subresource="status")
        await asyncio.sleep(15.5)
        assert (await node.client.get(PODS, "hog", "team")).metadata.deletion_timestamp is None
        assert node.told[-1][:2] == ("hog", "GpuMemoryEvictionBlocked")
        await asyncio.sleep(30)
        assert node.reasons().count(("hog", "GpuMemoryEvictionBlocked")) == 2, "asked for again after a while"

    play(node, EnforcementMode.EVICT, story)


def test_an_eviction_that_is_not_due_any_more_is_left_out(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)

        def gives_back(reason: str) -> None:
            if reason == "GpuMemoryLimitExceeded":
                node.machine.set_process_memory(hog.pid, GIB)

        node.before_telling = gives_back
        await asyncio.sleep(15.5)
        assert (await node.client.get(PODS, "hog", "team")).metadata.deletion_timestamp is None
        assert node.gauge("tessera_memory_decisions_total", action="evict", outcome="within-limit") == 1

    play(node, EnforcementMode.EVICT, story)


def test_no_pod_is_evicted_while_the_api_server_does_not_answer(node: Node) -> None:
    async def story() -> None:
        node.api_answers = False
        await hog_and_neighbour(node)
        await asyncio.sleep(60)
        assert (await node.client.get(PODS, "hog", "team")).metadata.deletion_timestamp is None
        node.api_answers = True
        await asyncio.sleep(6)
        assert (await node.client.get(PODS, "hog", "team")).metadata.deletion_timestamp is not None

    play(node, EnforcementMode.EVICT, story)


def test_a_process_that_the_kernel_does_not_let_us_end_is_reported(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.pidfd_open

    def refused(pid: int, *flags: int) -> int:
        if flags:
            return opened(pid, *flags)  # asyncio, which from Python 3.12 on waits for children so
        raise PermissionError

    monkeypatch.setattr(os, "pidfd_open", refused)

    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)
        await asyncio.sleep(16)
        assert hog.poll() is None
        assert node.told[-1][:2] == ("hog", "GpuMemoryTerminationFailed")

    play(node, EnforcementMode.KILL, story)
