"""A child process runs a command on the host; a script plays nsenter."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.cgroups import cgroup_hierarchies

from tessera.agent.base.host import (
    SENTINEL,
    SYSTEMCTL,
    ContainerId,
    ProcessId,
    ProcessPod,
    ProcessTable,
    parse_cgroup,
    parse_cpu_ticks,
    parse_start,
    run_on_host,
)
from tessera.api.names import PodUid
from tessera.limits import CONDITION_MESSAGE

ENDED = "`systemctl reboot` on the host ended with"
NEEDS = "the agent's container must be privileged and have hostPID, and the host needs systemd"


def script(folder: Path, body: str) -> str:
    path = folder / "nsenter"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


async def test_the_request_enters_all_namespaces_of_process_1(tmp_path: Path) -> None:
    await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, f'echo "$@" > {tmp_path}/asked'))
    asked = (tmp_path / "asked").read_text()
    assert asked == "--target 1 --mount --uts --ipc --net --pid -- systemctl reboot\n"


async def test_kured_is_asked_by_a_file_on_the_host(tmp_path: Path) -> None:
    await run_on_host(SENTINEL, nsenter=script(tmp_path, f'echo "$@" > {tmp_path}/asked'))
    asked = (tmp_path / "asked").read_text()
    assert asked.endswith(" -- touch /var/run/reboot-required\n")
    with pytest.raises(OSError, match="`touch /var/run/reboot-required` on the host ended with 1: read-only"):
        await run_on_host(SENTINEL, nsenter=script(tmp_path, "echo read-only; exit 1"))


async def test_the_containers_environment_stays_in_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, f"env > {tmp_path}/env"))
    told = (tmp_path / "env").read_text()
    assert "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" in told
    assert "LD_PRELOAD" not in told


async def test_without_nsenter_the_error_names_its_package(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nsenter cannot be run: No such file or directory.*util-linux"):
        await run_on_host(SYSTEMCTL, nsenter=str(tmp_path / "nsenter"))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "echo 'nsenter: failed to execute systemctl' >&2; exit 127",
            f"{ENDED} 127: nsenter: failed to execute systemctl; {NEEDS}",
        ),
        (
            "echo 'Call to Reboot failed: Access denied'; exit 4",
            f"{ENDED} 4: Call to Reboot failed: Access denied",
        ),
        ("exit 1", f"{ENDED} 1: no reason given"),
    ],
)
async def test_a_host_that_refuses_is_quoted(tmp_path: Path, body: str, told: str) -> None:
    with pytest.raises(OSError, match="ended with") as refusal:
        await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, body))
    assert str(refusal.value) == told


async def test_a_host_that_does_not_answer_counts_as_requested(tmp_path: Path) -> None:
    began = time.monotonic()
    await run_on_host(SYSTEMCTL, nsenter=script(tmp_path, "exec sleep 600"), seconds=0.1)
    assert time.monotonic() - began < 600


async def test_a_command_of_the_administrator_gets_its_words_without_a_shell(tmp_path: Path) -> None:
    words = ("/usr/local/bin/reboot-node", "--reason", "a card; $(touch /pwned) && more")
    await run_on_host(words, nsenter=script(tmp_path, f'printf "%s\\n" "$@" > {tmp_path}/asked; echo done'))
    assert (tmp_path / "asked").read_text().splitlines()[-3:] == list(words)


async def test_a_command_that_does_not_end_has_failed(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"`/bin/hang` on the host has not ended within 0\.1 s"):
        await run_on_host(("/bin/hang",), nsenter=script(tmp_path, "exec sleep 600"), seconds=0.1)


async def test_endless_output_is_dropped(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="on the host ended with 3") as refusal:
        await run_on_host(("/bin/chatty",), nsenter=script(tmp_path, "yes no | head -c 9000000; exit 3"))
    assert len(str(refusal.value)) < 2 * CONDITION_MESSAGE


UID = PodUid("1c5e1e1f-0f3e-4a0b-9a2e-5d1b6c7d8e9f")
UNDER = UID.replace("-", "_")
STATIC = PodUid("0123456789abcdef0123456789abcdef")
CID = ContainerId("a" * 32 + "0123456789abcdef" * 2)
OTHER = "b" * 64

IN_CONTAINER = [
    ("cgroupfs, guaranteed", f"/kubepods/pod{UID}/{CID}"),
    ("cgroupfs, burstable", f"/kubepods/burstable/pod{UID}/{CID}"),
    ("cgroupfs, best effort", f"/kubepods/besteffort/pod{UID}/{CID}"),
    ("systemd, guaranteed", f"/kubepods.slice/kubepods-pod{UNDER}.slice/cri-containerd-{CID}.scope"),
    (
        "systemd, containerd",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/cri-containerd-{CID}.scope",
    ),
    (
        "systemd, CRI-O",
        f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UNDER}.slice/crio-{CID}.scope",
    ),
    (
        "systemd, CRI-O with a cgroup of the container's own",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/crio-{CID}.scope/container",
    ),
    (
        "systemd, Docker",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDER}.slice/docker-{CID}.scope",
    ),
    (
        "containerd with cgroupfs given systemd's notation",
        f"/system.slice/containerd.service/kubepods-burstable-pod{UNDER}.slice:cri-containerd:{CID}",
    ),
    ("a node in a container", f"/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{CID}"),
    (
        "a node in a container, systemd",
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDER}.slice/cri-containerd-{CID}.scope",
    ),
    ("seen from another cgroup namespace", f"/../../pod{UID}/{CID}"),
    (
        "seen from another cgroup namespace, systemd",
        f"/../../kubepods-burstable-pod{UNDER}.slice/cri-containerd-{CID}.scope",
    ),
    ("below the container", f"/kubepods/pod{UID}/{CID}/init.scope/workers"),
    (
        "a pod that a container made below itself",
        f"/kubepods/pod{UID}/{CID}/kubepods/pod{uuid.uuid4()}/{OTHER}",
    ),
]


@pytest.mark.parametrize("path", [path for _, path in IN_CONTAINER], ids=[name for name, _ in IN_CONTAINER])
@pytest.mark.parametrize(
    "form",
    [
        "0::{}\n",
        "12:pids:/user.slice\n4:memory:{}\n1:name=systemd:/\n0::/\n",
        "2:cpu,cpuacct:{}\n1:name=systemd:{}\n",
    ],
    ids=["v2", "hybrid", "v1"],
)
def test_a_process_of_a_container(form: str, path: str) -> None:
    assert parse_cgroup(form.replace("{}", path)) == ProcessPod(UID, CID)


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/burstable/pod{STATIC}/{CID}",
        f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{CID}.scope",
    ],
)
def test_a_static_pod_is_known_by_its_hash(path: str) -> None:
    assert parse_cgroup(f"0::{path}\n") == ProcessPod(STATIC, CID)


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods/pod{UID}",
        f"/kubepods.slice/kubepods-pod{UNDER}.slice/crio-conmon-{CID}.scope",
        f"/kubepods/pod{UID}/something",
    ],
)
def test_a_process_of_a_pod_outside_of_its_containers(path: str) -> None:
    assert parse_cgroup(f"0::{path}\n") == ProcessPod(UID, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0::/\n",
        "no cgroup\n",
        "0::/system.slice/sshd.service\n",
        f"0::/docker/{CID}\n",
        f"0::/pod{UID}/{CID}\n",
        f"0::/user.slice/pod{UID}/{CID}\n",
        f"0::/notkubepods/pod{UID}/{CID}\n",
        "0::/kubepods/burstable\n",
        f"0::/kubepods/podxyz/{CID}\n",
        f"0::/kubepods/pod{UID}x/{CID}\n",
        "0::/../../\n",
        f"0::/system.slice/pod{UID}/kubepods/pod{uuid.uuid4()}/{CID}\n",
    ],
)
def test_nothing_else_is_a_pod(text: str) -> None:
    assert parse_cgroup(text) is None


@pytest.mark.parametrize("name", ["python", "a b", "odd) 1 2 (name", ")"])
def test_the_start_time_is_read_behind_any_process_name(name: str) -> None:
    assert parse_start(f"42 ({name}) S " + " ".join(str(number) for number in range(4, 53))) == 22


def test_a_status_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match="ends before field 22"):
        parse_start("42 (python) S 1 2")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


def identified(process: subprocess.Popen[bytes]) -> ProcessId:
    found = ProcessTable().identify(process.pid)
    assert found is not None
    return found


def proc_of(folder: Path, process: ProcessId, cgroup: str) -> ProcessTable:
    """A /proc with one process in a cgroup."""
    here = folder / str(process.pid)
    here.mkdir()
    (here / "stat").write_text(f"{process.pid} (x) S " + "0 " * 18 + f"{process.start} 0")
    (here / "cgroup").write_text(cgroup)
    return ProcessTable(folder)


def test_a_process_of_a_pod_is_found_under_the_given_root(tmp_path: Path) -> None:
    process = ProcessId(7, 1000)
    table = proc_of(tmp_path, process, f"0::/kubepods/pod{UID}/{CID}\n")
    assert table.identify(7) == process
    assert table.pod_of(process) == ProcessPod(UID, CID)


def test_a_process_that_has_the_pid_of_another_lives_nowhere(tmp_path: Path) -> None:
    table = proc_of(tmp_path, ProcessId(7, 1000), f"0::/kubepods/pod{UID}/{CID}\n")
    assert table.pod_of(ProcessId(7, 999)) is None
    assert table.identify(8) is None
    assert table.pod_of(ProcessId(8, 1)) is None


def test_the_processes_of_a_container_are_those_of_its_pod_alone(tmp_path: Path) -> None:
    own, other = ProcessId(7, 1000), ProcessId(8, 1000)
    proc_of(tmp_path, own, f"0::/kubepods/pod{UID}/{CID}\n")
    table = proc_of(tmp_path, other, "0::/system.slice/sshd.service\n")
    (tmp_path / "sys").mkdir()
    assert table.list_of(PodUid(UID), [CID]) == [own]
    assert table.list_of(PodUid(UID), ["0" * 64]) == table.list_of(PodUid("other"), [CID]) == []


def our_own() -> ProcessPod | None:
    """The pod of this test process; none, unless the machine that runs the tests is a pod."""
    return parse_cgroup(Path("/proc/self/cgroup").read_text())


def test_a_child_lives_where_its_parent_does(child: subprocess.Popen[bytes]) -> None:
    assert ProcessTable().pod_of(identified(child)) == our_own()


def test_a_held_process_gets_the_signal(child: subprocess.Popen[bytes]) -> None:
    with ProcessTable().open(identified(child)) as held:
        assert held is not None
        assert held.send(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM


def test_a_process_that_ended_while_held_is_not_replaced_by_another(child: subprocess.Popen[bytes]) -> None:
    with ProcessTable().open(identified(child)) as held:
        assert held is not None
        child.kill()
        child.wait()
        assert not held.send(signal.SIGTERM)


def test_another_process_of_the_same_pid_cannot_be_held(child: subprocess.Popen[bytes]) -> None:
    process = identified(child)
    with ProcessTable().open(ProcessId(process.pid, process.start - 1)) as held:
        assert held is None
    assert child.poll() is None


def test_an_ended_process_cannot_be_held(child: subprocess.Popen[bytes]) -> None:
    process = identified(child)
    child.kill()
    child.wait()
    with ProcessTable().open(process) as held:
        assert held is None


def cgroup_of_ours(hierarchy: Path) -> Path | None:
    """A new cgroup named as kubelet names a container's; ``None`` where this machine lets us make none."""
    path = hierarchy / f"tessera-{os.getpid()}" / "kubepods" / "burstable" / f"pod{UID}" / CID
    try:
        path.mkdir(parents=True)
    except OSError:
        return None
    return path


def test_the_kernel_has_the_same_notation(child: subprocess.Popen[bytes]) -> None:
    """On machines where cgroups can be made, in every hierarchy there is; elsewhere the tables above stand alone."""
    process = identified(child)
    for hierarchy in cgroup_hierarchies():
        cgroup = cgroup_of_ours(hierarchy)
        if cgroup is None:
            continue
        try:
            moved = False
            with suppress(OSError):
                (cgroup / "cgroup.procs").write_text(str(child.pid))
                moved = True
            if moved:
                assert ProcessTable().pod_of(process) == (our_own() or ProcessPod(UID, CID)), hierarchy
                (hierarchy / "cgroup.procs").write_text(str(child.pid))
        finally:
            for folder in (cgroup, *cgroup.parents):
                if folder == hierarchy:
                    break
                folder.rmdir()


def test_name_and_cpu_time_of_a_process(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "comm").write_text("trainer\n")
    ticks = os.sysconf("SC_CLK_TCK")
    (folder / "stat").write_text(f"7 (a) b) S {' '.join('0' * 10)} {2 * ticks} {ticks} {' '.join('0' * 30)}\n")
    table = ProcessTable(tmp_path)
    assert (table.name_of(7), table.cpu_seconds(7)) == ("trainer", 3.0)
    assert (table.name_of(8), table.cpu_seconds(8)) == ("", None)


def test_a_status_that_is_cut_has_no_cpu_time() -> None:
    assert parse_cpu_ticks("7 (a) S 1 2 3") == 0
