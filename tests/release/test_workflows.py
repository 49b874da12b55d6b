"""The workflows of a public forge: valid, without known weaknesses, and publishing only what an owner switches on."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from release.platforms import IMAGES
from release.wheels import ROOT

FILES = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
PROGRAMS = Path(sys.executable).parent
#: Permissions with which a job can change something outside of its own run.
WRITES = {"contents", "packages", "id-token", "attestations"}


def jobs(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["jobs"]
    return found


@pytest.mark.parametrize(
    "command",
    [["zizmor", "--offline", "--no-progress"], ["check-jsonschema", "--builtin-schema", "vendor.github-workflows"]],
    ids=["zizmor", "schema"],
)
def test_the_workflows_are_valid_and_without_known_weaknesses(command: list[str]) -> None:
    done = subprocess.run([str(PROGRAMS / command[0]), *command[1:], *FILES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_actions_are_pinned_by_a_commit_with_its_tag(file: Path) -> None:
    used = re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))
    assert used
    assert [each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_nothing_is_published_until_an_owner_switches_it_on() -> None:
    publishing = {
        name: job.get("if", "")
        for file in FILES
        for name, job in jobs(file).items()
        if any(job["permissions"].get(each) == "write" for each in WRITES)
    }
    assert publishing == {
        "image": "vars.IMAGE != ''",
        "chart": "vars.CHARTS != ''",
        "wheels": "vars.PUBLISH_WHEELS == 'true'",
        "plugin": "vars.PUBLISH_PLUGIN == 'true'",
    }


def test_what_a_workflow_makes_make_makes() -> None:
    called = {
        target
        for file in FILES
        for target in re.findall(r"make ([a-z ]+)", file.read_text(encoding="utf-8"))
        for target in target.split()
    }
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert called - {"git", "procps", "python"} <= targets
    assert {"test", "image", "plugin", "wheels", "chart"} <= called


def test_the_folders_of_make_fast_are_there() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (folders,) = re.findall(r"^FAST := (.*)$", text, re.MULTILINE)
    assert [each for each in folders.split() if not (ROOT / "tests" / each).is_dir()] == []


@pytest.mark.parametrize(
    ("target", "folder", "program"),
    [
        ("image", "dist/image", "-m release image dist/image"),
        ("plugin", "dist/plugin", "-m release plugin dist/plugin"),
        ("wheels", "dist/wheels", "-m hatchling build"),
        ("chart", "dist/chart", "helm package charts/tessera --destination dist/chart"),
    ],
)
def test_a_target_starts_from_an_empty_folder_and_builds_into_it(target: str, folder: str, program: str) -> None:
    done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    emptied, found, built = done.stdout.partition(f"rm -rf {folder}\n")
    assert found
    assert program in built
    assert program not in emptied


def test_each_platform_s_bill_of_materials_is_attested() -> None:
    steps = jobs(ROOT / ".github" / "workflows" / "release.yaml")["image"]["steps"]
    attested = {step.get("with", {}).get("sbom-path") for step in steps} - {None}
    assert attested == {f"dist/image/image-{each.architecture}.cdx.json" for each in IMAGES}
