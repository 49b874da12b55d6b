"""Every form of installation makes the same objects.

The forms are kustomize, the chart by the real Helm, ``tessera install``, and the OLM bundle with its operator.
"""

import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml
from tests.charts.conftest import Helm, Key, Manifest, bundled, by_name, install, is_hook, leaves, of_release
from tests.support.rendered_yaml import read_documents

from tessera.api.names import CLAIM_DRIVERS
from tessera.cli.install.drivers import parse_choice
from tessera.cli.install.manifests import drivers_in_charge
from tessera.cli.install.operator_process import operated_objects, read_choices
from tessera.cli.install.settings import read_driver_objects
from tessera.cli.install.variants import PROTECTIONS

ROOT = Path(__file__).parents[2]
SEED = yaml.load((ROOT / "examples" / "sharing" / "values.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
PROFILES = {"slice-4": "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"}
LAYOUTS = {"config.yaml": "version: v1\nmig-configs: {all-disabled: [{devices: all, mig-enabled: false}]}\n"}
PEM = "-----BEGIN CERTIFICATE-----\n"


class Case(NamedTuple):
    """One choice in the words of each form.

    Attributes:
        overlay: a kustomization, whose paths begin at the root of the repository; None for a choice that kustomize does
            not have.
        values: the chart's values below ``tessera``.
        arguments: those of ``tessera install``; None for a choice that it does not have, nor the bundle.
        image: the image for ``tessera install``, and for the operator of the bundle its own.
        changes: what the kustomization changes, in its own words: ``images``, ``patches``.
        nvidia: values of NVIDIA's chart, for Helm, ``--values`` and the bundle's ConfigMap.
    """

    overlay: Mapping[str, Sequence[str]] | None
    values: Mapping[str, Any]
    arguments: Sequence[str] | None = None
    image: str = ""
    changes: Mapping[str, Any] = {}
    nvidia: Mapping[str, Any] | None = None


def chosen(nvidia: Mapping[str, Any] | None, values: Mapping[str, Any], arguments: Sequence[str]) -> Case:
    """A choice that kustomize does not have."""
    return Case(None, values, arguments, nvidia=nvidia)


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
    "no page": Case(
        {"resources": ["deploy"], "components": ["deploy/without/dashboard"]},
        {"dashboard": {"enabled": False}},
        ["--no-dashboard"],
    ),
    "KEDA's port": Case(
        {"resources": ["deploy"], "components": ["deploy/options/keda"]},
        {"dashboard": {"kedaPort": 9443}},
        ["--dashboard-keda-port", "9443"],
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
                patch(
                    "Deployment",
                    "tessera-(controller|webhook)",
                    {"spec": {"affinity": {"$patch": "replace", **AFFINITY}}},
                ),
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
#: Choices about NVIDIA's settings and about processes.
SETTINGS: Mapping[str, Case] = {
    "seed": chosen(SEED, {}, []),
    "host drivers": chosen(SEED, {"drivers": "host"}, ["--no-drivers"]),
    "config": chosen(
        {
            "mig": {"strategy": "mixed"},
            "devicePlugin": {"config": {"create": True, "name": "slices", "default": "slice-4", "data": PROFILES}},
            "migManager": {"config": {"create": True, "name": "layouts", "default": "all-disabled", "data": LAYOUTS}},
        },
        {},
        [],
    ),
    "variables": chosen(
        {
            "devicePlugin": {
                "mps": {"root": "/srv/mps/"},
                "env": [
                    {"name": "MIG_STRATEGY", "value": "none"},
                    {"name": "DEVICE_LIST_STRATEGY", "value": "cdi-cri, cdi-annotations,cdi-cri"},
                    {"name": "DEVICE_ID_STRATEGY", "value": "index"},
                    {"name": "PASS_DEVICE_SPECS", "value": "t"},
                    {"name": "DP_DISABLE_HEALTHCHECKS", "value": "13,31"},
                    {"name": "DP_ENABLE_HEALTHCHECKS", "value": ""},
                ],
            },
            "migManager": {
                "enabled": False,
                "config": {"name": "ignored"},
                "env": [{"name": "WITH_REBOOT", "value": "true"}],
            },
            "hostPaths": {"kubeletRootDir": "/srv/kubelet/"},
        },
        {},
        [],
    ),
    "drivers elsewhere": chosen(
        {
            "driver": {"version": 550, "imagePullSecrets": ["a-secret"], "manager": {"imagePullSecrets": ["b-secret"]}},
            "toolkit": {"imagePullSecrets": ["a-secret"]},
            "hostPaths": {"driverInstallDir": "/srv/driver/"},
        },
        {"driverPullSecrets": ["c-secret"]},
        ["--pull-secret", "c-secret"],
    ),
    "drivers asked for": chosen({"mig": {"strategy": "mixed"}}, {"drivers": "install"}, ["--drivers"]),
    "driver by object": chosen(
        {"driver": {"nvidiaDriverCRD": {"enabled": True}, "version": "550.54.14"}, "cdi": {"nriPluginEnabled": True}},
        {},
        [],
    ),
    "not deployed": chosen({"driver": {"version": "550"}, "clusterPolicy": {"deployCR": False}}, {}, []),
    "nulls": chosen({"mig": None, "devicePlugin": {"config": None, "env": None}, "driver": {"version": None}}, {}, []),
    "agent": chosen(
        None,
        {
            "agent": {
                "migEvict": True, "memoryLimits": "kill", "simulate": "2xA100-40GB",
            },
        },
        [
            *("--mig-evict", "--memory-limits", "kill", "--simulate", "2xA100-40GB"),
        ],
    ),
    **{
        f"claims of {driver}": chosen(nvidia, {"claims": {"driver": driver}}, ["--claim-driver", driver])
        for driver, nvidia in zip(CLAIM_DRIVERS, (None, {"hostPaths": {"kubeletRootDir": "/kubelet/"}}), strict=True)
    },
    "claims by the scheduler": chosen(
        None,
        {"claims": {"driver": CLAIM_DRIVERS[0], "placement": "scheduler"}},
        ["--claim-driver", CLAIM_DRIVERS[0], "--claim-placement", "scheduler"],
    ),
    "open metrics": chosen(None, {"monitoring": {"metricsAccess": "open"}}, ["--metrics-access", "open"]),
    "evicting memory": chosen(None, {"agent": {"memoryLimits": "evict"}}, ["--memory-limits", "evict"]),
    "controller": chosen(
        None,
        {
            "controller": {
                "replaceFailed": 2, "reservations": "always", "preempt": True,
                "moves": "evict", "movesPerHour": 7, "scaleUp": "off", "handover": "off",
            },
            "registries": {"plainHttp": ["registry.local:5000", "*"]},
            "startup": {"taints": ["example.com/gpu"], "deadline": "600s"},
            "builds": {
                "buildahImage": "registry.local/buildah:v1",
                "baseImages": {"rhel9": "registry.local/ubi9:1", "ubuntu22.04": "registry.local/ubuntu:22.04"},
                "dtkImages": {"5.14.0": "registry.local/dtk:1"},
                "downloads": "https://mirror.local/tesla",
                "caConfigMap": "authorities",
                "tlsVerify": False,
                "nvswitch": False,
            },
        },
        [
            *("--replace-failed", "2", "--plain-http", "registry.local:5000", "--plain-http", "*"),
            *("--startup-taint", "example.com/gpu", "--startup-deadline", "10m"),
            *("--reservations", "always", "--preempt", "--moves", "evict", "--moves-per-hour", "7"),
            *("--handover", "off"),
            *("--scale-up", "off"),
            *("--buildah-image", "registry.local/buildah:v1", "--build-base-image", "rhel9=registry.local/ubi9:1"),
            *("--build-base-image", "ubuntu22.04=registry.local/ubuntu:22.04"),
            *("--build-dtk-image", "5.14.0=registry.local/dtk:1", "--build-downloads", "https://mirror.local/tesla"),
            *("--build-ca-config-map", "authorities", "--no-build-tls-verify", "--no-build-nvswitch"),
        ],
    ),
    "dashboard": chosen(
        None,
        {
            "dashboard": {
                "enabled": True,
                "origins": ["https://gpu.example.com"],
                "withoutToken": "hide-names",
                "prometheus": {"url": "http://prometheus.example.com:9090", "labels": ["cluster=prod", "region=eu 1"]},
            }
        },
        [
            *("--dashboard", "--dashboard-origin", "https://gpu.example.com"),
            *("--dashboard-without-token", "hide-names"),
            *("--dashboard-prometheus", "http://prometheus.example.com:9090"),
            *("--dashboard-prometheus-label", "cluster=prod", "--dashboard-prometheus-label", "region=eu 1"),
        ],
    ),
    "device access": chosen(
        None,
        {"deviceAccess": {"action": "warn", "namespaces": ["monitoring", "kube-system"]}},
        ["--device-access", "warn", "--device-access-namespace", "monitoring"],
    ),
    "api servers": chosen(
        None,
        {"networkPolicy": {"apiServers": ["192.0.2.0/28", "2001:db8::/64"]}},
        ["--api-server", "192.0.2.0/28", "--api-server", "2001:db8::/64"],
    ),
    "cert-manager's issuer": chosen(
        None,
        {"webhook": {"certManager": {"enabled": True, "issuer": {"kind": "Issuer", "name": "corporate"}}}},
        ["--certificate", "cert-manager", "--issuer", "Issuer/corporate"],
    ),
}  # fmt: skip
CHOICES = {**CASES, **SETTINGS}


def together(*names: str) -> Case:
    """Choices that have nothing to do with each other, as one."""
    cases = [CHOICES[name] for name in names]
    values: dict[str, Any] = {}
    changes: dict[str, Any] = {}
    for case in cases:
        for key, value in case.changes.items():
            changes[key] = [*changes.get(key, ()), *value]
        _merge(values, case.values)
    arguments = [each for case in cases for each in case.arguments or ()] or None
    return Case(DEPLOY if changes else None, values, arguments, changes=changes)


def _merge(values: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict):
            _merge(values.setdefault(key, {}), value)
        else:
            assert key not in values, key
            values[key] = value


PODS = (
    "pull secrets",
    "priority classes",
    "tolerations",
    "node selectors",
    "labels and annotations of pods",
    "resources",
    "affinity",
    "replicas",
    "update of agents",
)
OPTIONS = (
    "agent",
    "open metrics",
    "dashboard",
    "device access",
    "api servers",
    "cert-manager's issuer",
)
#: The order of arguments is each form's own, so what "controller" sets is not among them.
#: In `make test`, choices that do not concern each other are made at once; `make soak` makes each alone, too.
ALONE = {*PODS, *OPTIONS, *(f"without {each}" for each in PROTECTIONS)}
MADE: Mapping[str, Case] = {**CHOICES, "all of pods": together(*PODS), "all options": together(*OPTIONS)}


def kustomize(case: Case, folder: Path) -> list[Manifest]:
    """The objects of a kustomization that a user writes."""
    overlay = case.overlay or {}
    written = {key: [os.path.relpath(ROOT / each, folder) for each in paths] for key, paths in overlay.items()}
    written |= case.changes
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written), encoding="utf-8")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return read_documents(done.stdout)


def by_job(release: Sequence[Manifest]) -> list[Manifest]:
    """The objects of drivers that the chart's Job applies."""
    hooks = {each["kind"]: each for each in release if is_hook(each, "post-install")}
    if not hooks:
        return []
    (container,) = hooks["Job"]["spec"]["template"]["spec"]["containers"]
    choice = parse_choice(container["args"])
    text = hooks["ConfigMap"]["data"]["values.yaml"] if choice.config_map else None
    found, _ = read_driver_objects(None, choice.drivers, text=text)
    return list(drivers_in_charge(found) if choice.drivers else found)


def release_of(case: Case, helm: Helm) -> list[Manifest]:
    """The objects of the chart."""
    return helm.template({**(case.nvidia or {}), "tessera": case.values}, "kube-system")


def every_form(case: Case, helm: Helm, folder: Path) -> Iterator[tuple[str, dict[Key, Manifest]]]:
    """The objects of each form that has the choice."""
    if case.overlay is not None:
        yield "kustomize", by_name(kustomize(case, folder))
    release = release_of(case, helm)
    yield "chart", by_name([*of_release(release), *by_job(release)])
    if case.arguments is None:
        return
    arguments = [*(["--namespace", "kube-system"] if case.nvidia is not None else []), *case.arguments]
    settings = {"options": shlex.join(arguments)}
    if case.nvidia is not None:
        settings["values.yaml"] = yaml.safe_dump(dict(case.nvidia))
    named = ["--image", case.image] if case.image else []
    yield "install", by_name(install(folder, *arguments, *named, values=case.nvidia))
    yield "bundle", by_name([*bundled(), *operated_objects(read_choices(settings, case.image))])


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.soak if name in ALONE else ()) for name in MADE])
def test_all_forms_make_the_same_objects(name: str, helm: Helm, tmp_path: Path) -> None:
    (folder := tmp_path / "overlay").mkdir()
    (first, wanted), *others = every_form(MADE[name], helm, folder)
    assert others, f"only {first} has the choice"
    plain = release_of(CASES["default"], helm)
    assert (release_of(MADE[name], helm) == plain) == (name == "default"), "it compares the default with itself"
    for form, found in others:
        assert found.keys() == wanted.keys(), (first, form)
        for key, manifest in wanted.items():
            if msgspec.json.encode(found[key], order="sorted") != msgspec.json.encode(manifest, order="sorted"):
                assert sorted(leaves(found[key])) == sorted(leaves(manifest)), (first, form, key)
