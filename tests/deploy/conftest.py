"""The manifests as kubectl renders them."""

import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from bundle.check.reading import CSV_KIND, read_bundle
from bundle.files import FOLDER
from tests.support.helm_program import HELM

from tessera.cli.install.manifests import InstallChoices
from tessera.cli.install.operator_process import operated_objects
from tessera.cli.install.rendering import render

Obj = Mapping[str, Any]

ROOT = Path(__file__).parents[2]
#: What a user applies with ``kubectl apply -k``.
INSTALLATIONS = ("deploy", "examples/simulated", "examples/openshift")


class Installation(msgspec.Struct, frozen=True):
    """All objects of one installation."""

    name: str
    objects: Sequence[Obj]

    def of_kind(self, *kinds: str) -> Sequence[Obj]:
        return [each for each in self.objects if each["kind"] in kinds]

    def one(self, kind: str, name: str, namespace: str | None = None) -> Obj:
        (found,) = (
            each
            for each in self.of_kind(kind)
            if (each["metadata"]["name"], each["metadata"].get("namespace")) == (name, namespace)
        )
        return found


@cache
def rendered(name: str) -> Installation:
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / name)], capture_output=True, text=True, check=True)
    return Installation(name, list(yaml.load_all(done.stdout, yaml.CSafeLoader)))


#: Forms of installation beside ``kubectl apply -k``: the chart by the real Helm, ``tessera install``, and the operator
#: of the OLM bundle with what the bundle itself has.
FORMS = ("chart", "install", "bundle")


@cache
def rendered_form(form: str, *, dashboard: bool = False) -> Installation:
    choices = InstallChoices(dashboard=dashboard)
    match form:
        case "chart":
            command = [HELM, "template", "tessera", str(ROOT / "charts" / "tessera"), "--namespace", "kube-system"]
            command += ["--set", f"tessera.dashboard.enabled={str(dashboard).lower()}"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            objects = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
        case "install":
            objects = render(choices)
        case _:
            bundled = read_bundle(FOLDER).objects
            objects = [*(each for each in bundled if each["kind"] != CSV_KIND), *operated_objects(choices)]
    return Installation(form, objects)


@pytest.fixture(params=INSTALLATIONS)
def installation(request: pytest.FixtureRequest) -> Installation:
    return rendered(request.param)
