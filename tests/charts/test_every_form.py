"""Every form of installation makes the same objects.

The forms are kustomize, the chart by the real Helm, ``tessera install``, and the OLM bundle with its operator.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from bundle.check.reading import CSV_KIND, read_bundle
from bundle.files import FOLDER
from tests.charts.conftest import Helm, Key, Manifest, by_name, install, is_hook, leaves

from tessera.cli.install.operator_process import operated_objects
from tessera.cli.install.operator_settings import read_choices
from tessera.cli.install.protections import PROTECTIONS

ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    """One choice in the words of each form.

    Attributes:
        overlay: a kustomization, whose paths begin at the root of the repository.
        values: the chart's values below ``tessera``.
        arguments: those of ``tessera install``.
    """

    overlay: Mapping[str, Sequence[str]]
    values: Mapping[str, Any]
    arguments: Sequence[str]


VALUES: Mapping[str, Mapping[str, Any]] = {
    "agent-policy": {"policies": {"agents": False}},
    "driver-policy": {"policies": {"drivers": False}},
    "network-policies": {"networkPolicy": {"enabled": False}},
    "pod-security": {"podSecurity": False},
}
CASES: Mapping[str, Case] = {
    "default": Case({"resources": ["deploy"]}, {}, []),
    "openshift": Case({"resources": ["examples/openshift"]}, {"openshift": True}, ["--openshift"]),
    "device access warns": Case(
        {"resources": ["examples/device-access/warn"]},
        {"deviceAccess": {"action": "warn"}},
        ["--device-access", "warn"],
    ),
    "device access off": Case(
        {"resources": ["examples/device-access/off"]}, {"deviceAccess": {"action": "off"}}, ["--device-access", "off"]
    ),
    **{
        f"without {each}": Case(
            {"resources": ["deploy"], "components": [f"deploy/without/{each}"]}, VALUES[each], ["--without", each]
        )
        for each in PROTECTIONS
    },
    "cert-manager": Case(
        {"resources": ["deploy"], "components": ["deploy/options/cert-manager"]},
        {"webhook": {"certManager": {"enabled": True}}},
        ["--certificate", "cert-manager"],
    ),
    "without all": Case(
        {"resources": ["deploy"], "components": [f"deploy/without/{each}" for each in PROTECTIONS]},
        {key: value for each in PROTECTIONS for key, value in VALUES[each].items()}
        | {"policies": {"agents": False, "drivers": False}},
        [argument for each in PROTECTIONS for argument in ("--without", each)],
    ),
}


def kustomize(overlay: Mapping[str, Sequence[str]], folder: Path) -> list[Manifest]:
    """The objects of a kustomization that a user writes."""
    written = {key: [os.path.relpath(ROOT / each, folder) for each in paths] for key, paths in overlay.items()}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def every_form(case: Case, helm: Helm, folder: Path) -> dict[str, dict[Key, Manifest]]:
    """The objects of each form."""
    settings = read_choices({"options": shlex.join(case.arguments)}, "")
    operated = operated_objects(settings)
    bundled = [each for each in read_bundle(FOLDER).objects if each["kind"] != CSV_KIND]
    release = helm.template({"tessera": case.values}, "kube-system")
    return {
        "kustomize": by_name(kustomize(case.overlay, folder)),
        "chart": by_name([each for each in release if not is_hook(each)]),
        "install": by_name(install(folder, *case.arguments)),
        "bundle": by_name([*map(dict, bundled), *operated]),
    }


@pytest.mark.parametrize("name", CASES)
def test_all_forms_make_the_same_objects(name: str, helm: Helm, tmp_path: Path) -> None:
    (folder := tmp_path / "overlay").mkdir()
    forms = every_form(CASES[name], helm, folder)
    wanted = forms.pop("install")
    for form, found in forms.items():
        assert found.keys() == wanted.keys(), form
        for key, manifest in wanted.items():
            assert sorted(leaves(found[key])) == sorted(leaves(manifest)), (form, key)
