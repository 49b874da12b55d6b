"""Options of ``tessera controller`` that ``tessera install`` passes on: registries, new nodes, and driver builds.

The defaults are the controller's own (:mod:`tessera.controller.base.options`, :mod:`tessera.provisioning.options`). How
driver images are built is said by options of their own (:mod:`tessera.cli.base.controller_options`).

Nothing here reads the file of authorities: an installation and the controller have it in different places.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click
import msgspec

from tessera.cli.base.inputs import Duration

if TYPE_CHECKING:
    from tessera.driver.build.settings import BuildSettings


P = ParamSpec("P")
T = TypeVar("T")

#: Kubernetes' rule for keys of taints, a qualified name: an optional DNS name, and at most 63 characters.
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Options about registries and new nodes; an option that was not given has the controller's default.

    Attributes:
        registry_ca: file of authorities that registries are trusted by, PEM.
        plain_http: hosts that are asked without TLS, as images name them; ``*`` is all.
        startup_taints: keys of taints that are taken off nodes that have started.
        startup_deadline: seconds that a node may take.
    """

    registry_ca: Path | None = None
    plain_http: tuple[str, ...] = ()
    startup_taints: tuple[str, ...] = ()
    startup_deadline: float | None = None


def _hosts(_context: click.Context, _parameter: click.Parameter, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """The hosts as they are: under another name than images have, a registry would never be asked.

    Raises:
        click.BadParameter: one is of another form.
    """
    for each in hosts:
        if each != "*" and not _is_host(each):
            wrong = f'"{each[:100]}" is not how images name a registry; write host:port, as in registry.local:5000'
            raise click.BadParameter(wrong)
    return hosts


def _is_host(text: str) -> bool:
    from tessera.driver.registry.reference import ReferenceFormatError, parse_repository

    try:
        return parse_repository(f"{text}/image").host == text
    except ReferenceFormatError:
        return False


def _keys(_context: click.Context, _parameter: click.Parameter, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The keys as they are.

    Raises:
        click.BadParameter: one could be no taint's.
    """
    for each in keys:
        if not _KEY.fullmatch(each):
            wrong = f'"{each[:100]}" is no key of a taint; write example.com/name, without value and effect'
            raise click.BadParameter(wrong)
    return keys


#: The option, the field of Site, and what click is told.
_SITE_OPTIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "--registry-ca",
        "registry_ca",
        {
            "metavar": "FILE",
            "type": click.Path(path_type=Path),
            "help": "Certificates (PEM) of authorities that registries of driver images are trusted by, beside the"
            " system's.",
        },
    ),
    (
        "--plain-http",
        "plain_http",
        {
            "metavar": "HOST",
            "multiple": True,
            "callback": _hosts,
            "help": "Registry that is asked without TLS, host:port; repeatable; * for all.",
        },
    ),
    (
        "--startup-taint",
        "startup_taints",
        {
            "metavar": "KEY",
            "multiple": True,
            "callback": _keys,
            "help": "Taint that is taken off a node once its cards can be used; repeatable.  [default:"
            " startup-taint.cluster-autoscaler.kubernetes.io/tessera-gpu]",
        },
    ),
    (
        "--startup-deadline",
        "startup_deadline",
        {
            "type": Duration(),
            "help": "How long a node may take from its registration until its cards can be used.  [default: 15m]",
        },
    ),
)


def site_options(function: Callable[P, T]) -> Callable[P, T]:
    """Adds the options; each is given to the function as its field of :class:`Site`."""
    for option, field, told in reversed(_SITE_OPTIONS):
        function = click.option(option, field, **told)(function)
    return function


def pop_site(values: dict[str, Any]) -> Site:
    """Removes these options from a command's values and returns them."""
    return Site(**{field: values.pop(field) for _, field, _ in _SITE_OPTIONS})


def site_arguments(site: Site) -> Iterator[str]:
    """The options of ``tessera controller`` by which it knows the same, but for the file, which it has elsewhere."""
    yield from (f"--plain-http={each}" for each in site.plain_http)
    yield from (f"--startup-taint={each}" for each in site.startup_taints)
    if site.startup_deadline is not None:
        yield f"--startup-deadline={f'{site.startup_deadline:.9f}'.rstrip('0').rstrip('.')}s"


class NamedImage(click.ParamType[tuple[str, str]]):
    """An option ``KEY=IMAGE``."""

    name = "named image"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Key and image, or click's own refusal."""
        key, _, image = str(value).partition("=")
        if not key or not image:
            form = param.make_metavar(ctx) if param is not None and ctx is not None else "KEY=IMAGE"
            self.fail(f'"{str(value)[:100]}" is not of the form {form}', param, ctx)
        return key, image


_NAMED = NamedImage()

#: The option, the field of BuildSettings, and what click is told.
_BUILD_OPTIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "--buildah-image",
        "buildah_image",
        {
            "metavar": "IMAGE",
            "help": "Image that runs builds of driver images.  [default: quay.io/buildah/stable:v1.42.2]",
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
            "help": "The Driver Toolkit of a kernel (uname -r), or what else has its headers; repeatable.  [default:"
            " OpenShift's own, or the base image]",
        },
    ),
    (
        "--build-downloads",
        "downloads",
        {
            "metavar": "URL",
            "help": "Where builds find NVIDIA's .run files.  [default: https://us.download.nvidia.com/tesla]",
        },
    ),
    (
        "--build-ca-config-map",
        "ca_config_map",
        {
            "metavar": "NAME",
            "help": "ConfigMap in tessera-system of authorities (*.crt) that builds trust registries by.",
        },
    ),
    (
        "--build-tls-verify/--no-build-tls-verify",
        "tls_verify",
        {"default": None, "help": "Whether builds check the certificates of registries.  [default: they do]"},
    ),
    (
        "--build-nvswitch/--no-build-nvswitch",
        "nvswitch",
        {
            "default": None,
            "help": "Whether images that are built get fabric manager, for nodes with NVSwitches.  [default: they do]",
        },
    ),
)


def build_options(function: Callable[P, T]) -> Callable[P, T]:
    """Adds the options; each is given to the function as ``build_`` and its field of :class:`BuildSettings`."""
    for option, field, told in reversed(_BUILD_OPTIONS):
        function = click.option(option, f"build_{field}", **told)(function)
    return function


def pop_build_settings(values: dict[str, Any]) -> "BuildSettings":
    """Removes the build options from a command's values and returns the settings.

    Raises:
        UnbuildableError: a part is not what it should be; the text names it.
    """
    from tessera.driver.build.settings import BuildSettings, check_settings

    given = {field: values.pop(f"build_{field}") for _, field, _ in _BUILD_OPTIONS}
    chosen = {field: value for field, value in given.items() if value not in (None, ())}
    return check_settings(BuildSettings(**{field: _plain(value) for field, value in chosen.items()}))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value


def build_arguments(settings: "BuildSettings") -> Iterator[str]:
    """The options of ``tessera controller`` by which it has these settings; none for the defaults."""
    from tessera.driver.build.settings import BuildSettings

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
