"""The memory monitor over time: its readings, metrics and Events."""

import asyncio
import os
import signal

import pytest
from tests.memory_limits.conftest import CONTAINER, GIB, STRANGER, Node, hog_and_neighbour, play

from tessera.agent.base.settings import EnforcementMode
from tessera.api.names import MEMORY_ENFORCEMENT_ANNOTATION, MEMORY_LIMIT_ANNOTATION
from tessera.nvml.errors import GpuLost


def test_a_hog_is_in_the_metrics_at_the_first_sample_and_reported_at_the_third(node: Node) -> None:
    async def story() -> None:
        (hog, _) = await hog_and_neighbour(node)
        await asyncio.sleep(5.1)
        assert (node.memory("used", "hog"), node.memory("limit", "hog")) == (25, 10)
        assert (node.memory("used", "neighbour"), node.memory("limit", "neighbour")) == (8, 10)
        assert node.told == []
        await asyncio.sleep(10)
        text = f"uses 25.00 GiB of {node.gpu}, its limit there is 10.00 GiB; processes {hog.pid} (25.00 GiB)"
        assert node.told == [("hog", "GpuMemoryLimitExceeded", text)]
        await asyncio.sleep(100)
        assert len(node.told) == 1
        assert hog.poll() is None
        assert node.gauge("tessera_memory_decisions_total", action="exceeded", outcome="reported") == 1

    play(node, EnforcementMode.OBSERVE, story)


def test_a_pod_near_its_limit_is_warned_from_warn_on(node: Node) -> None:
    async def story() -> None:
        await hog_and_neighbour(node, hog=9.5, neighbour=9)
        await asyncio.sleep(30)
        assert node.reasons() == [("hog", "GpuMemoryNearLimit"), ("neighbour", "GpuMemoryNearLimit")]

    play(node, EnforcementMode.WARN, story)


def test_off_reads_no_card(node: Node) -> None:
    async def story() -> None:
        await hog_and_neighbour(node)
        calls = node.hardware.calls
        await asyncio.sleep(600)
        assert node.hardware.calls == calls

    play(node, EnforcementMode.OFF, story)


def test_cards_that_are_not_shared_are_not_read(node: Node) -> None:
    async def story() -> None:
        node.process(None, 30)
        await asyncio.sleep(600)
        assert node.hardware.calls == 0
        await node.share(2, devices="[1]")
        calls = node.hardware.calls
        await asyncio.sleep(61)
        assert node.hardware.calls - calls <= 4, "two calls a sample, and nobody holds a share"

    play(node, EnforcementMode.KILL, story)


def test_a_process_without_a_proven_pod_is_counted_and_not_touched(node: Node) -> None:
    async def story() -> None:
        await hog_and_neighbour(node, hog=5)
        alone = node.process(None, 25)
        await asyncio.sleep(60)
        assert alone.poll() is None
        assert node.told == []
        assert node.gauge("tessera_memory_unattributed_bytes", gpu=node.gpu) == 25 * GIB

    play(node, EnforcementMode.KILL, story)


def test_pids_of_another_namespace_belong_to_no_pod(node: Node) -> None:
    """NVML lists PIDs that this /proc does not have, as where the agent is not in the host's PID namespace."""

    async def story() -> None:
        await hog_and_neighbour(node, hog=5)
        node.hold(2**22 - 1, 25)
        await asyncio.sleep(60)
        assert node.told == []
        assert node.gauge("tessera_memory_unattributed_bytes", gpu=node.gpu) == 25 * GIB

    play(node, EnforcementMode.KILL, story)


def test_a_pod_without_a_grant_is_reported_and_not_touched(node: Node) -> None:
    async def story() -> None:
        await hog_and_neighbour(node, hog=5)
        stranger = node.process(await node.pod("stranger", f"{node.other}::0"), 25)
        await asyncio.sleep(100)
        assert stranger.poll() is None
        assert node.reasons() == [("stranger", "GpuUsedWithoutAllocation")]
        assert (node.memory("used", "stranger"), node.memory("limit", "stranger")) == (25, 0)

    play(node, EnforcementMode.KILL, story)


def test_nothing_is_decided_while_kubelet_does_not_list_users(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)
        await asyncio.sleep(12)
        node.kubelet_answers = False
        await asyncio.sleep(60)
        assert hog.poll() is None
        node.kubelet_answers = True
        await asyncio.sleep(70)
        assert hog.wait(60) == -signal.SIGTERM

    play(node, EnforcementMode.KILL, story)


def test_shares_are_sampled_as_often_after_a_silence_of_kubelet(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)
        await asyncio.sleep(12)
        node.kubelet_answers = False
        await asyncio.sleep(5)
        node.kubelet_answers = True
        await asyncio.sleep(16)
        assert hog.wait(60) == -signal.SIGTERM

    play(node, EnforcementMode.KILL, story)


@pytest.mark.parametrize("idle", [7, 32, 61.5])
def test_a_pod_that_takes_the_whole_card_at_once_ends_in_one_period_however_long_nobody_held_a_share(
    node: Node, idle: float
) -> None:
    async def story() -> None:
        await node.share(4)
        await asyncio.sleep(idle)
        greedy = node.process(await node.pod("greedy", f"{node.gpu}::0"), 39.9)
        await asyncio.sleep(5.1)
        assert greedy.wait(60) == -signal.SIGTERM

    play(node, EnforcementMode.KILL, story)


def test_a_card_that_cannot_be_read_decides_nothing(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)
        node.machine.fail("processes", GpuLost, times=None)
        await asyncio.sleep(60)
        assert hog.poll() is None
        assert node.told == []

    play(node, EnforcementMode.KILL, story)


@pytest.mark.parametrize("claimed", [2**64 - 1, 0])
def test_an_impossible_card_size_decides_nothing_and_raises_no_share(node: Node, claimed: int) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node, hog=5)
        node.hardware.claimed = claimed
        await asyncio.sleep(60)
        node.machine.set_process_memory(hog.pid, 25 * GIB)
        await asyncio.sleep(60)
        assert hog.poll() is None
        node.hardware.claimed = None
        await asyncio.sleep(30)
        assert node.memory("limit", "hog") == 10
        assert hog.wait(60) == -signal.SIGTERM

    play(node, EnforcementMode.KILL, story)


def test_a_pod_that_opted_out_is_reported_and_not_touched(node: Node) -> None:
    async def story() -> None:
        await node.share(4)
        hog = node.process(
            await node.pod("hog", f"{node.gpu}::0", annotations={MEMORY_ENFORCEMENT_ANNOTATION: "off"}), 25
        )
        await asyncio.sleep(100)
        assert hog.poll() is None
        assert ("hog", "GpuMemoryLimitExceeded") in node.reasons()

    play(node, EnforcementMode.KILL, story)


def test_an_invalid_limit_is_reported_once(node: Node) -> None:
    async def story() -> None:
        await node.share(4)
        await node.pod("odd", f"{node.gpu}::0", annotations={MEMORY_LIMIT_ANNOTATION: "plenty"})
        await asyncio.sleep(100)
        assert node.reasons() == [("odd", "GpuMemoryLimitRefused")]

    play(node, EnforcementMode.OBSERVE, story)


def test_a_profile_that_divides_the_card_anew_makes_no_hog_also_after_a_restart(node: Node) -> None:
    async def story() -> None:
        await hog_and_neighbour(node, hog=9.9, neighbour=9.9)
        await asyncio.sleep(6)
        await node.share(8)
        again = node.watch(EnforcementMode.OBSERVE)
        for _ in range(5):
            await again.take_sample()
        assert node.reasons() == []
        assert node.memory("limit", "hog") == 10

    play(node, EnforcementMode.OBSERVE, story)


@pytest.mark.parametrize("how", ["lost", "spoilt", "off"])
def test_a_pod_without_a_recorded_share_is_no_hog(node: Node, how: str) -> None:
    async def story() -> None:
        await node.share(2)
        pod = await node.pod("early", f"{node.gpu}::0")
        early = node.process(pod, 19)
        if how == "spoilt":
            node.file.parent.mkdir()
            node.file.write_text("{")
        if how == "off":
            node.file.parent.mkdir()
            node.file.write_text("{}")
            await node.watch(EnforcementMode.OFF).run()
        await node.share(4)
        watch = node.watch(EnforcementMode.KILL)
        for _ in range(5):
            await watch.take_sample()
        late = node.process(await node.pod("late", f"{node.gpu}::1"), 15)
        for _ in range(5):
            await watch.take_sample()
        assert (node.memory("limit", "early"), node.memory("limit", "late")) == (40, 10)
        assert late.wait(60) == -signal.SIGTERM
        assert early.poll() is None

    play(node, EnforcementMode.OFF, story)


def test_pods_with_shares_are_watched_after_the_card_is_no_longer_shared(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node, hog=5)
        await asyncio.sleep(6)
        await node.share(2, devices="[1]")
        node.machine.set_process_memory(hog.pid, 25 * GIB)
        await asyncio.sleep(16)
        assert hog.wait(60) == -signal.SIGTERM

    play(node, EnforcementMode.KILL, story)


def test_the_agent_s_own_pod_is_no_stranger(node: Node) -> None:
    own = node.proc.folder / str(os.getpid())
    own.mkdir()
    (own / "stat").symlink_to("/proc/self/stat")
    (own / "cgroup").write_text(f"0::/kubepods/pod{STRANGER}/{CONTAINER}\n")

    async def story() -> None:
        await hog_and_neighbour(node, hog=5)
        node.process(STRANGER, 2)
        await asyncio.sleep(60)
        assert node.gauge("tessera_memory_decisions_total", action="stranger", outcome="counted") is None

    play(node, EnforcementMode.OBSERVE, story)


def test_shares_that_cannot_be_saved_stay_in_force(node: Node) -> None:
    node.file.parent.write_text("a file where the folder should be")

    async def story() -> None:
        await hog_and_neighbour(node)
        await asyncio.sleep(16)
        assert node.reasons() == [("hog", "GpuMemoryLimitExceeded")]

    play(node, EnforcementMode.OBSERVE, story)


def test_the_metrics_of_a_pod_end_with_it(node: Node) -> None:
    async def story() -> None:
        hog, _ = await hog_and_neighbour(node)
        await asyncio.sleep(6)
        assert node.memory("used", "hog") == 25
        node.machine.end_process(hog.pid)
        del node.pods["hog"], node.held[node.gpu][0]
        await asyncio.sleep(6)
        assert node.memory("used", "hog") is None
        assert node.memory("used", "neighbour") == 8

    play(node, EnforcementMode.OBSERVE, story)


def test_a_card_with_an_unused_share_is_sampled_often(node: Node) -> None:
    async def story() -> None:
        await node.share(4)
        pod = await node.pod("hog", f"{node.gpu}::0")
        await asyncio.sleep(300)
        node.process(pod, 25)
        await asyncio.sleep(16)
        assert node.reasons() == [("hog", "GpuMemoryLimitExceeded")]

    play(node, EnforcementMode.OBSERVE, story)


def test_a_shared_card_in_use_is_sampled_often_though_no_pod_holds_a_share(node: Node) -> None:
    async def story() -> None:
        await node.share(4)
        node.process(await node.pod("stranger"), 1)
        await asyncio.sleep(16)
        assert node.reasons() == [("stranger", "GpuUsedWithoutAllocation")]

    play(node, EnforcementMode.OBSERVE, story)


def test_a_text_names_the_largest_processes_first_and_no_more_than_five(node: Node) -> None:
    async def story() -> None:
        await node.share(4)
        pod = await node.pod("hog", f"{node.gpu}::0")
        pids = [node.process(pod, gib).pid for gib in (1, 5, 1, 2, 3, 4, 1)]
        await asyncio.sleep(16)
        ((_, _, text),) = node.told
        listed = ", ".join(f"{pids[at]} ({gib}.00 GiB)" for at, gib in ((1, 5), (5, 4), (4, 3), (3, 2), (0, 1)))
        assert text.endswith(f"; processes {listed} and 2 more")

    play(node, EnforcementMode.OBSERVE, story)
