"""Objects of ``tessera install`` are valid on each supported Kubernetes, and grant the rights that its options need."""

from collections.abc import Sequence

import pytest
import yaml
from tests.deploy.conftest import ROOT, Installation, Obj
from tests.deploy.test_objects import SUPPORTED
from tests.deploy.test_rights import SOURCE, granted
from tests.support.kubernetes_schemas import validate
from tests.support.satellites import satellite

from tessera.api.documents import load_document
from tessera.cli import controller
from tessera.cli.install.manifests import InstallChoices, manifests
from tessera.doctor.manifests import install_manifests
from tessera.gpu_operator.settings_reader import read_settings
from tessera.provisioning.satellite import ProvisioningSatellite

VALUES = """
mig: {strategy: mixed}
migManager: {config: {name: layouts, default: all-disabled}, env: [{name: WITH_REBOOT, value: "true"}]}
devicePlugin:
  mps: {root: /srv/mps}
  env: [{name: DP_DISABLE_HEALTHCHECKS, value: "13"}, {name: DEVICE_LIST_STRATEGY, value: envvar}]
  config: {create: true, name: profiles, default: none, data: {none: "version: v1"}}
"""


def installed(*, evict: bool) -> Installation:
    eviction = list(yaml.load_all((ROOT / "deploy" / "options" / "evict.yaml").read_text(), yaml.CSafeLoader))
    settings = read_settings(load_document(VALUES))
    choices = InstallChoices(settings=settings, namespace="kube-system", evict=evict, authorities="PEM")
    return Installation("installed", manifests(install_manifests(), eviction, choices))


def replacing() -> Installation:
    rights = list(yaml.load_all((ROOT / "deploy" / "options" / "replace.yaml").read_text(), yaml.CSafeLoader))
    return Installation("replacing", manifests(install_manifests(), [], InstallChoices(replace_failed=2), rights))


def test_replacing_nodes_takes_an_option_of_the_controller_and_the_rights_to_delete() -> None:
    plain, more = (set(granted(each, "tessera-controller")) for each in (installed(evict=False), replacing()))
    assert more - plain == {("delete", "nodes"), ("delete", "machines"), ("delete", "nodeclaims")}
    deployment = replacing().one("Deployment", "tessera-controller", "tessera-system")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][-1] == "--replace-failed=2"
    options = controller.parse_options(container["args"], {"POD_NAME": "p"})
    assert satellite(options, ProvisioningSatellite).options.replace_failed == 2


def changed() -> Sequence[Obj]:
    plain = install_manifests()
    return [each for each in installed(evict=True).objects if each not in plain]


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_object_that_differs_is_valid_with_no_unknown_field(version: str) -> None:
    assert changed()
    for manifest in changed():
        validate(manifest, version)


def test_every_binding_joins_a_role_and_an_account_that_exist() -> None:
    installation = installed(evict=True)
    for binding in installation.of_kind("RoleBinding", "ClusterRoleBinding"):
        role, namespace = binding["roleRef"], binding["metadata"].get("namespace")
        assert installation.one(role["kind"], role["name"], namespace)
        for subject in binding["subjects"]:
            assert installation.one(subject["kind"], subject["name"], subject["namespace"])


def test_the_option_adds_the_right_to_evict_which_the_agent_uses_and_no_other() -> None:
    plain, more = (set(granted(installed(evict=evict), "tessera-agent")) for evict in (False, True))
    assert more - plain == {("create", "pods/eviction")}
    assert any("Evictor(" in file.read_text() for file in (SOURCE / "agent").rglob("*.py"))


def test_the_values_change_which_config_maps_are_read_and_no_other_right() -> None:
    before = set(granted(Installation("deploy", install_manifests()), "tessera-agent"))
    assert set(granted(installed(evict=False), "tessera-agent")) == before
