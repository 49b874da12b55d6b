"""Connects a command to the cluster and reports its errors, both as kubectl does."""

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

import click

from tessera.clock import SystemClock
from tessera.errors import UserError
from tessera.kube.client.client import Client
from tessera.limits.messages import LINE_SHOWN
from tessera.text import one_line

P = ParamSpec("P")
T = TypeVar("T")


@asynccontextmanager
async def connect(component: str, kubeconfig: Path | None = None, context: str | None = None) -> AsyncIterator[Client]:
    """A client for the cluster that kubectl would use: the given file, ``$KUBECONFIG``, ``~/.kube/config``.

    Inside a pod without any of these, the pod's own service account is used.
    """
    from tessera.kube.transport.http import HttpTransport
    from tessera.kube.transport.kubeconfig import load_config

    clock = SystemClock()
    config = load_config(clock=clock, kubeconfig=None if kubeconfig is None else str(kubeconfig), context=context)
    client = Client(HttpTransport(config), field_manager=component, clock=clock)
    try:
        yield client
    finally:
        await client.close()


def cluster_options(function: Callable[P, T]) -> Callable[P, T]:
    """Adds ``--kubeconfig`` and ``--context``; kubectl refuses global flags before a plugin's name, so we read them."""
    function = click.option(
        "--context", metavar="NAME", help="Context of the kubeconfig; the current one if left out."
    )(function)
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Kubeconfig file; $KUBECONFIG or ~/.kube/config if left out.",
    )(function)


def report_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Turns errors that a user can act on into one line on standard error and exit code 1."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if _is_broken_pipe(error):
                raise BrokenPipeError from error
            text = _describe_error(error)
            if text is None:
                raise
            raise CommandError(text) from error

    return wrapper


def _is_broken_pipe(error: BaseException) -> bool:
    """Whether the reader of our output went away (``| head``), so that nobody reads an error."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_broken_pipe(each) for each in error.exceptions)
    return isinstance(error, BrokenPipeError)


class CommandError(click.ClickException):
    """An error that a command prints on standard error before it exits with 1.

    Args:
        lines: each is one line of the terminal, whatever it holds.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(one_line(line, LINE_SHOWN) for line in lines))


def _describe_error(error: BaseException) -> str | None:
    """The line for an error that a user can act on; None for a defect of this program."""
    from tessera.kube.client.errors import ApiError, Forbidden
    from tessera.kube.transport.kubeconfig import ConfigError
    from tessera.nvml.errors import NvmlError
    from tessera.nvml.simulated.state_file import StateFileError

    if isinstance(error, BaseExceptionGroup):
        lines = [_describe_error(each) for each in error.exceptions]
        return next((line for line in lines if line is not None), None) if all(lines) else None
    if isinstance(error, ApiError):
        right = "; ask for that right, or use a context that has it" if isinstance(error, Forbidden) else ""
        return " ".join(str(error).split()) + right
    if isinstance(error, ConnectionError) and str(error).endswith("connection refused"):
        return f"error: {error}; nothing listens there: is the cluster up, and is this its address?"
    known = (ConfigError, UserError, NvmlError, StateFileError, ConnectionError, FileNotFoundError, ValueError)
    if isinstance(error, (*known, TimeoutError)):
        return f"error: {' '.join(str(error).split())}"
    return None
