"""Values of NVIDIA's chart as the objects that it renders of them, as far as they are about drivers."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.api.documents import load_document
from tessera.api.problems import FileRefused
from tessera.gpu_operator.driver_objects import InstalledDrivers, drivers_of_policy, drivers_of_values
from tessera.gpu_operator.driver_policy import CHART_VALUES, DRIVER_SOURCE, ImageSource
from tessera.gpu_operator.settings_reader import read_settings

ROOT = Path(__file__).parents[2]
#: The values of the article "Efficient Access to Shared GPU Resources: Part 2".
SHARING = ROOT / "examples" / "sharing" / "values.yaml"
#: What NVIDIA's definition of a ClusterPolicy requires below spec (chart v26.7.0).
REQUIRED = {
    "daemonsets",
    "dcgm",
    "dcgmExporter",
    "devicePlugin",
    "driver",
    "gfd",
    "nodeStatusExporter",
    "operator",
    "toolkit",
}


def values(text: str, wanted: bool | None = None) -> InstalledDrivers:
    return drivers_of_values(load_document(text) or {}, wanted)


def spec(text: str, wanted: bool | None = None) -> Any:
    (found,) = values(text, wanted).objects
    return found["spec"]


def problems(text: str, wanted: bool | None = None) -> list[str]:
    with pytest.raises(FileRefused) as refused:
        values(text, wanted)
    return list(map(str, refused.value.problems))


def test_the_sharing_articles_values_ask_for_its_mirrored_driver() -> None:
    settings = read_settings(load_document(SHARING.read_text()))
    (policy,) = settings.drivers
    assert policy.source == ImageSource(
        repository="yourregistry/yourproject",
        image="driver",
        version="510.47.03-fedora35-5.16.13-200.fc35.x86_64",
        pull_policy="Always",
    )
    assert (policy.enabled, policy.use_precompiled, policy.upgrade.auto_upgrade) == (True, False, True)
    (found,) = settings.driver_objects
    assert (found["kind"], found["metadata"]["name"]) == ("ClusterPolicy", "cluster-policy")
    assert not [each for each in settings.notices if each.path.startswith(("driver", "toolkit"))]


def test_what_values_leave_out_is_the_charts() -> None:
    found = spec("driver: {version: '580.65.06'}")
    assert set(found) >= REQUIRED
    assert (found["driver"]["repository"], found["driver"]["image"]) == ("nvcr.io/nvidia", "driver")
    assert found["driver"]["upgradePolicy"]["podDeletion"]["timeoutSeconds"] == 300
    assert found["driver"]["upgradePolicy"]["maxUnavailable"] == "25%"
    assert found["toolkit"]["version"] == "v1.20.0"
    assert found["hostPaths"]["driverInstallDir"] == "/run/nvidia/driver"
    assert found["daemonsets"]["tolerations"] == CHART_VALUES["daemonsets"]["tolerations"]


def test_the_charts_wait_before_the_first_look_is_not_rendered_unless_somebody_wrote_one() -> None:
    assert "startupProbe" not in spec("driver: {version: '580'}")["driver"]
    found = spec("driver: {version: '580', startupProbe: {failureThreshold: 300}}")["driver"]["startupProbe"]
    assert found == {"initialDelaySeconds": 60, "periodSeconds": 10, "timeoutSeconds": 60, "failureThreshold": 300}


def test_what_is_tesseras_own_is_off_for_nvidias_operator() -> None:
    found = spec("driver: {version: '580'}\ndevicePlugin: {enabled: true, config: {name: a}}")
    assert found["devicePlugin"] == found["gfd"] == {"enabled": False}


def test_a_toolkit_that_is_a_plugin_stays_one() -> None:
    assert spec("driver: {version: '580'}\ncdi: {enabled: true, nriPluginEnabled: true}")["cdi"] == {
        "nriPluginEnabled": True
    }
    assert "cdi" not in spec("driver: {version: '580'}\ncdi: {enabled: true}")


def test_values_lie_over_the_charts_and_a_null_takes_a_key_away() -> None:
    text = """
      driver:
        version: 580
        imagePullSecrets: [a]
        repoConfig: {configMapName: repos}
        upgradePolicy: {autoUpgrade: false, gpuPodDeletion: {force: true}, drain: null}
      daemonsets: {tolerations: [{operator: Exists}], priorityClassName: null}
    """
    found = spec(text)
    assert found["driver"]["version"] == "580"
    assert found["driver"]["imagePullSecrets"] == ["a"]
    assert found["driver"]["repoConfig"] == {"configMapName": "repos"}
    assert found["driver"]["upgradePolicy"]["podDeletion"] == {
        "force": True,
        "timeoutSeconds": 300,
        "deleteEmptyDir": False,
    }
    assert found["driver"]["upgradePolicy"]["autoUpgrade"] is False
    assert "drain" not in found["driver"]["upgradePolicy"]
    assert found["daemonsets"]["tolerations"] == [{"operator": "Exists"}]
    assert "priorityClassName" not in found["daemonsets"]


def test_where_objects_say_what_is_installed_the_chart_makes_the_default_one() -> None:
    text = """
      driver:
        version: "580"
        usePrecompiled: true
        nvidiaDriverCRD: {enabled: true, driverType: vgpu}
        virtualTopology: {config: topology}
        licensingConfig: {configMapName: licence}
    """
    part = values(text)
    policy, driver = part.objects
    assert set(policy["spec"]["driver"]) == {"enabled", "useNvidiaDriverCRD", "upgradePolicy"}
    assert (driver["apiVersion"], driver["kind"]) == ("nvidia.com/v1alpha1", "NVIDIADriver")
    assert driver["metadata"]["name"] == "default"
    assert (driver["spec"]["default"], driver["spec"]["driverType"]) == (True, "vgpu")
    assert driver["spec"]["virtualTopologyConfig"] == {"name": "topology"}
    assert driver["spec"]["licensingConfig"] == {"name": "licence", "nlsEnabled": True}
    assert [each.kind for each in part.policies] == ["ClusterPolicy", "NVIDIADriver"]
    (only,) = values("driver: {version: '580', nvidiaDriverCRD: {enabled: true, deployDefaultCR: false}}").objects
    assert only["kind"] == "ClusterPolicy"


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "driver: {enabled: true}",
        "driver: {enabled: false, version: '580'}",
        "driver: {version: '580'}\nclusterPolicy: {deployCR: false}",
    ],
)
def test_values_that_name_no_driver_leave_those_of_the_hosts(text: str) -> None:
    assert values(text).objects == ()


def test_what_they_say_beside_has_no_effect_then_and_is_told() -> None:
    text = "driver: {env: [{name: A}]}\ntoolkit: {version: v1}\nhostPaths: {driverInstallDir: /srv}"
    told = {each.path: each.text for each in values(text).notices}
    assert set(told) == {"driver", "toolkit", "hostPaths.driverInstallDir"}
    assert "tessera install --drivers" in told["driver"]
    assert values("driver: {enabled: false, version: '580'}").notices == ()


def test_who_asks_gets_the_charts_driver_and_who_declines_gets_none() -> None:
    assert spec("{}", wanted=True)["driver"]["version"] == DRIVER_SOURCE.version
    assert values("driver: {version: '580'}", wanted=False).objects == ()
    (found,) = problems("driver: {enabled: false}", wanted=True)
    assert found.startswith("driver.enabled: is false, while --drivers asks for drivers")


def test_mistakes_have_the_paths_of_the_values() -> None:
    (found,) = problems("driver: {version: 525.60}")
    assert found.startswith("driver.version: must be text, not the number 525.6")
    (found,) = problems("driver: {version: '580', upgradePolicy: {gpuPodDeletion: {timeoutSeconds: -1}}}")
    assert found.startswith("driver.upgradePolicy.gpuPodDeletion.timeoutSeconds: ")
    (found,) = problems("driver: {usePrecompiled: true}\ngds: {enabled: true}")
    assert found.startswith("driver.usePrecompiled: cannot be true together with gds")


def test_a_mistake_that_two_readings_find_is_told_once() -> None:
    with pytest.raises(FileRefused) as refused:
        read_settings(load_document("driver: {version: '580', rdma: {enabled: 1}, imagePullPolicy: 1}"))
    assert [each.path for each in refused.value.problems] == ["driver.rdma.enabled", "driver.imagePullPolicy"]


def test_an_unknown_key_that_two_readings_find_is_told_once() -> None:
    found = read_settings(load_document("driver: {version: '580', vresion: a}"))
    assert [each.text for each in found.notices if each.path == "driver.vresion"] == [
        "no effect: unknown, also to NVIDIA's operator; did you mean version?"
    ]


def policy(**fields: Any) -> dict[str, Any]:
    metadata = {
        "name": "gpu-cluster-policy",
        "uid": "u",
        "resourceVersion": "5",
        "labels": {"team": "a"},
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "note": "b"},
    }
    return {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": metadata,
        "spec": fields,
        "status": {"state": "ready"},
    }


def test_a_cluster_policy_is_applied_as_it_is_without_its_state() -> None:
    fields = {"driver": {"version": "580", "repository": "r.io", "image": "i"}, "dcgm": {"enabled": True}}
    (found,) = drivers_of_policy(policy(**fields)).objects
    assert found == {
        "apiVersion": "nvidia.com/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": "gpu-cluster-policy",
            "labels": {"team": "a", "app.kubernetes.io/part-of": "tessera"},
            "annotations": {"note": "b"},
        },
        "spec": fields,
    }


def test_a_cluster_policy_that_names_no_driver_is_read_for_its_settings_alone() -> None:
    part = drivers_of_policy(policy(devicePlugin={"config": {"name": "a"}}, toolkit={"version": "v1"}))
    assert part.objects == ()
    assert [each.path for each in part.notices] == ["spec.toolkit"]
    assert drivers_of_policy(policy(), wanted=True).objects


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=6,
)
SECTIONS = ("driver", "toolkit", "daemonsets", "hostPaths", "gds")


@given(
    st.dictionaries(
        st.sampled_from(SECTIONS),
        st.dictionaries(st.sampled_from(sorted(CHART_VALUES["driver"])), ANYTHING, max_size=4) | ANYTHING,
    ),
    st.sampled_from([None, True, False]),
)
def test_whatever_values_hold_they_are_rendered_or_refused(document: dict[str, Any], wanted: bool | None) -> None:
    try:
        part = drivers_of_values(document, wanted)
    except FileRefused:
        return
    assert len(part.objects) == len(part.policies)
