"""Every form of installation makes the same objects.

The forms are kustomize, the chart by the real Helm, ``tessera install``, and the OLM bundle with its operator.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from tests.charts.conftest import Helm, Key, Manifest, bundled, by_name, install, leaves, of_release

from tessera.cli.install.operator_process import operated_objects
from tessera.cli.install.operator_settings import read_choices
from tessera.cli.install.protections import PROTECTIONS

ROOT = Path(__file__).parents[2]


class Case(NamedTuple):
    """One choice in the words of each form.

    Attributes:
        overlay: a kustomization, whose paths begin at the root of the repository.
        values: the chart's values below ``tessera``.
        arguments: those of ``tessera install``; None for a choice that it does not have, nor the bundle.
        image: the image for ``tessera install``, and for the operator of the bundle its own.
        changes: what the kustomization changes, in its own words: ``images``, ``patches``.
    """

    overlay: Mapping[str, Sequence[str]]
    values: Mapping[str, Any]
    arguments: Sequence[str] | None = None
    image: str = ""
    changes: Mapping[str, Any] = {}


DEPLOY = {"resources": ["deploy"]}
DIGEST = f"sha256:{'a' * 64}"
CLUSTER = "(Deployment|DaemonSet)"
#: The workloads with the key of their values; the page is an option of its own.
WORKLOADS = {"controller": "Deployment", "webhook": "Deployment", "agent": "DaemonSet", "mps": "DaemonSet"}


def patch(kind: str, name: str, template: Mapping[str, Any], spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A patch of kustomize for the pods of a workload."""
    body = {"apiVersion": "apps/v1", "kind": "any", "metadata": {"name": "any"}}
    body |= {"spec": {**(spec or {}), "template": dict(template)}}
    return {"target": {"kind": kind, "name": name}, "patch": yaml.safe_dump(body)}


def of_every_workload(
    values: Mapping[str, Any], pod: Mapping[str, Any], metadata: Mapping[str, Any] | None = None
) -> Case:
    """The same values for each workload, and a patch with the same fields of its pods."""
    template = {"spec": dict(pod), **({"metadata": dict(metadata)} if metadata else {})}
    changes = {"patches": [patch(kind, f"tessera-{key}", template) for key, kind in WORKLOADS.items()]}
    return Case(DEPLOY, {key: dict(values) for key in WORKLOADS}, changes=changes)


def of_each_container(field: str, values: Mapping[str, Any]) -> Case:
    """A field of each workload's container, with a value by workload."""
    path = f"/spec/template/spec/containers/0/{field}"
    patches = [
        {
            "target": {"kind": WORKLOADS[key], "name": f"tessera-{key}"},
            "patch": json.dumps([{"op": "replace", "path": path, "value": value}]),
        }
        for key, value in values.items()
    ]
    return Case(DEPLOY, {key: {field: value} for key, value in values.items()}, changes={"patches": patches})


TOLERATIONS = [{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
TERM = {"matchExpressions": [{"key": "example.com/zone", "operator": "In", "values": ["a", "b"]}]}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [TERM]}}}
SMALL = {"requests": {"cpu": "15m", "memory": "48Mi"}, "limits": {"cpu": "2", "memory": "700Mi"}}
UPDATE = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "20%"}}


VALUES: Mapping[str, Mapping[str, Any]] = {
    "agent-policy": {"policies": {"agents": False}},
    "driver-policy": {"policies": {"drivers": False}},
    "namespace-policy": {"policies": {"namespaces": False}},
    "pin-policy": {"policies": {"pins": False}},
    "flow-schemas": {"flowSchemas": False},
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
    "the page": Case(
        {"resources": ["deploy", "deploy/options/dashboard"]}, {"dashboard": {"enabled": True}}, ["--dashboard"]
    ),
    "image by tag": Case(
        DEPLOY,
        {"image": {"repository": "registry.example/tessera", "tag": "9"}},
        [],
        "registry.example/tessera:9",
        {"images": [{"name": "tessera", "newName": "registry.example/tessera", "newTag": "9"}]},
    ),
    "image by digest": Case(
        DEPLOY,
        {"image": {"repository": "registry.example/tessera", "digest": DIGEST}},
        [],
        f"registry.example/tessera@{DIGEST}",
        {"images": [{"name": "tessera", "newName": "registry.example/tessera", "digest": DIGEST}]},
    ),
    "pull secrets": Case(
        DEPLOY,
        {"image": {"pullSecrets": [{"name": "a"}, {"name": "b"}]}},
        changes={
            "patches": [patch(CLUSTER, ".*", {"spec": {"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}})],
        },
    ),
    "priority classes": of_every_workload({"priorityClassName": "high"}, {"priorityClassName": "high"}),
    "tolerations": of_every_workload({"tolerations": TOLERATIONS}, {"tolerations": TOLERATIONS}),
    "node selectors": of_every_workload({"nodeSelector": {"zone": "a"}}, {"nodeSelector": {"zone": "a"}}),
    "labels and annotations of pods": of_every_workload(
        {"podLabels": {"team": "gpu"}, "podAnnotations": {"example.com/a": "b"}},
        {},
        {"labels": {"team": "gpu"}, "annotations": {"example.com/a": "b"}},
    ),
    "resources": of_each_container("resources", dict.fromkeys(WORKLOADS, SMALL)),
    "affinity": Case(
        DEPLOY,
        {"controller": {"affinity": AFFINITY}, "webhook": {"affinity": AFFINITY}},
        changes={
            "patches": [
                patch("Deployment", "tessera-.*", {"spec": {"affinity": {"$patch": "replace", **AFFINITY}}}),
            ]
        },
    ),
    "replicas": Case(
        DEPLOY,
        {"controller": {"replicas": 2}, "webhook": {"replicas": 3}},
        changes={
            "replicas": [{"name": "tessera-controller", "count": 2}, {"name": "tessera-webhook", "count": 3}],
        },
    ),
    "update of agents": Case(
        DEPLOY,
        {"agent": {"updateStrategy": UPDATE}},
        changes={"patches": [patch("DaemonSet", "tessera-agent", {}, {"updateStrategy": UPDATE})]},
    ),
    "without all": Case(
        {"resources": ["deploy"], "components": [f"deploy/without/{each}" for each in PROTECTIONS]},
        {key: value for each in PROTECTIONS for key, value in VALUES[each].items()}
        | {"policies": {"agents": False, "drivers": False, "namespaces": False, "pins": False}},
        [argument for each in PROTECTIONS for argument in ("--without", each)],
    ),
}


def kustomize(case: Case, folder: Path) -> list[Manifest]:
    """The objects of a kustomization that a user writes."""
    written = {key: [os.path.relpath(ROOT / each, folder) for each in paths] for key, paths in case.overlay.items()}
    written |= case.changes
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.load_all(done.stdout, yaml.CSafeLoader))


def every_form(case: Case, helm: Helm, folder: Path) -> dict[str, dict[Key, Manifest]]:
    """The objects of each form that has the choice."""
    release = helm.template({"tessera": case.values}, "kube-system")
    forms = {
        "kustomize": by_name(kustomize(case, folder)),
        "chart": by_name(of_release(release)),
    }
    if case.arguments is None:
        return forms
    operated = operated_objects(read_choices({"options": shlex.join(case.arguments)}, case.image))
    named = ["--image", case.image] if case.image else []
    return {
        **forms,
        "install": by_name(install(folder, *case.arguments, *named)),
        "bundle": by_name([*bundled(), *operated]),
    }


@pytest.mark.parametrize("name", CASES)
def test_all_forms_make_the_same_objects(name: str, helm: Helm, tmp_path: Path) -> None:
    (folder := tmp_path / "overlay").mkdir()
    forms = every_form(CASES[name], helm, folder)
    wanted = forms.pop("kustomize")
    for form, found in forms.items():
        assert found.keys() == wanted.keys(), form
        for key, manifest in wanted.items():
            assert sorted(leaves(found[key])) == sorted(leaves(manifest)), (form, key)


def test_a_choice_changes_objects(helm: Helm) -> None:
    """Else a case would compare the default with itself."""
    plain = helm.template({}, "kube-system")
    same = [name for name, case in CASES.items() if helm.template({"tessera": case.values}, "kube-system") == plain]
    assert same == ["default"]
