"""``tessera driver build``: what it prints, what it refuses, and that it follows one Job, on a simulated cluster."""

import asyncio
import random
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from tests.support.build_cluster import play_in_build_cluster

from tessera.cli.base.connection import CommandError
from tessera.cli.driver.build import follow
from tessera.cli.main import main
from tessera.clock import LoopClock
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.job import build_config_map, build_context, build_job, local_commands
from tessera.driver.build.orders import BuildFamily, BuildOrder, make_order
from tessera.driver.build.states import BuildRetries
from tessera.driver.driver_sets import NAMESPACE, PoolKey
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import JOBS, RESOURCE_QUOTAS
from tessera_lab.cluster.cluster import ClusterOptions, SimulatedCluster
from tessera_lab.cluster.options import parse_nodes
from tessera_lab.drivers.driver_catalogue import build_catalogue, image_build
from tessera_lab.kubelet.images.catalogue import SimulatedImage
from tessera_lab.simulation.cost_model import CostModel

UBUNTU = shlex.split(
    "--kernel 5.15.0-119-generic --os ubuntu22.04 --version 535.183.06 --to registry.local/nvidia/driver"
)
RHCOS = shlex.split("--kernel 5.14.0-284.55.1.el9_2.x86_64 --os rhcos4.15 --version 550.54.14 --to quay.io/me/driver")
ORDER = make_order(
    PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-119-generic", architecture="amd64"),
    version="535.183.06",
    target="registry.local/nvidia/driver:535.183.06-5.15.0-119-generic-ubuntu22.04",
)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["driver", "build", *arguments]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["driver", "build", *arguments]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_dry_run_prints_exactly_the_objects_that_would_be_made(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, *UBUNTU, "--dry-run")
    files, made = yaml.safe_load_all(shown)
    assert files == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        **build_config_map(BuildFamily.UBUNTU),
        "metadata": {"namespace": NAMESPACE, **build_config_map(BuildFamily.UBUNTU)["metadata"]},
    }
    body = build_job(ORDER, 1)
    expected = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        **body,
        "metadata": {"namespace": NAMESPACE, **body["metadata"]},
    }
    assert made == expected


def test_a_dry_run_shows_the_containerfile_as_it_is_and_the_local_commands(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, *UBUNTU, "--dry-run")
    assert "\n    FROM ${BASE_IMAGE}\n" in shown
    remarks = [line[2:] for line in shown.splitlines() if line.startswith("# ")]
    assert "\n".join(remarks).endswith(local_commands(ORDER))


def test_local_prints_only_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, *UBUNTU, "--local", "--tool", "podman")
    assert shown.startswith("# On a machine of architecture amd64:\n")
    assert shown.rstrip().endswith(local_commands(ORDER, tool="podman"))
    assert "kind:" not in shown


def test_the_files_of_a_local_build_are_written_where_its_commands_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "driver-build"
    shown = told(capsys, *UBUNTU, "--local", "--files", str(folder))
    assert {path.name: path.read_text() for path in folder.iterdir()} == build_context(BuildFamily.UBUNTU)
    assert f"  {folder}\n" in shown
    done = subprocess.run(["sh", "-n"], input=shown, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_what_is_given_reaches_the_order(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--dtk-image", "quay.io/dtk@sha256:" + "0" * 64, "--open", "--no-nvswitch", "--base-image", "r.local/ubi:9"]
    shown = told(capsys, *RHCOS, *more, "--push-secret", "quay", "--buildah-image", "r.local/buildah:1", "--dry-run")
    _, made = yaml.safe_load_all(shown)
    pod = made["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "r.local/buildah:1"
    for argument in ("MODULES=open", "NVSWITCH=no", "BASE_IMAGE=r.local/ubi:9", f"BUILDER_IMAGE={more[1]}"):
        assert argument in container["args"]
    assert "push-auth" in {volume["name"] for volume in pod["volumes"]}


def test_the_version_of_rhcos_finds_the_toolkit(capsys: pytest.CaptureFixture[str]) -> None:
    shown = told(capsys, *RHCOS, "--rhcos-version", "415.92.202403191241-0", "--local")
    assert "openshift/driver-toolkit:415.92.202403191241-0" in shown


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (RHCOS, ("which Driver Toolkit fits is not known", "name the RHCOS version", "tessera driver build --rhcos")),
        ([*UBUNTU[:-1], "registry.local/driver:535"], ("--to registry.local/driver:535: ", "leave the tag out")),
        ([*UBUNTU, "--os", "windows"], ("operating system 'windows'",)),
        ([*UBUNTU, "--kernel", "latest"], ("kernel 'latest'",)),
        ([*UBUNTU, "--version", "newest"], ("driver version 'newest'",)),
        ([*UBUNTU, "--os", "sles15.5"], ("no way to build for 'sles' is known",)),
        (UBUNTU[:-2], ("Missing option '--to'",)),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], facts: tuple[str, ...]
) -> None:
    error = refused(capsys, *arguments, "--dry-run")
    for fact in facts:
        assert fact in error


def test_a_folder_that_cannot_be_written_is_refused_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder" / "Containerfile").mkdir(parents=True)
    under, taken = str(tmp_path / "file" / "x"), str(tmp_path / "folder")
    said = refused(capsys, *UBUNTU, "--local", "--files", under)
    for fact in (f"--files {under}: ", f"{under} cannot be written: Not a directory", "name a folder", "you may write"):
        assert fact in said
    assert f"{taken}/Containerfile cannot be written: Is a directory" in refused(capsys, *UBUNTU, "--files", taken)


def test_without_a_cluster_nothing_is_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "none" in refused(capsys, *UBUNTU, "--kubeconfig", str(tmp_path / "none"))


class ClusterWithCommand:
    """A cluster with one node on which builds run, and the command in front of it."""

    def __init__(self) -> None:
        self.clock = LoopClock(1_800_000_000.0)
        self.catalogue = build_catalogue(CostModel())
        self.cluster = SimulatedCluster(
            parse_nodes("0"), clock=self.clock, options=ClusterOptions(catalogue=self.catalogue)
        )
        self.client = self.cluster.client("test")

    async def build(self, wanted: BuildOrder = ORDER, *, wait: bool = True) -> None:
        """Follows a build, as the command does once it has a client."""
        client = self.cluster.client("tessera-driver")
        runtime = KubeRuntime(client=client, clock=self.clock, rng=random.Random(0))
        builds = BuildJobs(runtime, retries=BuildRetries(pause=0.0, attempts=9999))
        await follow(builds, wanted, wait=wait)

    async def jobs(self) -> list[str]:
        return sorted(each.metadata.name for each in (await self.client.list(JOBS, NAMESPACE)).items)


def test_a_build_is_followed_to_its_push(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(lab: ClusterWithCommand) -> None:
        await lab.build()
        assert lab.catalogue.find_image(ORDER.target) is not None
        assert await lab.jobs() == [f"{ORDER.name}-1"]

    play_in_build_cluster(ClusterWithCommand, story)
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"Job tessera-system/{ORDER.name}-1: {ORDER.target} for {ORDER.pool.text}"
    assert last.startswith(f"pushed {ORDER.target}")


def test_without_wait_it_says_where_the_log_is(capsys: pytest.CaptureFixture[str]) -> None:
    play_in_build_cluster(ClusterWithCommand, lambda lab: lab.build(wait=False))
    assert capsys.readouterr().out.splitlines()[-1] == f"kubectl logs -n tessera-system -f job/{ORDER.name}-1"


def test_a_second_command_follows_the_same_job(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(lab: ClusterWithCommand) -> None:
        await asyncio.gather(lab.build(), lab.build())
        await lab.build()
        assert "delete the Job to build again" in capsys.readouterr().out
        assert await lab.jobs() == [f"{ORDER.name}-1"]

    play_in_build_cluster(ClusterWithCommand, story)


def test_a_failure_is_told_once_and_not_tried_again_unasked() -> None:
    async def story(lab: ClusterWithCommand) -> None:
        costs = CostModel()
        broken = image_build(lab.catalogue, costs, fails=lambda _target: "no modules for this kernel")
        lab.catalogue.name("*/buildah/*", SimulatedImage(program=broken))
        with pytest.raises(CommandError, match=rf"Job tessera-system/{ORDER.name}-1 failed: pod .* exit code 1"):
            await lab.build()
        await lab.clock.sleep(600)
        assert await lab.jobs() == [f"{ORDER.name}-1"]
        lab.catalogue.name("*/buildah/*", SimulatedImage(program=image_build(lab.catalogue, costs)))
        await lab.build()
        assert await lab.jobs() == [f"{ORDER.name}-1", f"{ORDER.name}-2"]

    play_in_build_cluster(ClusterWithCommand, story)


def test_a_server_that_refuses_is_told() -> None:
    async def story(lab: ClusterWithCommand) -> None:
        quota = {"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}
        await lab.client.create(RESOURCE_QUOTAS.as_dicts(), quota, NAMESPACE)
        await lab.clock.sleep(5)
        with pytest.raises(CommandError, match=r"cannot be made: .*exceeded quota"):
            await lab.build()

    play_in_build_cluster(ClusterWithCommand, story)
