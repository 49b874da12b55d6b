"""The input of a build: files that belong together, arguments that are declared, secrets that stay files."""

import itertools
import re
import shlex
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.kubernetes_schemas import validate

from tessera.driver.build import job
from tessera.driver.build.job import (
    PULL_SECRET,
    RHSM_SECRET,
    SECRETS,
    SIGNING_SECRET,
    build_args,
    build_config_map,
    build_context,
    build_file,
    build_job,
    containerfile,
    job_name,
    local_commands,
)
from tessera.driver.build.orders import BuildFamily, BuildOrder, BuildSettings
from tessera.driver.driver_sets import PoolKey
from tessera.kube.resources import CONFIGMAPS, JOBS, manifest

Ordered = Callable[..., BuildOrder]
FAMILIES = pytest.mark.parametrize("family", BuildFamily)


def order_of(family: BuildFamily, ordered: Ordered, rhcos: PoolKey, **rest: Any) -> BuildOrder:
    return ordered(**rest) if family is BuildFamily.UBUNTU else ordered(rhcos, "550.54.14", **rest)


@FAMILIES
def test_every_file_that_is_copied_is_in_the_folder_and_none_is_there_for_nothing(family: BuildFamily) -> None:
    copied = {
        name
        for line in re.findall(r"^COPY (?!--from)(.*)$", containerfile(family), re.MULTILINE)
        for name in line.split()[:-1]
    }
    assert copied == build_context(family).keys() - {"Containerfile"}


@FAMILIES
def test_every_argument_is_declared_and_what_scripts_read_reaches_them(
    family: BuildFamily, ordered: Ordered, rhcos: PoolKey
) -> None:
    declared = set(re.findall(r"^ARG (\w+)", containerfile(family), re.MULTILINE))
    assert build_args(order_of(family, ordered, rhcos)).keys() <= declared
    read = {
        name
        for script, body in build_context(family).items()
        if script.startswith(("install-", "build-"))
        for name in re.findall(r"\$\{?([A-Z][A-Z0-9_]+)", body)
    }
    assert read - {"VERSION_ID"} <= declared


@FAMILIES
def test_the_scripts_are_shell(family: BuildFamily) -> None:
    for name, body in (build_context(family) | {"build.sh": build_file("build.sh")}).items():
        if name.endswith(".sh"):
            done = subprocess.run(["sh", "-n"], input=body, text=True, capture_output=True)
            assert done.returncode == 0, f"{name}: {done.stderr}"


def test_ubuntu_s_arguments_name_kernel_branch_and_version(ordered: Ordered) -> None:
    assert build_args(ordered()) == {
        "BASE_IMAGE": "docker.io/library/ubuntu:22.04",
        "KERNEL_VERSION": "5.15.0-69-generic",
        "DRIVER_BRANCH": "525",
        "DRIVER_VERSION": "525.125.06",
        "MODULES": "proprietary",
        "NVSWITCH": "yes",
        "TARGETARCH": "amd64",
    }
    assert build_args(ordered(version="580"))["DRIVER_VERSION"] == ""


def test_rhel_s_arguments_name_the_toolkit_and_the_64k_kernel(ordered: Ordered, rhcos_64k: PoolKey) -> None:
    args = build_args(ordered(rhcos_64k, "580.65.06", settings=BuildSettings(nvswitch=False)))
    assert args["BUILDER_IMAGE"].endswith("driver-toolkit:415.92.202402201450-0")
    assert args["KERNEL_VERSION"] == "5.14.0-284.54.1.el9_2.aarch64+64k"
    assert (args["MODULES"], args["NVSWITCH"], args["TARGETARCH"]) == ("open", "no", "arm64")


@pytest.mark.parametrize("tool", ["buildah", "podman"])
@FAMILIES
def test_the_local_commands_do_the_same(family: BuildFamily, tool: str, ordered: Ordered, rhcos: PoolKey) -> None:
    order = order_of(family, ordered, rhcos)
    lines = [line for line in local_commands(order, tool=tool).replace("\\\n", "").splitlines() if line[0] != "#"]
    build, push = (shlex.split(line) for line in lines)
    assert build[:2] == [tool, "build"]
    given = dict(word.split("=", 1) for flag, word in itertools.pairwise(build) if flag == "--build-arg")
    assert given == build_args(order)
    assert push == [tool, "push", order.target]


def test_the_config_map_is_named_by_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build_config_map(BuildFamily.UBUNTU)
    assert before["immutable"] is True
    assert before == build_config_map(BuildFamily.UBUNTU)
    assert before["metadata"]["name"] != build_config_map(BuildFamily.RHEL)["metadata"]["name"]
    assert sum(map(len, build_config_map(BuildFamily.RHEL)["data"].values())) < 512 * 1024


def test_the_job_goes_to_a_node_of_its_architecture_and_ends_in_bounded_time(
    ordered: Ordered, rhcos_64k: PoolKey
) -> None:
    order = ordered(rhcos_64k, "550.54.14")
    made = build_job(order, 3)
    assert made["metadata"]["name"] == job_name(order, 3) == f"tessera-build-{order.key}-3"
    spec, pod = made["spec"], made["spec"]["template"]["spec"]
    assert pod["nodeSelector"]["kubernetes.io/arch"] == "arm64"
    assert pod["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 3600
    assert spec["backoffLimit"] == 1
    assert spec["ttlSecondsAfterFinished"] == 86400


@pytest.mark.parametrize("version", ["1.29.0", "1.31.0", "1.34.0"])
@FAMILIES
def test_the_api_server_s_own_schema_takes_both_objects(
    family: BuildFamily, version: str, ordered: Ordered, rhcos: PoolKey
) -> None:
    order = order_of(family, ordered, rhcos, settings=BuildSettings(push_secret="push-here", ca_config_map="our-ca"))
    made = manifest(JOBS.as_dicts(), build_job(order, 1))
    if version == "1.29.0":  # which reads the annotation instead, and drops what it does not know
        del made["spec"]["template"]["spec"]["containers"][0]["securityContext"]["appArmorProfile"]
    validate(made, version)
    validate(manifest(CONFIGMAPS.as_dicts(), build_config_map(family)), version)


def test_the_pod_is_not_root_and_has_no_credentials_of_the_cluster(ordered: Ordered) -> None:
    pod = build_job(ordered(), 1)["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == 1000
    assert pod["automountServiceAccountToken"] is False
    (container,) = pod["containers"]
    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SETUID", "SETGID"]}
    assert not any("hostPath" in volume for volume in pod["volumes"])


def test_secrets_are_files_that_may_be_missing_and_never_environment(ordered: Ordered, rhcos: PoolKey) -> None:
    settings = BuildSettings(push_secret="push-here", ca_config_map="our-ca")
    pod = build_job(ordered(rhcos, "550.54.14", settings=settings), 1)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert all(set(variable) == {"name", "value"} for variable in container["env"])
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["push-auth"]["secret"] == {
        "secretName": "push-here",
        "items": [{"key": ".dockerconfigjson", "path": "config.json"}],
        "optional": False,
    }
    assert (volumes["pull-auth"]["secret"]["secretName"], volumes["pull-auth"]["secret"]["optional"]) == (
        PULL_SECRET,
        True,
    )
    sources = [source["secret"] for source in volumes["secrets"]["projected"]["sources"]]
    assert [source["name"] for source in sources] == [RHSM_SECRET, SIGNING_SECRET]
    assert all(source["optional"] for source in sources)
    assert {item["path"] for source in sources for item in source["items"]} == set(SECRETS)
    assert volumes["certs"]["configMap"]["name"] == "our-ca"


def test_only_a_tag_without_architecture_becomes_an_index(ordered: Ordered, rhcos: PoolKey) -> None:
    def other(order: BuildOrder) -> str:
        env = build_job(order, 1)["spec"]["template"]["spec"]["containers"][0]["env"]
        return next(str(each["value"]) for each in env if each["name"] == "OTHER")

    assert other(ordered()) == "arm64"
    assert other(ordered(rhcos, "550.54.14")) == ""


def test_the_docstring_says_what_was_not_run() -> None:
    assert job.__doc__ is not None
    assert "Not run so far" in job.__doc__
