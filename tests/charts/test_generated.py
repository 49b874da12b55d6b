"""The files of the chart are those that ``python -m charts`` writes, and its schema refuses mistakes."""

from collections.abc import Mapping
from typing import Any

import pytest
from charts.files import FOLDER, generate
from tests.charts.conftest import Helm


@pytest.fixture(scope="module")
def generated() -> Mapping[str, str]:
    return generate()


def test_the_files_are_up_to_date(generated: Mapping[str, str]) -> None:
    for name, text in generated.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: run python -m charts"


def test_no_template_is_left_over(generated: Mapping[str, str]) -> None:
    by_hand = {
        "_checks.tpl",
        "_helpers.tpl",
        "_node_groups.tpl",
        "_notices.tpl",
        "_settings.tpl",
        "checks.yaml",
        "config.yaml",
        "dashboards.yaml",
        "drivers.yaml",
        "removal.yaml",
        "NOTES.txt",
    }
    templates = {each.name for each in (FOLDER / "templates").iterdir()}
    assert templates == by_hand | {name.removeprefix("templates/") for name in generated if "templates/" in name}


def test_helm_finds_nothing_to_say(helm: Helm) -> None:
    done = helm.run("lint", "--strict", str(FOLDER))
    assert done.returncode == 0, done.stdout
    assert not {"[WARNING]", "[INFO]"} & set(done.stdout.split())


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"gpu-operator": {"mig": {}}}, "give what is below gpu-operator"),
        ({"gpuOperator": {"mig": {}}}, "give what is below gpuOperator"),
        ({"mig": {"strategy": "both"}}, "mig.strategy"),
        ({"driver": {"enabled": "perhaps"}}, "driver.enabled: must be true or false"),
        ({"driver": {"enabled": 1}}, "driver.enabled"),
        ({"devicePlugin": {"env": [{"value": "x"}]}}, "devicePlugin.env.0"),
        ({"tessera": {"agnet": {}}}, "agnet"),
        ({"tessera": {"agent": {"memoryLimits": "shoot"}}}, "tessera.agent.memoryLimits"),
        ({"tessera": {"image": {"digest": "sha256:1"}}}, "tessera.image.digest"),
        ({"tessera": {"openshift": "yes please"}}, "tessera.openshift"),
        ({"tessera": {"podSecurity": "privileged"}}, "tessera.podSecurity"),
        ({"tessera": {"webhook": {"certManager": {"issuer": {"kind": "Vault"}}}}}, "certManager.issuer.kind"),
        ({"tessera": {"webhook": {"certManger": {}}}}, "certManger"),
        ({"tessera": {"controller": {"replicas": 0}}}, "tessera.controller.replicas"),
        ({"tessera": {"networkPolicy": {"apiServers": ["192.0.2.1"]}}}, "tessera.networkPolicy.apiServers.0"),
        ({"devicePlugin": {"config": {"create": True, "data": {"a": "version: v1"}}}}, "devicePlugin.config.name"),
        (
            {"devicePlugin": {"config": {"create": True, "name": "x", "default": "b", "data": {"a": "version: v1"}}}},
            "devicePlugin.config.default",
        ),
        ({"driver": {"enabled": False}, "tessera": {"drivers": "install"}}, "driver.enabled"),
        ({"hostPaths": {"kubeletRootDir": "srv"}}, "hostPaths.kubeletRootDir"),
        ({"migManager": {"env": [{"name": "WITH_REBOOT", "value": "ja"}]}}, "migManager.env.WITH_REBOOT"),
    ],
)
def test_a_mistake_is_refused_by_its_name(values: dict[str, Any], place: str, helm: Helm) -> None:
    done = helm.run("template", "tessera", str(FOLDER), values=values)
    assert done.returncode != 0
    assert place in done.stderr


@pytest.mark.parametrize(
    "ignored",
    [
        {"migManger": {}},
        {"tolerations": []},
        {"gfd": "on"},
        {"devicePlugin": {"config": "a"}},
        {"gfd": {"enabled": "false"}},
        {"USER-SUPPLIED VALUES": None},
        {"driver": None, "devicePlugin": {"config": None, "env": None}, "tolerations": None},
        {"mig": {"strategie": "none"}},
    ],
)
def test_values_that_nvidias_chart_ignores_change_nothing(ignored: dict[str, Any], helm: Helm) -> None:
    """The notes name them: ``tests/e2e/test_helm.py``."""
    other = {"mig": {"strategy": "mixed"}}
    given = {**ignored, "mig": {**ignored.get("mig", {}), **other["mig"]}}
    assert helm.template(given, "kube-system") == helm.template(other, "kube-system")


def test_a_text_for_a_switch_counts_as_one(helm: Helm) -> None:
    """The Job of the drivers gets the values as they are, and reads them as ``tessera install`` does."""
    named = {"version": "580", "usePrecompiled": "no"}
    for text, value in (("false", False), ("True", True)):
        given, meant = ({"driver": {**named, "enabled": each}} for each in (text, value))
        first, second = (
            [
                each
                for each in helm.template(values, "kube-system")
                if each["metadata"]["name"] != "tessera-driver-values"
            ]
            for values in (given, meant)
        )
        assert first == second
