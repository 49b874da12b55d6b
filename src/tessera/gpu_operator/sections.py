"""The parts that a ClusterPolicy and an NVIDIADriver have in common: image, probe, upgrade, annotations.

Rules of images (gpu-operator, ``internal/image``): ``repository``, ``image`` and ``version`` belong together; with
neither repository nor version, ``image`` is a whole reference, whose tag is a driver's version. A digest names one
image, so it cannot be completed by a kernel.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tessera.api.image_reference import IMAGE_REFERENCE
from tessera.api.problems import join_path, quote_value
from tessera.gpu_operator.driver_policy import (
    BUILD_REPOSITORY_ANNOTATION,
    BUILD_SECRET_ANNOTATION,
    CANARY_ANNOTATION,
    CHART_VERSION,
    DRIVER_SOURCE,
    FAILURE_BUDGET_ANNOTATION,
    INSTALL_DIR,
    MANAGER_SOURCE,
    MIRRORS_ANNOTATION,
    STARTUP_PROBE,
    DrainSettings,
    DriverPolicy,
    ImageSource,
    OperandSettings,
    PodDeletionSettings,
    UpgradePolicy,
    WaitForCompletion,
)
from tessera.gpu_operator.field_reader import FieldReader
from tessera.limits import Limit

IMAGE_MIRRORS = Limit(8, "repositories", "mirrors that a policy's annotation names", "each is asked for every image")
KERNEL_MODULE_TYPES = ("auto", "open", "proprietary")
_PULL_POLICIES = ("IfNotPresent", "Always", "Never")

#: Parts of distribution's reference grammar: a registry with its port, path components, a tag, a digest.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]+)?"
_REPOSITORY = re.compile(rf"{_HOST}(?:/{_PART})*")
_IMAGE = re.compile(rf"{_PART}(?:/{_PART})*")
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
#: The registry path of a reference of one word.
_DOCKER_HUB = "docker.io/library"

#: Default seconds between two checks of a starting driver.
_PERIOD = 1


def read_image_source(
    reading: FieldReader, fields: Mapping[str, Any], path: str, *, otherwise: ImageSource
) -> ImageSource:
    """Returns the image of a part; the chart's, with a notice, if the object names none."""
    before = len(reading.found.problems)
    named = {key: reading.text(fields, key, path) for key in ("repository", "image")}
    named["version"] = read_version(reading, fields, path)
    if not any(fields.get(key) for key in named):
        where = f"{otherwise.repository}/{otherwise.image}, version {otherwise.version}"
        if otherwise is not MANAGER_SOURCE:  # users do not choose this one
            reading.add_notice(
                join_path(path, "image"), f"not set; {where} is taken, as in NVIDIA's chart {CHART_VERSION}"
            )
        named = {"repository": otherwise.repository, "image": otherwise.image, "version": otherwise.version}
    if len(reading.found.problems) == before:  # a value of another type is reported already
        _judge_image(reading, named, path)
    return ImageSource(
        repository=named["repository"],
        image=named["image"],
        version=named["version"],
        pull_policy=reading.found.choice(
            fields.get("imagePullPolicy") or _PULL_POLICIES[0], join_path(path, "imagePullPolicy"), _PULL_POLICIES
        ),
        pull_secrets=reading.names(fields, "imagePullSecrets", path),
    )


def read_driver_source(reading: FieldReader, fields: Mapping[str, Any], path: str) -> ImageSource:
    """Returns a driver's image; splits a reference with a tag, so that kernel and system complete the tag.

    NVIDIA's operator appends ``-ubuntu22.04`` to the tag as to a version. A digest names one image and stays as it is;
    so does a reference without a tag, to which nothing can be appended.
    """
    source = read_image_source(reading, fields, path, otherwise=DRIVER_SOURCE)
    name, _, tag = source.image.rpartition(":")
    if not source.verbatim or not name or "/" in tag or "@" in source.image:
        return source
    repository, _, image = name.rpartition("/")
    return msgspec.structs.replace(source, repository=repository or _DOCKER_HUB, image=image, version=tag)


def _judge_image(reading: FieldReader, named: Mapping[str, str], path: str) -> None:
    if not named["repository"] and not named["version"]:
        if not _fits(_REFERENCE, named["image"]):
            reading.add_problem(
                join_path(path, "image"),
                f"{quote_value(named['image'])} is no reference of an image{_hint(named['image'])}",
            )
        return
    for key in [key for key, value in named.items() if not value]:
        rule = "repository, image and version belong together, or image alone is a whole reference"
        reading.add_problem(join_path(path, key), f"missing; {rule}")
    for key, form in (("repository", _REPOSITORY), ("image", _IMAGE)):
        if named[key] and not _fits(form, named[key]):
            reading.add_problem(
                join_path(path, key), f"{quote_value(named[key])} is no {key} of an image{_hint(named[key])}"
            )
    if named["version"] and not (_TAG.fullmatch(named["version"]) or _DIGEST.fullmatch(named["version"])):
        rule = "write a version such as 525.125.06, a branch such as 525, or sha256: and 64 hexadecimal digits"
        reading.add_problem(join_path(path, "version"), f"{quote_value(named['version'])} is part of no tag; {rule}")


def _fits(form: re.Pattern[str], text: str) -> bool:
    return len(text) <= IMAGE_REFERENCE and form.fullmatch(text) is not None


def _hint(text: str) -> str:
    if "://" in text:
        return "; write it without " + text.partition("://")[0][:20] + "://"
    return "; write it in lower-case letters, such as nvcr.io/nvidia/driver"


def read_version(reading: FieldReader, fields: Mapping[str, Any], path: str) -> str:
    """Returns a version as text. An integer is a branch (``525``); a decimal number has lost its zeros in YAML."""
    value = fields.get("version")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        text = f"must be text, not the number {quote_value(value)}, whose zeros are lost; put it in quotes"
        reading.add_problem(join_path(path, "version"), text)
        return ""
    return reading.text({"version": "" if value is None else value}, "version", path)


def judge_precompiled(reading: FieldReader, source: ImageSource, path: str, *, gds: bool, gdrcopy: bool) -> None:
    """Reports settings that contradict precompiled kernel modules."""
    key = "version" if source.version.startswith("sha256:") else "image" if "@sha256:" in source.image else ""
    if key:
        verb = "is" if key == "version" else "has"
        text = (
            f"{verb} a digest, which is one image, while usePrecompiled needs one for each kernel; write a version or "
            "branch"
        )
        reading.add_problem(join_path(path, key), text)
    elif source.verbatim and source.image:
        text = "is true, and image is a reference without a tag: it is taken as it is, whatever the kernel"
        reading.add_notice(join_path(path, "usePrecompiled"), text)
    for name, on in (("gds", gds), ("gdrcopy", gdrcopy)):
        if on:
            text = f"cannot be true together with {name}, whose modules are in no precompiled image; choose one of them"
            reading.add_problem(join_path(path, "usePrecompiled"), text)


def read_startup_probe(reading: FieldReader, fields: Mapping[str, Any], path: str) -> dict[str, int]:
    """Reads the driver's startup probe: the longest start time, and the seconds between two checks.

    The chart writes its delay (60 s) and period (10 s) into every object, so no user chose them, and each start of a
    driver would wait for them. Tessera uses no delay and one second instead; the time until a start counts as failed
    stays the same. Any other number is used as written.
    """
    at = join_path(path, "startupProbe")
    written = fields.get("startupProbe")
    if not isinstance(written, Mapping) or not written:
        return {}
    usual = STARTUP_PROBE
    delay = reading.integer(written, "initialDelaySeconds", at, 0)
    period = reading.integer(written, "periodSeconds", at, usual["periodSeconds"], least=1)
    failures = reading.integer(written, "failureThreshold", at, usual["failureThreshold"], least=1)
    timeout = reading.integer(written, "timeoutSeconds", at, usual["timeoutSeconds"], least=1)
    if reading.integer(written, "successThreshold", at, 1, least=1) != 1:
        reading.add_problem(join_path(at, "successThreshold"), "must be 1: the first success ends the start")
    window = delay + period * failures
    own_delay = 0 if delay == usual["initialDelaySeconds"] else delay
    own_period = _PERIOD if period == usual["periodSeconds"] else period
    if (own_delay, own_period) != (delay, period):
        text = "no effect: the chart's delay of 60 s and period of 10 s, in whose place are none and 1 s"
        reading.add_notice(at, f"{text}; a driver still has {window} s to start")
    threshold = max(1, -(-(window - own_delay) // own_period))
    return {
        "initialDelaySeconds": own_delay,
        "periodSeconds": own_period,
        "timeoutSeconds": timeout,
        "failureThreshold": threshold,
    }


def read_upgrade_policy(
    reading: FieldReader, fields: Mapping[str, Any], path: str, marks: Mapping[str, str]
) -> UpgradePolicy:
    """Reads how a running driver is replaced. Without ``autoUpgrade`` it stays, as with NVIDIA's operator."""
    at = join_path(path, "upgradePolicy")
    written = fields.get("upgradePolicy") or {}
    waiting, deletion, drain = (written.get(key) or {} for key in ("waitForCompletion", "podDeletion", "drain"))
    if "gpuPodDeletion" in written:
        reading.add_notice(
            join_path(at, "gpuPodDeletion"), "no effect: a key of the chart's values; here it is podDeletion"
        )
    if not written.get("autoUpgrade"):
        text = "not true: a driver that serves is not replaced, as with NVIDIA's operator"
        reading.add_notice(join_path(at, "autoUpgrade"), text)
    return UpgradePolicy(
        auto_upgrade=reading.boolean(written, "autoUpgrade", at),
        max_parallel=reading.integer(written, "maxParallelUpgrades", at, 1),
        max_unavailable=_part(reading, written.get("maxUnavailable", "25%"), join_path(at, "maxUnavailable")),
        wait_for_completion=WaitForCompletion(
            pod_selector=reading.selector(waiting, "podSelector", join_path(at, "waitForCompletion")),
            timeout_seconds=reading.integer(waiting, "timeoutSeconds", join_path(at, "waitForCompletion"), 0),
        ),
        pod_deletion=PodDeletionSettings(**_eviction(reading, deletion, join_path(at, "podDeletion"))),
        drain=DrainSettings(
            **_eviction(reading, drain, join_path(at, "drain")),
            enable=reading.boolean(drain, "enable", join_path(at, "drain")),
            pod_selector=reading.selector(drain, "podSelector", join_path(at, "drain")),
        ),
        canary=_count(reading, marks, CANARY_ANNOTATION, least=0),
        failure_budget=_count(reading, marks, FAILURE_BUDGET_ANNOTATION, least=1),
    )


def _eviction(reading: FieldReader, fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {
        "force": reading.boolean(fields, "force", path),
        "timeout_seconds": reading.integer(fields, "timeoutSeconds", path, 300),
        "delete_empty_dir": reading.boolean(fields, "deleteEmptyDir", path),
    }


def _part(reading: FieldReader, value: Any, path: str) -> int | str:
    """Returns a number of nodes, or a percentage unchanged."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,3}%", value) and int(value[:-1]) <= 100:
        return value
    reading.add_problem(
        path, f"must be a number of nodes such as 2, or a part of them such as 25%, not {quote_value(value)}"
    )
    return "25%"


def read_operand(
    reading: FieldReader, fields: Mapping[str, Any], raw: Any, path: str, *, otherwise: ImageSource
) -> OperandSettings:
    """Returns a part with its own image; does not check the image if the part is off. The folder is the toolkit's."""
    enabled = reading.boolean(fields, "enabled", path, otherwise=True)
    variables = raw.get("env") if isinstance(raw, Mapping) else None
    return OperandSettings(
        enabled=enabled,
        source=read_image_source(reading, fields, path, otherwise=otherwise) if enabled else ImageSource(),
        env=reading.values_of(fields.get("env", {}), variables, join_path(path, "env")),
        install_dir=read_folder(reading, fields, "installDir", path, INSTALL_DIR),
    )


def read_folder(reading: FieldReader, fields: Mapping[str, Any], key: str, path: str, otherwise: str = "") -> str:
    """Returns a folder of the host."""
    found = reading.text(fields, key, path) or otherwise
    if found and (not found.startswith("/") or ".." in found.split("/")):
        reading.add_problem(
            join_path(path, key), f"{quote_value(found)} is no folder of the host; begin it with / and write no .."
        )
    return found.rstrip("/") or found


# Annotations


def read_annotations(reading: FieldReader, metadata: Mapping[str, Any]) -> Mapping[str, str]:
    """Returns the annotations of an object."""
    return reading.labels(metadata, "annotations", "metadata")


def apply_annotations(reading: FieldReader, policy: Mapping[str, Any], marks: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of a policy including those from annotations."""
    build = marks.get(BUILD_REPOSITORY_ANNOTATION, "").strip()
    if build and not _fits(_REPOSITORY, build):
        reading.add_problem(_mark(BUILD_REPOSITORY_ANNOTATION), f"{quote_value(build)} is no repository{_hint(build)}")
    secret = marks.get(BUILD_SECRET_ANNOTATION, "").strip()
    if secret:
        secret = reading.name({BUILD_SECRET_ANNOTATION: secret}, BUILD_SECRET_ANNOTATION, "metadata.annotations")
    return {
        **policy,
        "mirrors": _mirrors(reading, marks.get(MIRRORS_ANNOTATION, "")),
        "build_repository": build,
        "build_secret": secret,
    }


def _mirrors(reading: FieldReader, text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(each.strip() for each in text.split(",") if each.strip()))
    if len(found) > IMAGE_MIRRORS:
        reading.add_problem(
            _mark(MIRRORS_ANNOTATION), f"names {len(found):,} repositories; {IMAGE_MIRRORS} are asked, remove some"
        )
        return ()
    for each in found:
        if not _fits(_REPOSITORY, each):
            reading.add_problem(_mark(MIRRORS_ANNOTATION), f"{quote_value(each)} is no repository{_hint(each)}")
    return found


def _count(reading: FieldReader, marks: Mapping[str, str], name: str, *, least: int) -> int:
    usual = UpgradePolicy()
    text = marks.get(name, "").strip()
    if not text:
        return usual.canary if name == CANARY_ANNOTATION else usual.failure_budget
    if re.fullmatch(r"[0-9]{1,6}", text) and int(text) >= least:
        return int(text)
    reading.add_problem(_mark(name), f"must be a whole number of {least} or more, not {quote_value(text)}")
    return 1


def _mark(name: str) -> str:
    return join_path("metadata.annotations", name)


def read_identity(metadata: Mapping[str, Any], kind: str) -> DriverPolicy:
    """Returns a policy with the object's name and UID."""
    texts = {key: metadata.get(key) for key in ("uid", "creationTimestamp")}
    uid, created = (value if isinstance(value, str) else "" for value in texts.values())
    return DriverPolicy(kind=kind, name=metadata["name"], uid=uid, created=created)


#: Variables of ``toolkit.env`` that name files of the host. Their folders are mounted into the toolkit's container, so
#: each must be a path that Kubernetes can mount.
FILE_VARIABLES = (
    "RUNTIME_CONFIG",
    "RUNTIME_DROP_IN_CONFIG",
    "RUNTIME_SOCKET",
    "CONTAINERD_CONFIG",
    "CONTAINERD_SOCKET",
    "CRIO_CONFIG",
    "DOCKER_CONFIG",
    "DOCKER_SOCKET",
    "NRI_SOCKET",
)
_HANDLER = "nvidia"


def judge_toolkit_env(reading: FieldReader, env: Mapping[str, str], path: str) -> None:
    """Notes mistakes in paths, and variables that Tessera sets itself."""
    for name in FILE_VARIABLES:
        value = env.get(name, "")
        parts = value.split("/")
        if value and (parts[0] or not parts[-1] or ".." in parts or "\0" in value):
            text = f"{quote_value(value)} must be an absolute path of a file on the host, without .."
            reading.add_problem(join_path(path, name), text)
    if env.get("CONTAINERD_RUNTIME_CLASS", _HANDLER) != _HANDLER:
        text = f"no effect: the handler is {_HANDLER!r}, by which Tessera's RuntimeClass finds it"
        reading.add_notice(join_path(path, "CONTAINERD_RUNTIME_CLASS"), text)
