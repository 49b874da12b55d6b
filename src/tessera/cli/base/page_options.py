"""Options of the live page as a process of the cluster, in ``tessera install`` and in ``tessera dashboard``."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def origin_option(name: str, *, text: str) -> Callable[[F], F]:
    """Adds the option of further names of the page; the function gets ``origins``.

    Args:
        name: the option's name.
        text: its help.
    """
    return click.option(name, "origins", multiple=True, metavar="URL", help=text)


def without_token_option(name: str, *, text: str) -> Callable[[F], F]:
    """Adds the option about visitors without a token; the function gets ``without_token``.

    Args:
        name: the option's name.
        text: its help.
    """
    choices = click.Choice(["refuse", "hide-names"])
    return click.option(name, "without_token", type=choices, default="refuse", show_default=True, help=text)


def provider_options(prefix: str, *, text: str) -> Callable[[F], F]:
    """Adds the options of the provider by which visitors sign in; the function gets ``oidc_...``.

    Args:
        prefix: what their names begin with, ``--`` or ``--dashboard-``.
        text: the beginning of each help.
    """

    def add(function: F) -> F:
        for name, metavar, multiple, help_text in _PROVIDER:
            variable = f"oidc_{name.replace('-', '_')}"
            option = click.option(
                f"{prefix}oidc-{name}", variable, metavar=metavar, multiple=multiple, help=f"{text}{help_text}"
            )
            function = option(function)
        return function

    return add


def prometheus_options(prefix: str, *, text: str) -> Callable[[F], F]:
    """Adds the options of the Prometheus with the past of the curves; the function gets ``prometheus`` and its labels.

    Args:
        prefix: what their names begin with, ``--`` or ``--dashboard-``.
        text: the beginning of each help; may be empty.
    """

    def sentence(rest: str) -> str:
        return text + rest if text else rest[0].upper() + rest[1:]

    def add(function: F) -> F:
        function = click.option(
            f"{prefix}prometheus-label",
            "prometheus_labels",
            metavar="NAME=VALUE",
            multiple=True,
            help=sentence("take only series with this label, where one Prometheus has several clusters; repeatable."),
        )(function)
        return click.option(
            f"{prefix}prometheus",
            "prometheus",
            metavar="URL",
            help=sentence(
                "show curves of up to 7 days from this Prometheus, e.g. http://prometheus.example.com:9090."
                "  [default: the last hours, from the page's memory]"
            ),
        )(function)

    return add


#: Name, value, whether it may be repeated, and help of the options of a provider, the last first.
_PROVIDER = (
    ("extra-scope", "SCOPE", True, "ask the provider for this scope too, e.g. groups; repeatable."),
    (
        "client-id",
        "NAME",
        False,
        "the page's name there: a public client, whose tokens the API server takes.",
    ),
    ("issuer", "URL", False, "let visitors sign in by this OpenID Connect provider too, that of the API server."),
)
