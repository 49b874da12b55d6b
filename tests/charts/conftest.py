"""The chart as Helm renders it, and the same installation by ``tessera install``."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from bundle.check.reading import CSV_KIND, read_bundle
from bundle.files import FOLDER as BUNDLE
from charts.files import FOLDER
from click.testing import CliRunner
from tests.support.helm_program import HELM
from tests.support.rendered_yaml import read_documents

from tessera.api.names import LAB_SUFFIX
from tessera.cli.main import tessera

Manifest = dict[str, Any]
Key = tuple[str, str, str]

#: Labels and annotations that Helm's objects have besides; each names a release or a version of the chart.
HELM_KEYS = ("helm.sh/", "app.kubernetes.io/instance", "app.kubernetes.io/version", "app.kubernetes.io/managed-by")
#: Renders as for a lab, the only cluster for which the unpublished image is taken.
IN_LAB = ("--kube-version", f"1.32.4{LAB_SUFFIX}")
PART_OF = "app.kubernetes.io/part-of"


class Helm:
    """Runs Helm on the chart, for a release named tessera."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, *arguments: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a command; the values go into a file."""
        if arguments[0] == "template" and "--kube-version" not in arguments:
            arguments = (*arguments, *IN_LAB)
        file = self._folder / "values.yaml"
        file.write_text(yaml.safe_dump(dict(values or {})), encoding="utf-8")
        return subprocess.run(
            [HELM, *arguments, "--values", str(file)], capture_output=True, text=True, check=False, timeout=60
        )

    def template(self, values: Mapping[str, Any], namespace: str, *more: str) -> list[Manifest]:
        """The objects of a release."""
        return read_documents(_rendered(yaml.safe_dump(dict(values)), namespace, *more))


@cache
def _rendered(values: str, namespace: str, *more: str) -> str:
    """A release as Helm prints it: several tests look at the same release."""
    command = [HELM, "template", "tessera", str(FOLDER), "--namespace", namespace, *IN_LAB, *more, "--values", "-"]
    done = subprocess.run(command, input=values, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def install(folder: Path, *arguments: str, values: Mapping[str, Any] | None = None) -> list[Manifest]:
    """The objects of ``tessera install -o yaml``."""
    named = []
    if values is not None:
        file = folder / "nvidia.yaml"
        file.write_text(yaml.safe_dump(dict(values)), encoding="utf-8")
        named = ["--values", str(file)]
    done = CliRunner().invoke(tessera, ["install", "-o", "yaml", *named, *arguments])
    assert done.exit_code == 0, done.output
    return read_documents(done.stdout)


def bundled() -> list[Manifest]:
    """The objects that OLM makes from the bundle."""
    objects: list[Manifest] = msgspec.json.decode(_bundled())
    return objects


@cache
def _bundled() -> bytes:
    return msgspec.json.encode([dict(each) for each in read_bundle(BUNDLE).objects if each["kind"] != CSV_KIND])


def is_hook(manifest: Manifest, event: str = "") -> bool:
    """True for an object that Helm makes for a moment beside those of the release; only at one event if it is given."""
    events = manifest["metadata"].get("annotations", {}).get("helm.sh/hook", "")
    return event in events.split(",") if event else bool(events)


def of_release(rendered: Sequence[Manifest]) -> list[Manifest]:
    """The objects that each form makes: without Helm's hooks, and without the rights of the Job that they need."""
    return [each for each in rendered if not is_hook(each) and each["metadata"]["name"] != "tessera-removal"]


def by_name(objects: Sequence[Manifest]) -> dict[Key, Manifest]:
    """The objects without the labels and annotations of a release, by kind, namespace and name."""
    found: dict[Key, Manifest] = {}
    for each in objects:
        metadata = each["metadata"]
        key = (each["kind"], metadata.get("namespace", ""), metadata["name"])
        assert key not in found, f"{key} is there twice"
        found[key] = {**each, "metadata": _plain(metadata)}
    return found


def _plain(metadata: Mapping[str, Any]) -> Manifest:
    kept = dict(metadata)
    for part in ("labels", "annotations"):
        entries = {key: value for key, value in kept.pop(part, {}).items() if not key.startswith((*HELM_KEYS, PART_OF))}
        if entries:
            kept[part] = entries
    return kept


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """The path and value of each leaf; a difference of two objects is then a few lines."""
    if isinstance(value, dict) and value:
        for key, below in value.items():
            yield from leaves(below, f"{path}.{key}")
    elif isinstance(value, list) and value:
        for number, below in enumerate(value):
            yield from leaves(below, f"{path}[{number}]")
    else:
        yield path, repr(value)
