"""The objects of deploy/ are valid on every supported Kubernetes, and consistent with each other."""

from collections import Counter

import pytest
import yaml
from tests.deploy.conftest import INSTALLATIONS, ROOT, Installation, Obj, rendered
from tests.support.kubernetes_schemas import validate

from tessera.driver.build.job import build_job
from tessera.driver.build.orders import BuildSettings, make_order
from tessera.driver.driver_sets import PoolKey

SUPPORTED = ("1.31", "1.32", "1.33", "1.34")
#: Whose kinds are in no schema of Kubernetes.
OPENSHIFT = "security.openshift.io/v1"
#: With everything that a build may mount.
ORDER = make_order(
    PoolKey(os_id="rhel", os_version="9.4", kernel="5.14.0-427.40.1.el9_4.x86_64", architecture="amd64"),
    version="550.54.14",
    target="registry.local/driver:550",
    settings=BuildSettings(push_secret="push", ca_config_map="ca"),
)


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_object_is_valid_with_no_unknown_field(version: str) -> None:
    known: list[Obj] = []
    for name in INSTALLATIONS:
        for manifest in rendered(name).objects:
            if manifest["apiVersion"] != OPENSHIFT and manifest not in known:
                validate(manifest, version)
                known.append(manifest)


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_example_is_valid(version: str) -> None:
    for manifest in yaml.load_all((ROOT / "examples" / "vllm.yaml").read_text(), yaml.CSafeLoader):
        validate(manifest, version)


def test_no_object_is_there_twice(installation: Installation) -> None:
    names = Counter(
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in installation.objects
    )
    assert max(names.values()) == 1


def test_every_namespace_that_is_used_is_made(installation: Installation) -> None:
    made = {each["metadata"]["name"] for each in installation.of_kind("Namespace")}
    assert {each["metadata"]["namespace"] for each in installation.objects if "namespace" in each["metadata"]} <= made


def test_every_binding_joins_a_role_and_an_account_that_exist(installation: Installation) -> None:
    for binding in installation.of_kind("RoleBinding", "ClusterRoleBinding"):
        role, namespace = binding["roleRef"], binding["metadata"].get("namespace")
        assert installation.one(role["kind"], role["name"], namespace)
        for subject in binding["subjects"]:
            assert installation.one(subject["kind"], subject["name"], subject["namespace"])


def test_pods_find_their_account_and_are_found_by_their_owner(installation: Installation) -> None:
    for owner in installation.of_kind("Deployment", "DaemonSet"):
        template = owner["spec"]["template"]
        assert owner["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        account = template["spec"]["serviceAccountName"]
        assert installation.one("ServiceAccount", account, owner["metadata"]["namespace"])


def test_the_priorities_of_our_pods_are_admitted_where_a_quota_must_speak_of_them(installation: Installation) -> None:
    quota = installation.one("ResourceQuota", "tessera-critical-pods", "tessera-system")
    (selected,) = quota["spec"]["scopeSelector"]["matchExpressions"]
    used = {
        owner["spec"]["template"]["spec"]["priorityClassName"]
        for owner in installation.of_kind("Deployment", "DaemonSet")
    }
    assert set(selected["values"]) == used


def test_the_simulated_installation_differs_by_the_simulated_cards_and_the_image_alone() -> None:
    real, simulated = rendered("deploy"), rendered("examples/simulated")
    assert len(real.objects) == len(simulated.objects)
    different = [(a, b) for a, b in zip(real.objects, simulated.objects, strict=True) if a != b]
    for a, b in different:
        (before,), (after,) = (each["spec"]["template"]["spec"]["containers"] for each in (a, b))
        more = ["--simulate=4xA100-40GB"] if a["metadata"]["name"] == "tessera-agent" else []
        assert after["args"] == before["args"] + more
        assert after["image"] == f"localhost/{before['image']}"
        assert after | {"args": 0, "image": 0} == before | {"args": 0, "image": 0}


def test_on_openshift_every_account_may_use_one_of_its_security_context_constraints() -> None:
    plain, openshift = rendered("deploy"), rendered("examples/openshift")
    more = [each for each in openshift.objects if each not in plain.objects]
    assert len(openshift.objects) == len(plain.objects) + len(more)
    granted = {
        subject["name"]: name
        for binding in Installation("constraints", more).of_kind("RoleBinding")
        for subject in binding["subjects"]
        for rule in openshift.one("Role", binding["roleRef"]["name"], "tessera-system")["rules"]
        for name in rule["resourceNames"]
    }
    assert granted == {
        "tessera-agent": "privileged",
        "tessera-build": "tessera-build",
        "tessera-controller": "nonroot-v2",
        "tessera-driver": "privileged",
        "tessera-mps": "privileged",
        "tessera-webhook": "nonroot-v2",
    }
    without_pods = {"tessera-reader"}
    assert set(granted) == {each["metadata"]["name"] for each in plain.of_kind("ServiceAccount")} - without_pods


def test_on_openshift_builds_may_do_what_their_pods_ask_for_and_no_more() -> None:
    constraint = rendered("examples/openshift").one("SecurityContextConstraints", "tessera-build")
    pod = build_job(ORDER, 1)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert constraint["allowedCapabilities"] == container["securityContext"]["capabilities"]["add"]
    assert constraint["allowPrivilegeEscalation"] is container["securityContext"]["allowPrivilegeEscalation"]
    assert constraint["runAsUser"]["uid"] == pod["securityContext"]["runAsUser"]
    assert constraint["fsGroup"]["ranges"] == [dict.fromkeys(("min", "max"), pod["securityContext"]["fsGroup"])]
    assert constraint["seccompProfiles"] == [pod["securityContext"]["seccompProfile"]["type"].lower()]
    used = {kind for volume in pod["volumes"] for kind in volume if kind != "name"}
    assert used <= set(constraint["volumes"])
    assert not constraint["allowPrivilegedContainer"]
