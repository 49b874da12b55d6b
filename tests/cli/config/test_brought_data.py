"""ConfigMaps and kinds that people bring: read as NVIDIA's programs read them, or with a note on the difference."""

import json
from pathlib import Path

import pytest
import yaml

from tessera.cli.config.files import check_file
from tessera.cli.main import main

#: Manifests whose kind is like one that is checked, and the report on each.
KINDS = {
    "kyverno.io/v1 ClusterPolicy": "is a ClusterPolicy of kyverno.io, which is not checked",
    "rbac.authorization.k8s.io/v1 ClusterRole": "is a ClusterRole, which is not checked",
    "rbac.authorization.k8s.io/v1 ClusterRoleList": "is a ClusterRoleList, which is not checked",
    "policies.kyverno.io/v1 ClusterPolicies": "is a ClusterPolicies, which is not checked",
    "v1 ComponentStatus": "is a ComponentStatus, which is not checked",
    "example.com/v1 ConfigMap": "is a ConfigMap of example.com, which is not checked",
    "example.com/v1 Status": "is a Status, which is not checked",
    "example.com/v1 NVIDIADriver": "is a NVIDIADriver of example.com, which is not checked",
    "traefik.io/v1alpha1 IPAllowList": "is a IPAllowList, which is not checked",
    "v1 Configmap": "did you mean ConfigMap?",
    "nvidia.com/v1 ClusterPolcy": "did you mean ClusterPolicy?",
    "nvidia.com/v1alpha1 NvidiaDriver": "did you mean NVIDIADriver?",
}


@pytest.mark.parametrize(("named", "said"), KINDS.items(), ids=KINDS)
def test_a_kind_is_compared_with_those_of_its_api_group(named: str, said: str) -> None:
    version, kind = named.split()
    part, *_ = check_file(json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}}), [])
    assert said in (*part.notices, *part.problems)[0]
    assert bool(part.problems) == ("did you mean" in said)


PROFILE = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
LAYOUTS = "version: v1\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}]}\n"

#: Data of a ConfigMap as people write it, and the verdict on it with a word of its note or mistake.
DATA: dict[str, tuple[str, str, str]] = {
    "another case of keys": (PROFILE.replace("timeSlicing", "timeslicing"), "right", "is read as timeSlicing"),
    "another case of a flag": (
        "flags: {MigStrategy: mixed, plugin: {PASSDEVICESPECS: true}}",
        "right",
        "is read as migStrategy",
    ),
    "another case within a block": (PROFILE.replace("resources", "Resources"), "wrong", "did you mean resources?"),
    "both cases": ("flags: {migStrategy: none, MIGSTRATEGY: mixed}", "wrong", "did you mean migStrategy?"),
    "several documents": (f"{PROFILE}---\nversion: v2\n", "right", "only the first one counts"),
    "several documents of layouts": (f"{LAYOUTS}---\nversion: v2\n", "right", "only the first one counts"),
    "a key twice": ("flags: {migStrategy: none}\nflags: {migStrategy: mixed}\n", "right", "the last one counts"),
    "a document mark": (f"---\n{PROFILE}", "right", ""),
    "JSON": (json.dumps(yaml.safe_load(PROFILE)), "right", ""),
    "a number with a point": (PROFILE.replace("4", "4.0"), "right", ""),
    "layouts with a point": (LAYOUTS.replace("7", "7.0"), "right", ""),
    "a number as text": (PROFILE.replace("4", '"4"'), "wrong", "must be a whole number"),
    "layouts with a number as text": (LAYOUTS.replace("7", '"7"'), "wrong", "must be a whole number"),
    "half a replica": (PROFILE.replace("4", "4.5"), "wrong", "must be a whole number"),
    "a switch as text": ("flags: {failOnInitError: 'true'}", "wrong", "must be true or false"),
    "a switch as a word": ("flags: {failOnInitError: yes}", "right", "flags.failOnInitError: no effect"),
    "nulls": ("flags: null\nsharing: {timeSlicing: null}\nresources: null\nimex: null\n", "right", ""),
    "anchors": ("x: &r 4\n" + PROFILE.replace("4", "*r"), "wrong", "x: unknown"),
    "environment variables": ("flags: {MIG_STRATEGY: mixed}", "wrong", "did you mean migStrategy?"),
    "options of the command": (
        "flags: {plugin: {device-list-strategy: envvar}}",
        "wrong",
        "did you mean deviceListStrategy?",
    ),
    "a switch under flags": (
        "flags: {renameByDefault: true}",
        "wrong",
        "did you mean sharing.timeSlicing.renameByDefault?",
    ),
    "sharing at the top": ("timeSlicing: {resources: []}", "wrong", "did you mean sharing.timeSlicing?"),
    "replicas of a block": ("sharing: {mps: {replicas: 2, resources: []}}", "wrong", "resources[].replicas?"),
    "a version of another format": ("version: 1\n" + PROFILE, "wrong", "version: 1 is not known"),
    "layouts without a version": (
        "mig-configs: {a: [{devices: all, mig-enabled: false}]}",
        "wrong",
        "version: missing",
    ),
    "a layout at the top": (LAYOUTS.replace("mig-configs", "mig-config"), "wrong", "did you mean mig-configs?"),
    "an entry's key above": (
        "version: v1\nmig-configs: {}\nmig-devices: {}\n",
        "wrong",
        "mig-configs.NAME[].mig-devices",
    ),
    "a list": ("- name: nvidia.com/gpu\n", "wrong", "must be a mapping"),
}


@pytest.mark.parametrize(("text", "verdict", "said"), DATA.values(), ids=DATA)
def test_data_is_read_as_nvidias_reader_does_or_a_note_says_the_difference(text: str, verdict: str, said: str) -> None:
    given = json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": text}})
    (part,) = check_file(given, [])
    assert part.verdict == verdict, part
    assert any(said in line for line in (*part.problems, *part.notices)) or not said, part


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("entrypoint.sh", "#! /bin/bash\nset -e: [\n"),
        ("run", "#!/bin/sh\necho '{'\n"),
        ("ca.crt", "-----BEGIN CERTIFICATE-----\n"),
        ("LOG_LEVEL", "debug"),
        ("prometheus.yml", "scrape_configs: []\n"),
    ],
)
def test_data_of_another_program_is_not_checked(key: str, text: str) -> None:
    data = {key: text, "profile": "version: v1\n"}
    other, profile = check_file(json.dumps({"kind": "ConfigMap", "metadata": {"name": "m"}, "data": data}), [])
    assert (other.verdict, profile.verdict) == ("not used", "right")
    (alone, file) = check_file(json.dumps({"kind": "ConfigMap", "metadata": {"name": "m"}, "data": {key: text}}), [])
    assert (alone.verdict, file.verdict) == ("not used", "wrong")
    assert "holds nothing to check" in file.problems[0]


def test_a_profile_is_no_file_of_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(PROFILE)
    assert main(["install", "--values", str(file), "-o", "yaml"]) == 1
    assert "is a sharing profile or a file of MIG layouts" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["just text", "groups: [{name: gpu.node, rules: []}]", "scrape_configs: []"])
def test_a_file_of_another_program_holds_nothing_to_check(text: str) -> None:
    other, file = check_file(text, [])
    assert (other.verdict, file.verdict) == ("not used", "wrong")
    assert "holds nothing to check" in file.problems[0]
