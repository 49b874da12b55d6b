"""An administrator's options for registries and new nodes reach the controller, by hand or by an installation."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.kube.certificates import Authority
from tests.support.satellites import satellite

from tessera.cli.base.controller_options import Site, site_arguments
from tessera.cli.base.durations import LONGEST
from tessera.cli.controller import command, parse_options
from tessera.cli.main import main
from tessera.controller.base import MoveMode, MoveSettings
from tessera.controller.satellite import ControllerOptions
from tessera.driver.registry.client import RegistryOptions
from tessera.driver.satellite import DriverSatellite
from tessera.provisioning.satellite import ProvisioningSatellite
from tessera.provisioning.startup_deadline import ProvisioningOptions
from tessera.scale_up.node_requests import ScaleUpMethod, ScaleUpOptions
from tessera.scale_up.satellite import ScaleUpSatellite

SITE = Site(
    plain_http=("registry.local:5000", "10.0.0.1:5000"),
    startup_taints=("startup-taint.cluster-autoscaler.kubernetes.io/cards", "cards"),
    startup_deadline=1200.0,
    scale_up="placeholder",
    reservations="always",
    preempt=True,
    moves="evict",
    moves_per_hour=7,
    handover="inherit",
    preferences="price",
)


def read(*given: str) -> ControllerOptions:
    found: ControllerOptions = parse_options(given, {"POD_NAME": "p"})
    return found


def drivers(options: ControllerOptions) -> DriverSatellite:
    return satellite(options, DriverSatellite)


def provisioning(options: ControllerOptions) -> ProvisioningOptions:
    return satellite(options, ProvisioningSatellite).options


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    file = tmp_path / "site.pem"
    file.write_bytes(Authority().pem)
    return file


def printed(capsys: pytest.CaptureFixture[str], *arguments_: str) -> list[Any]:
    assert main(["install", *arguments_, "-o", "yaml"]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def told(objects: list[Any]) -> list[str]:
    """The arguments of the controller's container."""
    (found,) = (each for each in objects if each["kind"] == "Deployment" and "controller" in each["metadata"]["name"])
    listed: list[str] = found["spec"]["template"]["spec"]["containers"][0]["args"]
    return listed


def test_without_options_the_controllers_defaults_count() -> None:
    assert list(site_arguments(Site())) == []
    found = read()
    assert (drivers(found).registries, provisioning(found)) == (RegistryOptions(), ProvisioningOptions())


def test_the_controller_takes_all_that_is_said() -> None:
    found = read(*site_arguments(SITE), "--registry-ca=/etc/ca.crt")
    assert drivers(found).registries == RegistryOptions(ca=Path("/etc/ca.crt"), plain_http=SITE.plain_http)
    assert provisioning(found).startup_taints == SITE.startup_taints
    assert provisioning(found).deadline == SITE.startup_deadline
    assert (found.reserve_after, found.preempt) == (0, True)
    found_scale_up = satellite(found, ScaleUpSatellite)
    assert found_scale_up.startup == SITE.startup_deadline
    assert found_scale_up.options == ScaleUpOptions(method=ScaleUpMethod.PLACEHOLDER)
    assert found.moves == MoveSettings(mode=MoveMode.EVICT, per_hour=7)


@given(st.floats(0, LONGEST).map(lambda seconds: round(seconds, 6)))
def test_a_deadline_reaches_the_controller_as_it_was_said(seconds: float) -> None:
    assert provisioning(read(*site_arguments(Site(startup_deadline=seconds)))).deadline == pytest.approx(
        seconds, abs=1e-8
    )


def test_an_installation_hands_them_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert read(*told(printed(capsys, *site_arguments(SITE)))) == read("--http-port=8081", *site_arguments(SITE))


def test_a_file_of_authorities_becomes_a_config_map_by_which_builds_trust_registries_too(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = printed(capsys, "--registry-ca", str(authority))
    (made,) = (each for each in objects if each["metadata"]["name"] == "tessera-registry-ca")
    assert (made["kind"], made["data"]) == ("ConfigMap", {"ca.crt": authority.read_text()})
    assert drivers(read(*told(objects))).options.builds.ca_config_map == "tessera-registry-ca"


def test_builds_have_their_own_authorities_where_these_are_named(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = printed(capsys, "--registry-ca", str(authority), "--build-ca-config-map", "ours")
    found = read(*told(objects))
    assert (drivers(found).options.builds.ca_config_map, drivers(found).registries.ca) == (
        "ours",
        Path("/etc/tessera/registry-ca/ca.crt"),
    )


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        ("--plain-http=http://registry.local", ("write host:port", "as registry.local:5000")),
        ("--plain-http=registry.local/nvidia", ('"registry.local/nvidia" is not a registry', "image names")),
        ("--plain-http=registry", ('"registry" is not a registry', "image names")),
        ("--plain-http=", ('"" is not a registry', "image names")),
        ("--startup-taint=example.com/cards=true:NoSchedule", ("write example.com/name", "without value and effect")),
        ("--startup-taint=", ('"" is not the key of a taint',)),
        ("--startup-deadline=soon", ('"soon" is not a duration', "write 5m, 1h30m, 45s")),
        ("--scale-up=karpenter", ("'karpenter' is not one of 'off', 'placeholder'",)),
        ("--moves=now", ("'now' is not one of 'off', 'recommend', 'evict'",)),
        ("--moves-per-hour=0", ("0 is not in the range 1<=x<=400",)),
        ("--reservations=never", ('"never" is neither off nor always nor a duration', "write 60s")),
    ],
)
@pytest.mark.parametrize("program", [["controller"], ["install", "-o", "yaml"]], ids=["controller", "install"])
def test_a_mistake_is_told_at_the_start(
    program: list[str], wrong: str, facts: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*program, wrong]) != 0
    heard = capsys.readouterr()
    for fact in facts:
        assert fact in heard.err
    assert heard.out == ""


def test_all_registries_may_be_asked_without_tls() -> None:
    assert drivers(read("--plain-http=*")).registries.plain_http == ("*",)


def test_a_file_without_authorities_is_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "site.pem"
    file.write_text("authority")
    assert main(["install", "--registry-ca", str(file), "-o", "yaml"]) == 1
    heard = capsys.readouterr()
    assert (heard.out, heard.err.count("\n")) == ("", 1)
    assert heard.err.startswith(f"error: {file} has no certificate in PEM")


def test_the_help_names_the_defaults() -> None:
    help_of = {each.name: getattr(each, "help", "") or "" for each in command.params}
    (taint,) = ProvisioningOptions().startup_taints
    assert f"[default: {taint}]" in help_of["startup_taints"]
    assert ProvisioningOptions().deadline == provisioning(read("--startup-deadline=15m")).deadline
    assert "[default: 15m]" in help_of["startup_deadline"]
    assert (read().reserve_after, read("--reservations=off").reserve_after) == (60.0, None)
    assert "[default: 60s]" in help_of["reservations"]
    assert satellite(read(), ScaleUpSatellite) == satellite(read("--scale-up=auto"), ScaleUpSatellite)
    assert "[default: auto]" in help_of["scale_up"]
    assert read().moves == read("--moves=recommend", "--moves-per-hour=20").moves == MoveSettings()
    assert "[default: recommend]" in help_of["moves"]
    assert "[default: 20]" in help_of["moves_per_hour"]


def test_certificates_are_looked_at_only_where_there_are_some() -> None:
    shown = "import sys; from tessera.cli.main import main; main(['install', '-o', 'yaml']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", shown], check=True, capture_output=True, text=True)
    assert "cryptography" not in done.stdout.splitlines()[-1].split()


#: An option of each kind that only satellites read, with a value, and these satellites.
OF_SATELLITES = [
    ("--image=registry.local/tessera:1", ["drivers"]),
    ("--plain-http=registry.local:5000", ["drivers"]),
    ("--buildah-image=registry.local/buildah:1", ["drivers"]),
    ("--build-nvswitch", ["drivers"]),
    ("--startup-taint=cards", ["provisioning"]),
    ("--replace-failed=2", ["provisioning"]),
    ("--startup-deadline=20m", ["provisioning", "scale-up"]),
    ("--usage-user=example.com/user", ["usage"]),
    ("--usage-label=team", ["usage"]),
    ("--scale-up=placeholder", ["scale-up"]),
    ("--placeholder-image=registry.local/pause:3", ["scale-up"]),
]


@pytest.mark.parametrize(("option", "readers"), OF_SATELLITES)
def test_an_option_that_only_left_out_satellites_read_is_refused(option: str, readers: list[str]) -> None:
    without = [f"--without={each}" for each in readers]
    flag = option.partition("=")[0]
    with pytest.raises(click.UsageError, match=f"^{flag} is an option of {' and '.join(readers)}, and --without"):
        read(option, *without)
    read(option, *without[1:])
    read(*without)


def test_to_turn_off_what_is_left_out_is_no_mistake() -> None:
    read("--scale-up=off", "--replace-failed=0", "--without=scale-up", "--without=provisioning")
