"""The manifests as kubectl renders them."""

import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.rendered_yaml import read_documents

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


#: The kustomization of the live page and the API for tenants.
PAGE = "deploy/options/dashboard"


@cache
def rendered(name: str) -> Installation:
    """A kustomization's objects without those of the page, which tests/deploy/test_dashboard.py tests."""
    own = set() if name == PAGE else {_name(each) for each in kustomized(PAGE).objects}
    return Installation(name, [each for each in kustomized(name).objects if _name(each) not in own])


@cache
def kustomized(name: str) -> Installation:
    """All objects of a kustomization."""
    done = subprocess.run(["kubectl", "kustomize", str(ROOT / name)], capture_output=True, text=True, check=True)
    return Installation(name, read_documents(done.stdout))


def _name(manifest: Obj) -> tuple[str, str, str]:
    metadata = manifest["metadata"]
    return manifest["kind"], metadata.get("namespace", ""), metadata["name"]


@pytest.fixture(params=INSTALLATIONS)
def installation(request: pytest.FixtureRequest) -> Installation:
    return rendered(request.param)
