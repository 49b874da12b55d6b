"""The registries' certificate authorities in the controller's pod, and the effect of a change of them."""

import copy
from pathlib import PurePath
from typing import Any

from tests.support.satellites import satellite

from tessera.cli.controller import parse_options
from tessera.cli.install.manifests import CONFIG_MAP, KEY, InstallChoices, Manifest, file_map, manifests
from tessera.doctor.manifests import install_manifests
from tessera.driver.satellite import DriverSatellite

BASE = install_manifests()


def made(authorities: str, **choices: Any) -> list[Manifest]:
    return manifests(BASE, [], InstallChoices(authorities=authorities, **choices))


def template(objects: list[Manifest]) -> Any:
    (found,) = (
        each for each in objects if (each["kind"], each["metadata"]["name"]) == ("Deployment", "tessera-controller")
    )
    return found["spec"]["template"]


def test_the_controller_is_told_a_file_that_is_mounted_from_the_config_map() -> None:
    objects = made("PEM")
    pod = template(objects)["spec"]
    (container,) = pod["containers"]
    file = satellite(parse_options(container["args"], {"POD_NAME": "p"}), DriverSatellite).registries.ca
    assert file is not None
    told = PurePath(file)
    (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == str(told.parent))
    assert mount["readOnly"] is True
    (volume,) = (each for each in pod["volumes"] if each["name"] == mount["name"])
    (stored,) = (each for each in objects if each["metadata"]["name"] == volume["configMap"]["name"])
    assert (stored["kind"], stored["metadata"]["namespace"]) == ("ConfigMap", "tessera-system")
    assert stored["data"] == {told.name: "PEM"}


def test_the_config_map_is_marked_as_tesseras_and_comes_before_who_mounts_it() -> None:
    objects = made("PEM")
    assert file_map(CONFIG_MAP, KEY, "PEM")["metadata"]["labels"] == {"app.kubernetes.io/part-of": "tessera"}
    kinds = [each["kind"] for each in objects]
    assert kinds.index("Namespace") < objects.index(file_map(CONFIG_MAP, KEY, "PEM")) < kinds.index("Deployment")


def test_other_certificates_start_another_pod_and_the_same_ones_do_not() -> None:
    assert template(made("one")) == template(made("one"))
    one, other = template(made("one")), template(made("other"))
    assert one["metadata"].pop("annotations").keys() == other["metadata"].pop("annotations").keys()
    assert one == other, "nothing but the hash differs"
    assert template(made("one")) != template(made("other"))


def test_nothing_else_changes() -> None:
    before = copy.deepcopy(BASE)
    plain, more = manifests(BASE, [], InstallChoices()), made("PEM")
    changed = [each["metadata"]["name"] for each in more if each not in plain]
    assert changed == ["tessera-registry-ca", "tessera-controller"]
    assert before == BASE
