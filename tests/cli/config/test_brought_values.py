"""Files that people bring: values inside objects of other tools, and values that NVIDIA's chart ignores.

Values that work with NVIDIA's chart work here, or a note says why not.
"""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tessera.cli.config.files import check_file
from tessera.cli.config.parts import PartReport
from tessera.cli.main import main

#: Values that are recognized in a report by "MIG strategy mixed"; the chart's own strategy is another one.
MIXED = "driver: {enabled: false}\nmig: {strategy: mixed}\n"
VALUES = {"driver": {"enabled": False}, "mig": {"strategy": "mixed"}}
CHART = "gpu-operator"


def manifest(api: str, kind: str, spec: object, name: str = "gpus") -> str:
    return json.dumps({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})


def flux(**spec: object) -> str:
    return manifest("helm.toolkit.fluxcd.io/v2", "HelmRelease", {"interval": "5m", **spec})


def argo(*sources: object) -> str:
    spec = {"sources": list(sources)} if len(sources) != 1 else {"source": sources[0]}
    return manifest("argoproj.io/v1alpha1", "Application", {"project": "default", **spec})


ARGO_SET = {
    "generators": [{"clusters": {}}],
    "template": {"spec": {"source": {"chart": CHART, "helm": {"values": MIXED}}}},
}
OTHER = {"chart": "kube-prometheus-stack", "helm": {"values": "operator: {enabled: true}\nglobal: {a: 1}\n"}}
TERRAFORM = {"resource": {"helm_release": {"gpus": {"name": "gpus", "chart": CHART, "values": [MIXED]}}}}

#: A document with values by its author's tool, and the place of the values.
PLACES = {
    "HelmRelease": (flux(chart={"spec": {"chart": CHART}}, values=VALUES), "gpus/spec.values"),
    "HelmRelease of a chart by reference": (
        flux(chartRef={"kind": "OCIRepository", "name": "nvidia"}, values=VALUES),
        "gpus/spec.values",
    ),
    "HelmRelease of an umbrella": (
        flux(chart={"spec": {"chart": "platform"}}, values={"gpu-operator": VALUES, "driver-tools": {"driver": {}}}),
        "gpus/spec.values.gpu-operator",
    ),
    "Application, object": (
        argo({"chart": CHART, "helm": {"valuesObject": VALUES}}),
        "gpus/spec.source.helm.valuesObject",
    ),
    "Application, text": (argo({"chart": CHART, "helm": {"values": MIXED}}), "gpus/spec.source.helm.values"),
    "Application, sources": (
        argo(OTHER, {"chart": CHART, "helm": {"values": MIXED}}),
        "gpus/spec.sources[1].helm.values",
    ),
    "Application of a folder": (argo({"path": "apps/gpus", "helm": {"values": MIXED}}), "gpus/spec.source.helm.values"),
    "Application, object over text": (
        argo({"chart": CHART, "helm": {"values": "mig: {strategy: none}\n", "valuesObject": VALUES}}),
        "gpus/spec.source.helm.values",
    ),
    "Application, parameters": (
        argo({"chart": CHART, "helm": {"parameters": [{"name": "mig.strategy", "value": "mixed"}]}}),
        "gpus/spec.source.helm.parameters",
    ),
    "ApplicationSet": (
        manifest("argoproj.io/v1alpha1", "ApplicationSet", ARGO_SET),
        "gpus/spec.template.spec.source.helm.values",
    ),
    "HelmChart": (
        manifest("helm.cattle.io/v1", "HelmChart", {"chart": f"nvidia/{CHART}", "valuesContent": MIXED}),
        "gpus/spec.valuesContent",
    ),
    "HelmChart, set": (
        manifest("helm.cattle.io/v1", "HelmChart", {"chart": CHART, "set": {"mig.strategy": "mixed"}}),
        "gpus/spec.set",
    ),
    "HelmChartConfig": (
        manifest("helm.cattle.io/v1", "HelmChartConfig", {"valuesContent": MIXED}, "rke2-gpu-operator"),
        "rke2-gpu-operator/spec.valuesContent",
    ),
    "Crossplane Release": (
        manifest(
            "helm.crossplane.io/v1beta1", "Release", {"forProvider": {"chart": {"name": CHART}, "values": VALUES}}
        ),
        "gpus/spec.forProvider.values",
    ),
    "k0s": (
        manifest(
            "k0s.k0sproject.io/v1beta1",
            "ClusterConfig",
            {"extensions": {"helm": {"charts": [{"name": "g", "chartname": f"nvidia/{CHART}", "values": MIXED}]}}},
        ),
        "gpus/spec.extensions.helm.charts[0].values",
    ),
    "HelmChartProxy": (
        manifest("addons.cluster.x-k8s.io/v1alpha1", "HelmChartProxy", {"chartName": CHART, "valuesTemplate": MIXED}),
        "gpus/spec.valuesTemplate",
    ),
    "kustomization": (
        json.dumps({"kind": "Kustomization", "helmCharts": [{"name": CHART, "valuesInline": VALUES}]}),
        "Kustomization/helmCharts[0].valuesInline",
    ),
    "kustomization without kind": (
        json.dumps({"helmCharts": [{"name": CHART, "valuesInline": VALUES}]}),
        "helmCharts[0].valuesInline",
    ),
    "helmfile": (
        json.dumps(
            {"releases": [{"name": "a", "chart": "x/y"}, {"name": "b", "chart": f"nvidia/{CHART}", "values": [VALUES]}]}
        ),
        "releases[1].values",
    ),
    "helmfile, set": (
        json.dumps({"releases": [{"chart": CHART, "set": [{"name": "mig.strategy", "value": "mixed"}]}]}),
        "releases[0].set",
    ),
    "fleet.yaml": (json.dumps({"helm": {"chart": CHART, "values": VALUES}}), "helm.values"),
    "Terraform, JSON": (json.dumps(TERRAFORM), "resource.helm_release.gpus.values"),
    "Ansible": (
        json.dumps({"kubernetes.core.helm": {"chart_ref": f"nvidia/{CHART}", "release_values": VALUES}}),
        "kubernetes.core.helm.release_values",
    ),
    "umbrella": (yaml.safe_dump({"gpu-operator": {"enabled": True, **VALUES}, "global": {"a": 1}}), "gpu-operator"),
    "umbrella by another name": (yaml.safe_dump({"accelerators": {**VALUES, "enabled": True}}), "accelerators"),
    "umbrella in an umbrella": (
        yaml.safe_dump({"platform": {"nvidia-gpu-operator": VALUES}}),
        "platform.nvidia-gpu-operator",
    ),
    "values in a ConfigMap": (
        json.dumps({"kind": "ConfigMap", "metadata": {"name": "v"}, "data": {"values.yaml": MIXED}}),
        "v/values.yaml",
    ),
    "umbrella in a ConfigMap": (
        json.dumps({"kind": "ConfigMap", "metadata": {"name": "v"}, "data": {"a": json.dumps({CHART: VALUES})}}),
        "gpu-operator",
    ),
    "JSON": (json.dumps(VALUES), "file"),
    "quoted keys of Terraform": ('"driver":\n  "enabled": "false"\n"mig":\n  "strategy": "mixed"\n', "file"),
    "anchors": ("x-on: &on {strategy: mixed}\nmig: {<<: *on}\ndriver: &d {enabled: false}\n", "file"),
    "nulls": (
        "driver: {enabled: false, env: null}\nmig: {strategy: mixed}\ntoolkit: null\ndevicePlugin: {config: null}\n",
        "file",
    ),
    "helm get values": (f"USER-SUPPLIED VALUES:\n{MIXED}", "file"),
    "helm get values --all": (f"COMPUTED VALUES:\n{MIXED}", "file"),
}


@pytest.mark.parametrize(("text", "place"), PLACES.values(), ids=PLACES)
def test_values_are_found_and_read_where_their_tool_holds_them(text: str, place: str) -> None:
    (part,) = (each for each in check_file(text, []) if each.kind == "values of gpu-operator")
    assert (part.name, part.verdict, part.means[0]) == (place, "right", "MIG strategy mixed")
    assert not any(line.startswith("driver") and "no effect" in line for line in part.notices), (
        "driver.enabled is false"
    )


PLUGIN_VALUES = {"config": {"map": {"four": "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 1}]}}\n"}}}
#: Documents with values of NVIDIA's device-plugin chart, and the place of the values.
PLUGIN_PLACES = {
    "HelmRelease": (flux(chart={"spec": {"chart": "nvidia-device-plugin"}}, values=PLUGIN_VALUES), "gpus/spec.values"),
    "Application": (
        argo({"chart": "nvidia-device-plugin", "helm": {"values": yaml.safe_dump(PLUGIN_VALUES)}}),
        "gpus/spec.source.helm.values",
    ),
    "helmfile": (
        json.dumps({"releases": [{"chart": "nvdp/nvidia-device-plugin", "values": [PLUGIN_VALUES]}]}),
        "releases[0].values",
    ),
    "umbrella": (yaml.safe_dump({"nvidia-device-plugin": PLUGIN_VALUES, "global": {"a": 1}}), "nvidia-device-plugin"),
    "plain": (yaml.safe_dump(PLUGIN_VALUES), "file"),
    "all values of the chart 0.19": (
        yaml.safe_dump({**PLUGIN_VALUES, "devicePlugin": {"enabled": True}, "gfd": {"enabled": False}, "cdi": {}}),
        "file",
    ),
}


@pytest.mark.parametrize(("text", "place"), PLUGIN_PLACES.values(), ids=PLUGIN_PLACES)
def test_profiles_of_the_device_plugins_chart_are_checked_where_their_tool_holds_them(text: str, place: str) -> None:
    chart, profile = check_file(text, [])
    assert (chart.name, chart.kind) == (place, "values of the device-plugin chart")
    assert profile.name == f"{place}/config.map/four"
    assert profile.problems == ("sharing.mps.resources[0].replicas: must be 2 or more, not 1",)


@pytest.mark.parametrize("name", PLUGIN_PLACES)
def test_an_installation_refuses_values_of_the_device_plugins_chart(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would drop the profiles and the MIG strategy, as if they were keys that nobody knows."""
    file = tmp_path / "brought.yaml"
    file.write_text(PLUGIN_PLACES[name][0])
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 1
    assert "are values of NVIDIA's device-plugin chart" in capsys.readouterr().err


def test_a_component_of_the_operator_is_no_sign_of_the_plugins_chart() -> None:
    """Also not beside a key of the other chart that somebody wrote into the values."""
    (part,) = check_file("devicePlugin: {enabled: true}\nmigStrategy: mixed\n", [])
    assert part.kind == "values of gpu-operator"


#: Those of an object or an umbrella chart that can be given to an installation; a ConfigMap is no file of values.
INSTALLED = [name for name, (_, place) in PLACES.items() if place != "file" and "ConfigMap" not in name]


@pytest.mark.parametrize("name", INSTALLED)
def test_an_installation_reads_the_same_values(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, _ = PLACES[name]
    file = tmp_path / "brought.yaml"
    file.write_text(text)
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 0
    assert "--mig-strategy=mixed" in capsys.readouterr().out


#: Sources of values outside the file, and what their notes say.
UNREAD = {
    "valuesFrom": (
        flux(chart={"spec": {"chart": CHART}}, valuesFrom=[{"kind": "Secret", "name": "gpu-secret"}], values=VALUES),
        "spec.valuesFrom: Secret gpu-secret is not read here",
    ),
    "valuesFrom alone": (
        flux(chart={"spec": {"chart": CHART}}, valuesFrom=[{"kind": "ConfigMap", "name": "gpu-values"}]),
        "spec.valuesFrom: ConfigMap gpu-values is not read here",
    ),
    "valueFiles": (
        argo({"chart": CHART, "helm": {"valueFiles": ["$values/gpu.yaml"], "valuesObject": VALUES}}),
        'spec.source.helm.valueFiles: "$values/gpu.yaml" is not read here',
    ),
    "files of a helmfile": (
        json.dumps({"releases": [{"chart": CHART, "values": ["gpu.yaml", VALUES]}]}),
        'releases[0].values: "gpu.yaml" is not read here',
    ),
    "valuesSecrets": (
        manifest("helm.cattle.io/v1", "HelmChart", {"chart": CHART, "valuesSecrets": [{"name": "s"}]}),
        'spec.valuesSecrets: {"name": "s"} is not read here',
    ),
    "valuesFile": (
        json.dumps({"kind": "Kustomization", "helmCharts": [{"name": CHART, "valuesFile": "gpu.yaml"}]}),
        'helmCharts[0].valuesFile: "gpu.yaml" is not read here',
    ),
    "an index in a single value": (
        argo({"chart": CHART, "helm": {"values": MIXED, "parameters": [{"name": "driver.env[0].name", "value": "A"}]}}),
        'spec.source.helm.parameters: "driver.env[0].name" is not read here',
    ),
}


@pytest.mark.parametrize(("text", "said"), UNREAD.values(), ids=UNREAD)
def test_values_elsewhere_are_named_and_no_installation_goes_on_without_them(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (part,) = check_file(text, [])
    assert part.verdict in {"right", "not used"}
    assert part.notices[0].startswith(said)
    file = tmp_path / "brought.yaml"
    file.write_text(text)
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 1
    assert said in capsys.readouterr().err


#: What NVIDIA's chart ignores or converts, and the note.
IGNORED = {
    "tolerations: []": "unknown, also to NVIDIA's operator; did you mean daemonsets.tolerations?",
    "priorityClassName: a": "did you mean daemonsets.priorityClassName?",
    "version: '580'\nmig: {}": "version: no effect: unknown, also to NVIDIA's operator; did you mean driver.version?",
    "resources: {}\ndriver: {}": "resources: no effect: unknown",
    "migManger: {}": "did you mean migManager?",
    "migStrategy: mixed\ndriver: {}": "did you mean mig.strategy?",
    "MIG_STRATEGY: mixed\ndriver: {}": "did you mean mig.strategy?",
    "driverVersion: '580'\ndriver: {}": "did you mean driver.version?",
    "driver: {autoUpgrade: true}": "driver.autoUpgrade: no effect: unknown, also to NVIDIA's operator; did you mean"
    " driver.upgradePolicy.autoUpgrade?",
    "toolkit: {tolerations: [], daemonset: {}}": "toolkit.daemonset: no effect: unknown, also to NVIDIA's operator;",
    "daemonsets: {nodeSelector: {a: b}}": "chooses nodes by their labels nvidia.com/gpu.deploy.*",
    "devicePlugin: {timeSlicing: {}}": "it belongs into a sharing profile",
    "migManager: {mig-configs: {}}": "it belongs into a file of MIG layouts",
    "mig: single": "mig: no effect: is no mapping of keys to values, so Helm drops it",
    "devicePlugin: {config: profiles}": "devicePlugin.config: no effect: is no mapping of keys to values",
    "driver: []": "driver: no effect: is no mapping of keys to values",
    "gds: {enabled: 'true'}": "gds: no effect: GPUDirect Storage",
    "toolkit: {enabled: 'no'}": "mig.strategy: not set",
    "enabled: true\ndriver: {}": "enabled: no effect: unknown",
}


@pytest.mark.parametrize(("text", "note"), IGNORED.items(), ids=IGNORED)
def test_a_value_that_nvidias_chart_ignores_is_a_note_with_the_place_that_was_meant(text: str, note: str) -> None:
    (part,) = check_file(text, [])
    assert (part.kind, part.problems) == ("values of gpu-operator", ())
    assert any(note in line for line in part.notices), part.notices
    assert not any("toolkit: no effect" in line for line in part.notices) or "tolerations" in text


def only(text: str) -> PartReport:
    (part,) = check_file(text, [])
    return part


def test_templates_are_named_with_the_way_to_render_them() -> None:
    part = only("releases:\n- chart: nvidia/gpu-operator\n  values: [{{ .Values.gpu | toYaml }}]\n")
    assert part.verdict == "wrong"
    assert "has templates between {{ and }}: render it first" in part.problems[-1]


def test_text_that_is_no_yaml_is_told_with_its_place() -> None:
    part = only(manifest("helm.cattle.io/v1", "HelmChart", {"chart": CHART, "valuesContent": "driver: [\nmig: {}\n"}))
    assert part.problems[0].startswith("spec.valuesContent: not YAML: ")


@pytest.mark.parametrize("kind", ["HelmRelease", "Application", "Deployment"])
def test_values_of_another_chart_are_not_checked(kind: str) -> None:
    spec = {
        "chart": "prometheus",
        "values": {"operator": {}, "driver": {}},
        "parameters": [{"name": "driver", "value": 1}],
    }
    part, file = check_file(manifest("example.com/v1", kind, spec), [])
    assert part.notices == (f"is a {kind}, which is not checked",)
    assert "holds nothing to check" in file.problems[0]


def test_several_places_are_not_guessed_among(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "brought.yaml"
    file.write_text(
        argo({"chart": CHART, "helm": {"values": MIXED}}, {"chart": CHART, "helm": {"valuesObject": VALUES}})
    )
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 1
    assert (
        "in 2 places; give one: spec.sources[0].helm.values, spec.sources[1].helm.valuesObject"
        in capsys.readouterr().err
    )


FLUX = flux(chart={"spec": {"chart": CHART}}, values=VALUES)
REPOSITORY = manifest("source.toolkit.fluxcd.io/v1", "HelmRepository", {"url": "https://example.com"})

#: Files of several documents, and what an installation says of each; empty if it reads the values.
SEVERAL = {
    "a repository beside": (f"{REPOSITORY}\n---\n{FLUX}\n", ""),
    "an empty document": (f"---\n---\n{MIXED}", ""),
    "values twice": (f"{MIXED}---\nmig: {{strategy: none}}\n", ""),
    "two releases": (f"{FLUX}\n---\n{FLUX}\n", "holds 2 documents, 2 of them with settings"),
    "none": (f"{REPOSITORY}\n---\n{REPOSITORY}\n", "holds 2 documents, 0 of them with settings"),
}


@pytest.mark.parametrize(("text", "said"), SEVERAL.values(), ids=SEVERAL)
def test_the_values_among_several_documents_are_read(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "brought.yaml"
    file.write_text(text)
    assert main(["install", "--values", str(file), "-o", "yaml"]) == int(bool(said))
    told = capsys.readouterr()
    assert said in told.err
    assert ("--mig-strategy=mixed" in told.out) == (not said)


@pytest.mark.parametrize("text", [f"driver: {{enabled: true}}\n{MIXED}", f'{{"driver": 1, {json.dumps(VALUES)[1:]}'])
def test_of_a_key_that_stands_twice_the_last_one_counts_as_in_helm(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = only(text)
    assert (part.verdict, part.means[0]) == ("right", "MIG strategy mixed")
    assert 'key "driver" stands twice in one mapping; the last one counts' in part.notices[0]
    file = tmp_path / "values.yaml"
    file.write_text(text)
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 0
    assert 'key "driver" stands twice' in capsys.readouterr().err


#: Keys of the tools and of the formats, in any place.
KEYS = (
    *(
        "kind",
        "apiVersion",
        "metadata",
        "name",
        "spec",
        "chart",
        "chartRef",
        "helm",
        "sources",
        "releases",
        "items",
        "data",
    ),
    *("values", "valuesContent", "valuesFrom", "set", "parameters", "value", "gpu-operator", "enabled", "tessera"),
    *(
        "driver",
        "mig",
        "strategy",
        "devicePlugin",
        "config",
        "create",
        "env",
        "toolkit",
        "daemonsets",
        "version",
        "sharing",
    ),
)
TEXTS = (
    "",
    "true",
    "ConfigMap",
    "List",
    "ClusterPolicy",
    "HelmRelease",
    CHART,
    "nvidia.com/v1",
    MIXED,
    "x: [",
    "{{ a }}",
)
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-1, 2), st.sampled_from(TEXTS))
DOCUMENTS = st.recursive(
    LEAVES, lambda below: st.lists(below, max_size=2) | st.dictionaries(st.sampled_from(KEYS), below, max_size=4)
)


@given(st.dictionaries(st.sampled_from(KEYS), DOCUMENTS, max_size=5))
def test_whatever_is_brought_has_a_verdict(document: dict[str, object]) -> None:
    assert {part.verdict for part in check_file(json.dumps(document), [])} <= {"right", "wrong", "not used"}
