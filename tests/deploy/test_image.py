"""The image's layer of Tessera: its files are all that the commands need beside the pinned libraries."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from release.image.root import SITE, USER, make_application
from tests.deploy.conftest import ROOT, rendered

from tessera.cli.base.command_group import LazyCommands
from tessera.cli.main import tessera

#: Commands that need no cluster and no card.
RUNS = [
    ["--version"],
    ["install", "--output", "yaml"],
    ["config", "check", "-"],
    ["plan", "mig", "A100", "3g.20gb", "4g.20gb"],
]
POLICY = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the package as it lies in the image, with the libraries of this environment beside its tree."""
    folder = tmp_path_factory.mktemp("image")
    make_application(folder / "application")
    libraries = folder / "application" / SITE / ".." / "libraries"
    libraries.mkdir()
    for library in Path(sysconfig.get_path("purelib")).iterdir():
        if not library.name.startswith("tessera"):
            (libraries / library.name).symlink_to(library)
    return folder / "application" / SITE


def run(image: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command on the image's package and the pinned libraries, not on this checkout's package."""
    return run_code(image, "from tessera.cli.main import main; sys.exit(main())", *command)


def run_code(image: Path, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code on the image's package and the pinned libraries."""
    start = f"import sys; sys.path[:0] = {[str(image), str(image.parent / 'libraries')]!r}; {code}"
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    # -S: no .pth file is read, by which the virtual environment finds the checkout.
    command = [sys.executable, "-I", "-S", "-c", start, *arguments]
    return subprocess.run(command, input=POLICY, capture_output=True, text=True, env=environment, cwd=image)


def every_command(group: click.Group, *path: str) -> Iterator[list[str]]:
    """The help of each command of the product, groups included."""
    context = click.Context(group)
    names = group._table if isinstance(group, LazyCommands) else group.commands
    for name in names:
        yield [*path, name, "--help"]
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from every_command(command, *path, name)


@pytest.mark.parametrize("command", RUNS, ids=" ".join)
def test_a_command_that_needs_no_cluster_runs_from_the_image(image: Path, command: list[str]) -> None:
    done = run(image, command)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_every_command_of_the_product_can_be_loaded_in_the_image(image: Path) -> None:
    """One process loads all of them, and prints the exit code and the length of each one's help."""
    code = """import contextlib, io, json
from tessera.cli.main import main
for command in json.loads(sys.argv[1]):
    sys.argv, shown = ["tessera", *command], io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
        main()
    print(json.dumps([command, shown.getvalue().startswith("Usage: tessera " + " ".join(command[:-1]))]))
"""
    commands = list(every_command(tessera))
    done = run_code(image, f"exec({code!r})", json.dumps(commands))
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[command, True] for command in commands]
    assert len(commands) > 40


@pytest.mark.parametrize(
    "command", [["demo"], ["lab", "up"], ["bench", "autoscale", "--lab"], ["autoscaler", "simulate"]], ids=" ".join
)
def test_a_command_of_the_lab_names_the_package_that_has_it(image: Path, command: list[str]) -> None:
    done = run(image, command)
    assert done.returncode == 1
    assert (
        "the package tessera-gpu-lab has it: in a checkout of Tessera, run: pip install ./ ./packaging/tessera-lab"
        in done.stderr
    )


def test_a_report_that_the_lab_draws_names_the_package(image: Path) -> None:
    record = image.parent / "records.json"
    record.write_text('{"node": "n", "uid": "u", "at": {"registered": 1}}')
    report = ["provisioning", "report", "--file", str(record)]
    assert "1 node" in run(image, report).stdout
    for arguments in (["-o", "html"], ["-o", "svg"], ["--experiment", "-"]):
        done = run(image, [*report, *arguments])
        assert (done.returncode, done.stdout) == (1, ""), arguments
        assert "need the package tessera-gpu-lab, " in done.stderr, arguments


def test_every_module_of_the_product_can_be_imported_in_the_image(image: Path) -> None:
    code = """import importlib, pkgutil, tessera
names = [each.name for each in pkgutil.walk_packages(tessera.__path__, "tessera.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""
    done = run_code(image, f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    modules = [each for each in (ROOT / "src" / "tessera").rglob("*.py") if each.parent.name != "__pycache__"]
    assert int(done.stdout) == len(modules) - 1  # tessera itself


def test_the_image_has_nothing_of_the_lab(image: Path) -> None:
    assert {each.name.split("-")[0] for each in image.iterdir()} == {"tessera", "tessera_gpu"}  # and its metadata
    for file in (image / "tessera").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) tessera_lab", file.read_text(), re.MULTILINE), file


def test_the_image_installs_the_manifests_of_this_checkout(image: Path) -> None:
    here = [sys.executable, "-m", "tessera", "install", "--output", "yaml"]
    expected = subprocess.run(here, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert run(image, ["install", "--output", "yaml"]).stdout == expected


def test_the_manifests_ask_for_what_the_image_is_made_for() -> None:
    """A read-only root, and the image's user except on nodes; tests/release runs the image so."""
    workloads = rendered("deploy").of_kind("Deployment", "DaemonSet")
    for workload in workloads:
        pod = workload["spec"]["template"]["spec"]
        for container in pod["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            user = container["securityContext"].get("runAsUser", pod.get("securityContext", {}).get("runAsUser"))
            assert user == (0 if workload["kind"] == "DaemonSet" else USER)
    assert {workload["kind"] for workload in workloads} == {"Deployment", "DaemonSet"}
