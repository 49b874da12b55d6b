"""Options of ``tessera controller`` that ``tessera install`` passes on: registries, new nodes, queues, driver builds.

The defaults are the controller's own, and its satellites'. This module does not read the file of certificate
authorities, since the installer and the controller have it at different paths.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
import msgspec

from tessera.cli.base.durations import Duration, parse_duration

if TYPE_CHECKING:
    from tessera.driver.build.orders import BuildSettings


P = ParamSpec("P")
T = TypeVar("T")

#: Budgets of moves; the record of the largest must not exceed ``MOVE_RECORD_BYTES``.
_MOVES_RANGE = click.IntRange(1, 400)
#: Kubernetes' rule for keys of taints, a qualified name: an optional DNS name, and at most 63 characters.
KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Options about registries, new nodes and waiting pods; a missing option has the controller's default.

    Attributes:
        registry_ca: file with the certificate authorities of registries, PEM.
        plain_http: registries to contact without TLS, written as in image names; ``*`` is all.
        startup_taints: keys of the taints to remove from nodes whose cards can be used.
        startup_deadline: seconds that a node may take to start.
        scale_up: how autoscalers are asked for new nodes: ``off``, ``placeholder``, ``provisioning-request``, ``auto``.
        preempt: True to evict pods of lower priority for waiting pods.
        moves: what is done to make room by moves: ``off``, ``recommend`` or ``evict``.
        moves_per_hour: most moves in an hour.
        handover: what is done for pods that replace others: ``off``, ``inherit`` or ``on``.
        preferences: what pods' preferences may cost the cards: ``ties``, ``price`` or ``first``.
        reservations: ``off``, ``always``, or the time that a pod waits for room before slots are reserved for it.
        team_label: key of the namespaces' label that names their teams.
    """

    registry_ca: Path | None = None
    plain_http: tuple[str, ...] = ()
    startup_taints: tuple[str, ...] = ()
    startup_deadline: float | None = None
    scale_up: str | None = None
    reservations: str | None = None
    preempt: bool = False
    moves: str | None = None
    moves_per_hour: int | None = None
    handover: str | None = None
    team_label: str | None = None
    preferences: str | None = None


def check_hosts(_context: click.Context, _parameter: click.Parameter, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the hosts unchanged; each must be written as in image names, else the option would have no effect.

    Raises:
        click.BadParameter: one is of another form.
    """
    for each in hosts:
        if each != "*" and not _is_host(each):
            wrong = f'"{each[:100]}" is not a registry as image names have it; write host:port, as registry.local:5000'
            raise click.BadParameter(wrong)
    return hosts


def _is_host(text: str) -> bool:
    from tessera.api.image_reference import ReferenceFormatError, parse_repository

    try:
        return parse_repository(f"{text}/image").host == text
    except ReferenceFormatError:
        return False


def check_keys(_context: click.Context, _parameter: click.Parameter, keys: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the keys unchanged.

    Raises:
        click.BadParameter: one is not a valid key of a taint.
    """
    for each in keys:
        if not KEY.fullmatch(each):
            wrong = f'"{each[:100]}" is not the key of a taint; write example.com/name, without value and effect'
            raise click.BadParameter(wrong)
    return keys


def check_key(_context: click.Context, _parameter: click.Parameter, key: str | None) -> str | None:
    """Returns the key of a label or annotation unchanged.

    Raises:
        click.BadParameter: it is not such a key.
    """
    if key is not None and not KEY.fullmatch(key):
        raise click.BadParameter(f'"{key[:100]}" is not the key of a label; write example.com/name, without a value')
    return key


class ReservationTime(click.ParamType[str]):
    """An option whose value is ``off``, ``always`` or a duration."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text; fails with click's error for another one."""
        text = str(value)
        try:
            read_reservations(text)
        except ValueError:
            self.fail(f'"{text[:40]}" is neither off nor always nor a duration; write 60s', param, ctx)
        return text


def read_reservations(text: str) -> float | None:
    """Seconds that a pod waits for room before slots are reserved for it; None reserves none.

    Raises:
        ValueError: the text is none of ``off``, ``always`` and durations.
    """
    if text == "off":
        return None
    return 0.0 if text == "always" else parse_duration(text)


#: The option, the field of Site, and click's settings.
_SITE_OPTIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "--registry-ca",
        "registry_ca",
        {
            "metavar": "FILE",
            "type": click.Path(path_type=Path),
            "help": "File (PEM) with certificate authorities of driver image registries, in addition to the system's.",
        },
    ),
    (
        "--plain-http",
        "plain_http",
        {
            "metavar": "HOST",
            "multiple": True,
            "callback": check_hosts,
            "help": "Contact this registry (host:port) without TLS; repeatable; * for all.",
        },
    ),
    (
        "--startup-taint",
        "startup_taints",
        {
            "metavar": "KEY",
            "multiple": True,
            "callback": check_keys,
            "help": "Remove the taint with this key from a node once its cards can be used; repeatable.  [default:"
            " startup-taint.cluster-autoscaler.kubernetes.io/tessera-gpu]",
        },
    ),
    (
        "--startup-deadline",
        "startup_deadline",
        {
            "type": Duration(),
            "help": "Longest time from a node's registration until its cards can be used.  [default: 15m]",
        },
    ),
    (
        "--scale-up",
        "scale_up",
        {
            "type": click.Choice(("off", "placeholder", "provisioning-request", "auto")),
            "help": "How to ask autoscalers for the node groups of ConfigMap tessera-node-groups: auto uses"
            " ProvisioningRequests where they are accepted, else placeholder pods.  [default: auto]",
        },
    ),
    (
        "--reservations",
        "reservations",
        {
            "metavar": "TIME",
            "type": ReservationTime(),
            "help": "Reserve slots for a pod that has waited this long for room: off, always, a time.  [default: 60s]",
        },
    ),
    (
        "--preempt",
        "preempt",
        {"is_flag": True, "help": "Evict pods of lower priority for a waiting pod, through the eviction API."},
    ),
    (
        "--moves",
        "moves",
        {
            "type": click.Choice(("off", "recommend", "evict")),
            "help": "Room by moves of pods with the annotation tessera.dev/movable: do not look for moves, tell the"
            " waiting pod of them, or evict.  [default: recommend]",
        },
    ),
    (
        "--moves-per-hour",
        "moves_per_hour",
        {
            "metavar": "N",
            "type": _MOVES_RANGE,
            "help": "Most pods that --moves evict evicts in an hour.  [default: 20]",
        },
    ),
    (
        "--handover",
        "handover",
        {
            "type": click.Choice(("off", "inherit", "on")),
            "help": "The slots of a service's pod: free for all once it is deleted, kept for its owner's next pod, or"
            " besides handed to a new pod with the annotation tessera.dev/update: hand-over.  [default: on]",
        },
    ),
    (
        "--team-label",
        "team_label",
        {
            "metavar": "KEY",
            "callback": check_key,
            "help": "Key of the namespaces' label that names their team, for tessera usage, top and the live page."
            "  [default: each namespace is a team]",
        },
    ),
    (
        "--preferences",
        "preferences",
        {
            "type": click.Choice(("ties", "price", "first")),
            "help": "What the preferences of pods for nodes may cost the cards: ties: nothing; price: a little; first:"
            " anything.  [default: ties]",
        },
    ),
)


def site_options(function: Callable[P, T]) -> Callable[P, T]:
    """Adds the options; the function gets each under the name of its field of :class:`Site`."""
    for option, field, settings in reversed(_SITE_OPTIONS):
        function = click.option(option, field, **settings)(function)
    return function


def pop_site(values: dict[str, Any]) -> Site:
    """Removes these options from a command's values and returns them."""
    return Site(**{field: values.pop(field) for _, field, _ in _SITE_OPTIONS})


def site_arguments(site: Site) -> Iterator[str]:
    """The same options as arguments of ``tessera controller``, without the file, whose path differs in its pod."""
    yield from (f"--plain-http={each}" for each in site.plain_http)
    yield from (f"--startup-taint={each}" for each in site.startup_taints)
    if site.startup_deadline is not None:
        yield f"--startup-deadline={_seconds(site.startup_deadline)}"
    if site.scale_up is not None:
        yield f"--scale-up={site.scale_up}"
    if site.reservations is not None:
        yield f"--reservations={site.reservations}"
    if site.preempt:
        yield "--preempt"
    if site.moves is not None:
        yield f"--moves={site.moves}"
    if site.moves_per_hour is not None:
        yield f"--moves-per-hour={site.moves_per_hour}"
    if site.handover is not None:
        yield f"--handover={site.handover}"
    if site.team_label is not None:
        yield f"--team-label={site.team_label}"
    if site.preferences is not None:
        yield f"--preferences={site.preferences}"


def _seconds(duration: float) -> str:
    return f"{f'{duration:.9f}'.rstrip('0').rstrip('.')}s"


class NamedImage(click.ParamType[tuple[str, str]]):
    """An option ``KEY=IMAGE``."""

    name = "named image"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Key and image; fails with click's error for a wrong value."""
        key, _, image = str(value).partition("=")
        if not key or not image:
            form = param.make_metavar(ctx) if param is not None and ctx is not None else "KEY=IMAGE"
            self.fail(f'"{str(value)[:100]}" does not have the form {form}', param, ctx)
        return key, image


_NAMED = NamedImage()

#: The option, the field of BuildSettings, and click's settings.
_BUILD_OPTIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "--buildah-image",
        "buildah_image",
        {
            "metavar": "IMAGE",
            "help": "Image of the Jobs that build driver images.  [default: quay.io/buildah/stable:v1.42.2]",
        },
    ),
    (
        "--build-base-image",
        "base_images",
        {
            "metavar": "SYSTEM=IMAGE",
            "multiple": True,
            "type": _NAMED,
            "help": "Base image of built driver images, ubuntu22.04=IMAGE or rhel9=IMAGE; repeatable.  [default:"
            " docker.io/library/ubuntu or UBI]",
        },
    ),
    (
        "--build-dtk-image",
        "builder_images",
        {
            "metavar": "KERNEL=IMAGE",
            "multiple": True,
            "type": _NAMED,
            "help": "Driver Toolkit image of a kernel (uname -r), or another image with its headers; repeatable."
            "  [default: OpenShift's own, or the base image]",
        },
    ),
    (
        "--build-downloads",
        "downloads",
        {
            "metavar": "URL",
            "help": "Download NVIDIA's .run files from here.  [default: https://us.download.nvidia.com/tesla]",
        },
    ),
    (
        "--build-ca-config-map",
        "ca_config_map",
        {
            "metavar": "NAME",
            "help": "ConfigMap in tessera-system with certificate authorities of registries (*.crt), for builds.",
        },
    ),
    (
        "--build-tls-verify/--no-build-tls-verify",
        "tls_verify",
        {"default": None, "help": "Check the certificates of registries in builds.  [default: check]"},
    ),
    (
        "--build-nvswitch/--no-build-nvswitch",
        "nvswitch",
        {
            "default": None,
            "help": "Put the fabric manager into built images, for nodes with NVSwitches.  [default: put it in]",
        },
    ),
)


def build_options(function: Callable[P, T]) -> Callable[P, T]:
    """Adds the options; the function gets each as ``build_`` and the name of its field of :class:`BuildSettings`."""
    for option, field, settings in reversed(_BUILD_OPTIONS):
        function = click.option(option, f"build_{field}", **settings)(function)
    return function


def pop_build_settings(values: dict[str, Any]) -> "BuildSettings":
    """Removes the build options from a command's values and returns the settings.

    Raises:
        UnbuildableError: an option is wrong; the text names it.
    """
    from tessera.driver.build.orders import BuildSettings, check_settings

    given = {field: values.pop(f"build_{field}") for _, field, _ in _BUILD_OPTIONS}
    chosen = {field: value for field, value in given.items() if value not in (None, ())}
    return check_settings(BuildSettings(**{field: _plain(value) for field, value in chosen.items()}))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value


def build_arguments(settings: "BuildSettings") -> Iterator[str]:
    """The arguments of ``tessera controller`` for these settings; none for defaults."""
    from tessera.driver.build.orders import BuildSettings

    default = BuildSettings()
    for option, field, _ in _BUILD_OPTIONS:
        value = getattr(settings, field)
        if value == getattr(default, field):
            continue
        if isinstance(value, Mapping):
            yield from (f"{option}={key}={image}" for key, image in value.items())
        elif isinstance(value, bool):
            yield option.split("/")[not value]
        else:
            yield f"{option}={value}"
