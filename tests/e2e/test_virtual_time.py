"""A lab on virtual time: simulated waiting costs nothing, and neither does idling."""

import os
import time
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def lab_arguments() -> list[str]:
    return ["--nodes", "1xA100-40GB", "--virtual-time", "--image-pull", "300", "--slice-latency", "60"]


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("seconds", [400, pytest.param(4000, marks=pytest.mark.soak)])
def test_hours_of_simulated_waiting_pass_at_once(cluster: Any, seconds: int) -> None:
    cluster.kubectl("delete", "pods", "--all", "--wait")
    long = cluster.pod("long", {"nvidia.com/mig-7g.40gb": 1}, command=("sleep", str(seconds)))
    next_one = cluster.pod("next", {"nvidia.com/mig-7g.40gb": 1})
    cluster.apply(long)
    cluster.kubectl("wait", "pod/long", "--for=condition=PodScheduled", "--timeout=180s")
    cluster.apply(next_one)
    # Tokens of Tessera's own processes live for one hour: after the longer time, they were renewed.
    cluster.kubectl("wait", "pod/next", "--for=condition=Ready", "--timeout=180s")
    status = cluster.get("pod", "long")["status"]
    assert status["phase"] == "Succeeded"
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert _seconds(ended["finishedAt"]) - _seconds(ended["startedAt"]) >= seconds


def test_kubelet_and_device_plugins_exchange_nothing_that_time_would_have_to_wait_for(cluster: Any) -> None:
    """The threads of gRPC answer late; a lab that listens for them needs minutes for an hour."""
    assert not [*cluster.folder.glob("n/node-1/dp/*.sock"), *cluster.folder.glob("n/node-1/pr/*.sock")]
    assert list(cluster.folder.glob("n/node-1/dp/kubelet_internal_checkpoint"))


def test_an_idle_lab_rests(cluster: Any) -> None:
    """The lab may use the processor for some seconds to finish earlier work."""
    pid = cluster.state.pid

    def rests() -> bool:
        began, used = time.monotonic(), cpu_seconds(pid)
        cluster.kubectl("wait", "node/node-1", "--for=condition=Ghost", "--timeout=2s", fails=True)
        return cpu_seconds(pid) - used < 0.5 * (time.monotonic() - began)

    cluster.eventually(rests)


def test_nothing_is_measured_by_a_clock_that_does_not_leap(cluster: Any) -> None:
    said = cluster.tessera("bench", "autoscale", "--name", "here", fails=True)
    assert "this cluster is a lab on virtual time" in said


def _seconds(text: str) -> float:
    return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%SZ"))
