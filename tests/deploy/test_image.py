"""The image: what the Containerfile copies is all that the commands need."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.deploy.conftest import ROOT

#: COPY source target, of the first stage; the second takes over the virtual environment.
_COPY = re.compile(r"^COPY (?!--from)(\S+) (\S+)$", re.MULTILINE)

COMMANDS = [
    ["--version"],
    ["install", "--output", "yaml"],
    ["config", "check", "-"],
    ["plan", "mig", "A100", "3g.20gb", "4g.20gb"],
    ["controller", "--help"],
    ["webhook", "--help"],
    ["agent", "--help"],
    ["wait-for", "--help"],
    ["validate", "--help"],
    ["driver", "coverage", "--help"],
    ["provisioning", "report", "--help"],
    ["autoscaler", "advise", "--help"],
    ["why", "--help"],
    ["map", "--help"],
]
POLICY = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it lies in the image, without the checkout beside it."""
    folder = tmp_path_factory.mktemp("image")
    for source, target in _COPY.findall((ROOT / "Containerfile").read_text()):
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target, dirs_exist_ok=True)
        else:
            (folder / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, folder / target)
    shutil.copytree(folder / "src" / "tessera", folder / "site" / "tessera")
    shutil.rmtree(folder / "src")
    return folder / "site"


def run(image: Path, command: list[str]) -> subprocess.CompletedProcess[str]:
    """Runs a command on the image's package and the pinned libraries, not on this checkout's package."""
    start = f"import sys; sys.path[:0] = {[str(image), sysconfig.get_path('purelib')]!r}; "
    start += "from tessera.cli.main import main; sys.exit(main())"
    environment = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    # -S: no .pth file is read, by which the virtual environment finds the checkout.
    arguments = [sys.executable, "-I", "-S", "-c", start, *command]
    return subprocess.run(arguments, input=POLICY, capture_output=True, text=True, env=environment, cwd=image)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_of_the_product_runs_from_the_image(image: Path, command: list[str]) -> None:
    done = run(image, command)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_image_installs_the_manifests_of_this_checkout(image: Path) -> None:
    here = [sys.executable, "-m", "tessera", "install", "--output", "yaml"]
    expected = subprocess.run(here, capture_output=True, text=True, cwd=ROOT, check=True).stdout
    assert run(image, ["install", "--output", "yaml"]).stdout == expected
