"""Controller and agent from the image, as their manifests start them, give a pod its slice on a lab's node."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.release.image.unpacked import UnpackedImage, allowed, environment
from tests.support.running_lab import RunningLab

from tessera_lab.daemon.lab_folder import start, stop

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not allowed(), reason="makes mount namespaces, which needs root"),
]
NODE = "/run/n/node-1"
CONTROLLER = ["tessera", "controller", "--identity", "image", "--kubeconfig", "/run/kubeconfig"]
AGENT = [
    *("tessera", "agent", "--node-name", "node-1", "--kubeconfig", "/run/kubeconfig"),
    *("--simulate", "2xA100-40GB", "--simulated-state", f"{NODE}/cards.json"),
    *("--plugin-dir", f"{NODE}/dp", "--pod-resources-dir", f"{NODE}/pr"),
    *("--cdi-dir", f"{NODE}/cdi", "--state-dir", f"{NODE}/state"),
]


@pytest.fixture
def cluster() -> Iterator[RunningLab]:
    """A lab with Tessera's objects and none of its processes but the webhook."""
    top = Path(tempfile.mkdtemp(prefix="tl-", dir="/tmp"))
    try:
        running = RunningLab(start(top / "lab", ["--nodes", "2xA100-40GB", "--no-tessera", "--slice-latency", "0.1"]))
        for part in ("namespaces", "crds", "rbac", "webhook", "admission"):
            running.kubectl("apply", "-f", f"deploy/{part}{'/' if part == 'crds' else '.yaml'}")
        yield running
    finally:
        stop(top / "lab")
        shutil.rmtree(top, ignore_errors=True)


@pytest.fixture(params=["image", "arm_image"])
def either(request: pytest.FixtureRequest) -> UnpackedImage:
    """The image of this machine's processor, and that for arm64 on qemu's emulated processor."""
    found: UnpackedImage = request.getfixturevalue(request.param)
    return found


def test_a_pod_gets_its_slice_from_the_processes_of_the_image(cluster: RunningLab, either: UnpackedImage) -> None:
    # The kubeconfig is its owner's alone; in a cluster the account's token is readable.
    (cluster.folder / "kubeconfig").chmod(0o644)
    cluster.folder.chmod(0o755)
    # The lab's kubeconfig has a client certificate, which OpenSSL reads from a file; an account's token needs none.
    temporary = cluster.folder / "tmp"
    temporary.mkdir()
    temporary.chmod(0o1777)
    mounts = {"/run": cluster.folder, "/tmp": temporary}
    processes = []
    with (cluster.folder / "processes.log").open("wb") as log:
        try:
            for user, command in ((65532, CONTROLLER), (0, AGENT)):
                there = msgspec.structs.replace(either, mounts=mounts, user=user).command(*command)
                processes.append(
                    subprocess.Popen(there, env=environment(), stdout=log, stderr=log, start_new_session=True)
                )
            cluster.eventually(lambda: "node-1" in cluster.kubectl("get", "instaslices", "-A"))
            cluster.eventually(lambda: "mig-3g.20gb" in cluster.kubectl("get", "node", "node-1", "-o", "yaml"))
            cluster.apply(RunningLab.pod("p", {"nvidia.com/mig-3g.20gb": 1}))
            cluster.eventually(lambda: cluster.get("pod", "p")["status"]["phase"] == "Running")
            cluster.eventually(lambda: cluster.slices("node-1"))  # a slow agent reports what it made when the pod runs
            (result,) = cluster.slices("node-1").values()
            assert result["migPlacement"]["size"] == 4
            assert [each.poll() for each in processes] == [None, None]
        finally:
            for each in processes:
                # unshare does not pass signals on, and a change of the user undoes --kill-child.
                os.killpg(each.pid, signal.SIGKILL)
                each.wait()
