"""A decision is carried out on a real process, or not at all if anything has changed since."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tessera.agent.base.host import ProcessId, ProcessTable
from tessera.api.names import PodUid
from tessera.memory_limits.enforcement import EnforcementOutcome, find_objection, signal_process
from tessera.memory_limits.policy import CardUse, MemoryAction, MemoryDecision, ProcessUse

GIB = 2**30
POD, OTHER = PodUid("1c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f"), PodUid("2c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f")
GPU = "GPU-1"
CONTAINER = "c" * 64


class PodProcess:
    """A real process that the given /proc shows in a pod's container, with memory on a card."""

    def __init__(self, proc: Path, process: subprocess.Popen[bytes]) -> None:
        self.child = process
        found = ProcessTable().identify(process.pid)
        assert found is not None
        self.process = found
        self._folder = proc / str(process.pid)
        self._folder.mkdir()
        (self._folder / "stat").symlink_to(f"/proc/{process.pid}/stat")
        self.move(POD)
        self.table = ProcessTable(proc)
        self.card: CardUse | None = self.with_memory(15)

    def move(self, pod: PodUid | None) -> None:
        path = f"/kubepods/pod{pod}/{CONTAINER}" if pod else "/user.slice"
        (self._folder / "cgroup").write_text(f"0::{path}\n")

    def with_memory(self, gib: int, process: ProcessId | None = None, pod: PodUid | None = POD) -> CardUse:
        use = ProcessUse(process=process or self.process, bytes=gib * GIB, pod=pod)
        return CardUse(device=GPU, total=40 * GIB, used=gib * GIB, uses=(use,))

    def decision(self, act: MemoryAction = MemoryAction.TERMINATE) -> MemoryDecision:
        return MemoryDecision(action=act, device=GPU, pod=POD, used=15 * GIB, limit=10 * GIB, process=self.process)

    async def read(self, _device: str, /) -> CardUse | None:
        return self.card

    async def carry_out(self, act: MemoryAction = MemoryAction.TERMINATE) -> EnforcementOutcome:
        return await signal_process(self.decision(act), processes=self.table, read_card=self.read)


@pytest.fixture
def pod_process(tmp_path: Path) -> Iterator[PodProcess]:
    script = "import signal, sys; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(flush=True); sys.stdin.read()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-S", "-c", script], stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield PodProcess(tmp_path, process)
        process.kill()


@pytest.mark.parametrize(
    ("act", "number"), [(MemoryAction.TERMINATE, signal.SIGTERM), (MemoryAction.KILL, signal.SIGKILL)]
)
async def test_a_process_over_its_limit_gets_the_signal(
    pod_process: PodProcess, act: MemoryAction, number: signal.Signals
) -> None:
    assert await pod_process.carry_out(act) is EnforcementOutcome.SENT
    assert pod_process.child.wait() == -number


def elsewhere(pod_process: PodProcess) -> None:
    pod_process.move(OTHER)


def no_pod(pod_process: PodProcess) -> None:
    pod_process.move(None)


def unreadable(pod_process: PodProcess) -> None:
    pod_process.card = None


def implausible(pod_process: PodProcess) -> None:
    pod_process.card = pod_process.with_memory(50)


def gave_back(pod_process: PodProcess) -> None:
    pod_process.card = pod_process.with_memory(9)


def left_the_card(pod_process: PodProcess) -> None:
    pod_process.card = pod_process.with_memory(15, ProcessId(pod_process.process.pid, pod_process.process.start + 1))


def proven_otherwise(pod_process: PodProcess) -> None:
    pod_process.card = pod_process.with_memory(15, pod=OTHER)


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (elsewhere, EnforcementOutcome.NOT_OF_POD),
        (no_pod, EnforcementOutcome.NOT_OF_POD),
        (unreadable, EnforcementOutcome.UNREADABLE),
        (implausible, EnforcementOutcome.UNREADABLE),
        (gave_back, EnforcementOutcome.WITHIN_LIMIT),
        (left_the_card, EnforcementOutcome.NOT_ON_CARD),
        (proven_otherwise, EnforcementOutcome.NOT_ON_CARD),
    ],
)
async def test_if_anything_has_changed_nothing_is_sent(
    pod_process: PodProcess, change: Callable[[PodProcess], None], outcome: EnforcementOutcome
) -> None:
    change(pod_process)
    assert await pod_process.carry_out(MemoryAction.KILL) is outcome
    assert pod_process.child.poll() is None


async def test_a_process_that_ends_while_the_card_is_read_is_not_signalled(pod_process: PodProcess) -> None:
    async def read(_device: str) -> CardUse | None:
        pod_process.child.kill()
        pod_process.child.wait()
        return pod_process.card

    outcome = await signal_process(pod_process.decision(), processes=pod_process.table, read_card=read)
    assert outcome is EnforcementOutcome.ENDED


async def test_without_pidfds_no_process_is_ended(pod_process: PodProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert await pod_process.carry_out() is EnforcementOutcome.NOT_PERMITTED
    assert pod_process.child.poll() is None


async def test_only_a_process_can_be_signalled(pod_process: PodProcess) -> None:
    with pytest.raises(ValueError, match="only a process can be signalled"):
        await pod_process.carry_out(MemoryAction.EVICT)


async def test_an_eviction_is_looked_at_again_too(pod_process: PodProcess) -> None:
    decision = pod_process.decision(MemoryAction.EVICT)
    assert await find_objection(decision, None, processes=pod_process.table, read_card=pod_process.read) is None
    gave_back(pod_process)
    outcome = await find_objection(decision, None, processes=pod_process.table, read_card=pod_process.read)
    assert outcome is EnforcementOutcome.WITHIN_LIMIT
