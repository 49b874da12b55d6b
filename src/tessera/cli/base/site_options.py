"""What a site says of its registries and new nodes: ``tessera controller`` reads it, ``tessera install`` hands it on.

The defaults are the controller's own (:mod:`tessera.controller.base.options`, :mod:`tessera.provisioning.options`). How
driver images are built is said by options of their own (:mod:`tessera.cli.base.build_options`).

Nothing here reads the file of authorities: an installation and the controller have it in different places.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
import msgspec

from tessera.cli.base.option_types import Duration

P = ParamSpec("P")
T = TypeVar("T")

#: Kubernetes' rule for keys of taints, a qualified name: an optional DNS name, and at most 63 characters.
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """What was said; what was not has the controller's default.

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
_OPTIONS: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
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
    for option, field, told in reversed(_OPTIONS):
        function = click.option(option, field, **told)(function)
    return function


def taken(values: dict[str, Any]) -> Site:
    """What was said, taken out of a command's values."""
    return Site(**{field: values.pop(field) for _, field, _ in _OPTIONS})


def arguments(site: Site) -> Iterator[str]:
    """The options of ``tessera controller`` by which it knows the same, but for the file, which it has elsewhere."""
    yield from (f"--plain-http={each}" for each in site.plain_http)
    yield from (f"--startup-taint={each}" for each in site.startup_taints)
    if site.startup_deadline is not None:
        yield f"--startup-deadline={f'{site.startup_deadline:.9f}'.rstrip('0').rstrip('.')}s"
