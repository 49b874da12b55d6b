"""How driver images are built in a cluster: options that ``tessera controller`` reads and ``tessera install`` hands on.

The defaults name images and addresses of the internet; a disconnected site names its own. Where finished images are
pushed, and with which Secret, is said by annotations of the ClusterPolicy. ``tessera driver build`` has options of its
own, for one image.

Nothing here knows what an image's name looks like: :func:`taken` has :mod:`tessera.driver.build.settings` check what
was said, so that a mistake is told at the start.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

if TYPE_CHECKING:
    from tessera.driver.build.settings import BuildSettings

P = ParamSpec("P")
T = TypeVar("T")


class Named(click.ParamType[tuple[str, str]]):
    """An option ``KEY=IMAGE``."""

    name = "named image"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Key and image, or click's own refusal."""
        key, _, image = str(value).partition("=")
        if not key or not image:
            form = param.make_metavar(ctx) if param is not None and ctx is not None else "KEY=IMAGE"
            self.fail(f'"{str(value)[:100]}" is not of the form {form}', param, ctx)
        return key, image


_NAMED = Named()

#: The option, the field of BuildSettings, and what click is told.
_OPTIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
    (
        "--buildah-image",
        "buildah_image",
        {
            "metavar": "IMAGE",
            "help": "What runs builds of driver images.  [default: quay.io/buildah/stable:v1.42.2]",
        },
    ),
    (
        "--build-base-image",
        "base_images",
        {
            "metavar": "SYSTEM=IMAGE",
            "multiple": True,
            "type": _NAMED,
            "help": "What images that are built stand on, ubuntu22.04=IMAGE or rhel9=IMAGE; repeatable.  [default:"
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
    for option, field, told in reversed(_OPTIONS):
        function = click.option(option, f"build_{field}", **told)(function)
    return function


def taken(values: dict[str, Any]) -> "BuildSettings":
    """The settings, taken out of a command's values.

    Raises:
        UnbuildableError: a part is not what it should be; the text names it.
    """
    from tessera.driver.build.settings import BuildSettings, check_settings

    given = {field: values.pop(f"build_{field}") for _, field, _ in _OPTIONS}
    chosen = {field: value for field, value in given.items() if value not in (None, ())}
    return check_settings(BuildSettings(**{field: _plain(value) for field, value in chosen.items()}))


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, tuple) else value


def arguments(settings: "BuildSettings") -> Iterator[str]:
    """The options of ``tessera controller`` by which it has these settings; none for the defaults."""
    from tessera.driver.build.settings import BuildSettings

    default = BuildSettings()
    for option, field, _ in _OPTIONS:
        value = getattr(settings, field)
        if value == getattr(default, field):
            continue
        if isinstance(value, Mapping):
            yield from (f"{option}={key}={image}" for key, image in value.items())
        elif isinstance(value, bool):
            yield option.split("/")[not value]
        else:
            yield f"{option}={value}"
