"""An administrator's options for driver image builds reach the controller, by hand or by an installation."""

from typing import Any

import pytest
import yaml
from tests.support.satellites import satellite

from tessera.cli.base.controller_options import build_arguments
from tessera.cli.controller import command, parse_options
from tessera.cli.main import main
from tessera.driver.build.job import build_job
from tessera.driver.build.orders import BUILDAH_IMAGE, DOWNLOADS, BuildSettings, make_order
from tessera.driver.driver_sets import PoolKey
from tessera.driver.satellite import DriverSatellite

KERNEL = "5.14.0-284.55.1.el9_2.x86_64"
#: A site that reaches nothing but its own registry.
SITE = BuildSettings(
    buildah_image="registry.local/buildah:v1",
    base_images={"ubuntu22.04": "registry.local/ubuntu:22.04", "rhel9": "registry.local/ubi9@sha256:" + "0" * 64},
    builder_images={KERNEL: "registry.local:5000/dtk:415.92"},
    downloads="http://files.local/nvidia",
    nvswitch=False,
    tls_verify=False,
    ca_config_map="site-authorities",
)
ENVIRONMENT = {"POD_NAME": "p"}


def read(*given: str) -> BuildSettings:
    found: BuildSettings = satellite(parse_options(given, ENVIRONMENT), DriverSatellite).options.builds
    return found


def test_without_options_the_defaults_count() -> None:
    assert read() == BuildSettings()
    assert list(build_arguments(BuildSettings())) == []


def test_the_controller_takes_every_setting_but_the_secret_that_a_policy_names() -> None:
    told = list(build_arguments(SITE))
    assert read(*told) == SITE
    changed = {
        name for name in BuildSettings.__struct_fields__ if getattr(SITE, name) != getattr(BuildSettings(), name)
    }
    assert changed == {*BuildSettings.__struct_fields__} - {"push_secret"}


def test_an_installation_hands_them_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["install", *build_arguments(SITE), "-o", "yaml"]) == 0
    printed = yaml.safe_load_all(capsys.readouterr().out)
    (found,) = (
        each for each in printed if (each["kind"], each["metadata"]["name"]) == ("Deployment", "tessera-controller")
    )
    assert read(*found["spec"]["template"]["spec"]["containers"][0]["args"]) == SITE


@pytest.mark.parametrize(
    "pool",
    [
        PoolKey(os_id="ubuntu", os_version="22.04", kernel="5.15.0-119-generic", architecture="amd64"),
        PoolKey(os_id="rhcos", os_version="4.15", kernel=KERNEL, architecture="amd64", ostree="415.92"),
        PoolKey(os_id="rocky", os_version="9.4", kernel="5.14.0-1.el9.x86_64", architecture="amd64"),
    ],
    ids=lambda pool: pool.os_id,
)
def test_builds_of_a_disconnected_site_ask_for_nothing_from_elsewhere(pool: PoolKey) -> None:
    made = build_job(make_order(pool, version="550.54.14", target="registry.local/nvidia/driver:a", settings=SITE), 1)
    text = _values(made)
    assert "registry.local/buildah" in text
    assert not [each for each in ("docker.io", "quay.io", "redhat.com", "nvidia.com", "svc:5000") if each in text]


def _values(found: Any) -> str:
    """The container's image, arguments and environment; labels and tolerations may name domains of others."""
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return yaml.safe_dump([container["image"], container["args"], container["env"]])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("--build-base-image=rhel9", '"rhel9" does not have the form SYSTEM=IMAGE'),
        ("--build-dtk-image==registry.local/dtk:1", "does not have the form KERNEL=IMAGE"),
        ("--build-base-image=rhcos4.15=registry.local/ubi9:1", "write ubuntu22.04 or rhel9"),
        ("--build-dtk-image=5.14 $(x)=registry.local/dtk:1", "write what uname -r says"),
        ("--buildah-image=registry.local/a b", "write registry/path:tag"),
        ("--build-downloads=ftp://files.local", "write http(s)://host/path"),
        ("--build-ca-config-map=a/b", "ConfigMap of certificates 'a/b'"),
    ],
)
@pytest.mark.parametrize("program", [["controller"], ["install", "-o", "yaml"]], ids=["controller", "install"])
def test_a_mistake_is_told_at_the_start(
    program: list[str], given: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*program, given]) != 0
    said = capsys.readouterr()
    assert (told in said.err, said.out) == (True, "")


def test_the_help_names_the_images_that_have_to_be_there() -> None:
    help_of = {each.name: getattr(each, "help", "") or "" for each in command.params}
    assert BUILDAH_IMAGE in help_of["build_buildah_image"]
    assert DOWNLOADS in help_of["build_downloads"]
