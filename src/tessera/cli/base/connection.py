"""Connects a command to the cluster and reports its errors, as kubectl does."""

import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import click

from tessera.cli.base.durations import Duration
from tessera.clock import SystemClock
from tessera.limits import LINE_SHOWN
from tessera.text import UserError, one_line

if TYPE_CHECKING:
    from tessera.kube.client import Client
    from tessera.kube.cluster_config import ClusterConfig
    from tessera.kube.http import HttpTransport

P = ParamSpec("P")
T = TypeVar("T")


def cluster_config(kubeconfig: Path | None = None, context: str | None = None) -> "ClusterConfig":
    """The configuration of the cluster that kubectl would use: the given file, ``$KUBECONFIG``, ``~/.kube/config``.

    Inside a pod without any of these, the pod's own service account is used.

    Raises:
        ClusterConfigError: nothing usable is configured.
    """
    from tessera.cli.base.kubeconfig import load_config

    found = load_config(
        clock=SystemClock(), kubeconfig=None if kubeconfig is None else str(kubeconfig), context=context
    )
    running = click.get_current_context(silent=True)
    return found if running is None else _as_asked(found, running.find_root().meta)


#: Keys of click's context under which the options of :func:`cluster_options` leave what was given.
_AS, _GROUPS, _TOKEN, _TIMEOUT = (f"tessera.{name}" for name in ("as", "as-group", "token", "request-timeout"))
#: Seconds that stand for no limit: a day.
_NO_LIMIT = 86_400.0


def _as_asked(config: "ClusterConfig", given: Mapping[str, Any]) -> "ClusterConfig":
    """The configuration with the identity and the time-out that the command line names."""
    import msgspec

    from tessera.kube.credentials import Credential, StaticCredentials

    changes: dict[str, Any] = {}
    if given.get(_TOKEN):
        changes["credentials"] = StaticCredentials(Credential(authorization=f"Bearer {given[_TOKEN]}"))
    if given.get(_GROUPS) and not given.get(_AS):
        raise click.UsageError("--as-group needs --as")
    if given.get(_AS):
        changes["impersonated"] = (given[_AS], *given.get(_GROUPS, ()))
    if given.get(_TIMEOUT) is not None:
        changes["timeout"] = given[_TIMEOUT] or _NO_LIMIT
    return msgspec.structs.replace(config, **changes) if changes else config


def _keep(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """A callback: leaves the value where :func:`cluster_config` finds it, so that no command has to pass it on."""
    ctx.find_root().meta[f"tessera.{param.opts[0].lstrip('-')}"] = value


def own_namespace(given: str | None, kubeconfig: Path | None = None, context: str | None = None) -> str:
    """The namespace that the user names, or that of the context."""
    return given or cluster_config(kubeconfig, context).namespace


@asynccontextmanager
async def connect(
    component: str, kubeconfig: Path | None = None, context: str | None = None
) -> AsyncIterator["Client"]:
    """A client of a command for the cluster of :func:`cluster_config`; ``component`` is its field manager."""
    from tessera.cli.base.one_shot import OneShotTransport
    from tessera.kube.client import Client

    transport = OneShotTransport(cluster_config(kubeconfig, context))
    client = Client(transport, field_manager=component, clock=SystemClock())
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def connect_transport(
    component: str, kubeconfig: Path | None = None, context: str | None = None
) -> AsyncIterator[tuple["Client", "HttpTransport"]]:
    """As :func:`connect`, for processes that run on, and with the client's transport, which ``exec`` needs.

    A command's requests share few connections and wait for them. A process keeps its connections and has up to 200 of
    them, since pods wait for its writes; its Lease waits for none of these.
    """
    from tessera.kube.client import Client
    from tessera.kube.http import HttpTransport

    transport = HttpTransport(cluster_config(kubeconfig, context))
    client = Client(transport, field_manager=component, clock=SystemClock())
    try:
        yield client, transport
    finally:
        await client.close()


def cluster_options(function: Callable[P, T]) -> Callable[P, T]:
    """Adds :func:`server_options`, and kubectl's options that say as whom to ask, and how long to wait."""
    for names, settings in (
        (("--request-timeout",), {"type": Duration(), "help": "Longest wait for one answer: 30s; 0 for no limit."}),
        (("--token",), {"metavar": "TOKEN", "help": "Ask with this bearer token."}),
        (("--as-group",), {"metavar": "GROUP", "multiple": True, "help": "With --as: in this group too; repeatable."}),
        (("--as",), {"metavar": "USER", "help": "Ask as this user; needs the right to impersonate."}),
    ):
        function = click.option(*names, expose_value=False, callback=_keep, **settings)(function)
    return server_options(function)


def server_options(function: Callable[P, T]) -> Callable[P, T]:
    """Adds ``--kubeconfig`` and ``--context``.

    ``kubectl tessera`` needs them here, since kubectl accepts no flags of its own before a plugin's name.
    """
    function = click.option(
        "--context", metavar="NAME", help="Context of the kubeconfig.  [default: the current context]"
    )(function)
    return click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Kubeconfig file.  [default: $KUBECONFIG or ~/.kube/config]",
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
            text = describe_error(error)
            if text is None:
                raise
            raise CommandError(text) from error

    return wrapper


def _is_broken_pipe(error: BaseException) -> bool:
    """True if the reader of our output has ended (``| head``), so that nobody reads an error."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_broken_pipe(each) for each in error.exceptions)
    return isinstance(error, BrokenPipeError)


class CommandError(click.ClickException):
    """An error that a command prints on standard error before it exits with 1.

    Args:
        lines: each is printed as one line; control characters in it are escaped.
    """

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(one_line(line, LINE_SHOWN) for line in lines))


#: Next step after the server has refused the user's credentials.
_UNKNOWN_USER = (
    "; the server does not know these credentials, or they have expired: log in again, or use another context"
)
#: Next step after something else than the server has refused a request.
_NOT_KUBERNETES = (
    "; that is no answer of Kubernetes: check the server and the proxy-url of the kubeconfig, and what is between"
)


def describe_error(error: BaseException) -> str | None:
    """The line for an error that a user can act on; None for a defect of this program."""
    from tessera.kube.errors import ApiError, Forbidden, Intercepted, Unauthorized
    from tessera.nvml.errors import NvmlError

    if isinstance(error, BaseExceptionGroup):
        lines = [describe_error(each) for each in error.exceptions]
        return next((line for line in lines if line is not None), None) if all(lines) else None
    if isinstance(error, ApiError):
        step = ""
        if isinstance(error, Forbidden) and error.lacks_right:
            step = "; ask an administrator for this right, or use a context that has it"
        elif isinstance(error, Intercepted):
            step = _NOT_KUBERNETES
        elif isinstance(error, Unauthorized):
            step = _UNKNOWN_USER
        return " ".join(str(error).split()) + step
    if isinstance(error, ConnectionError) and str(error).endswith("connection refused"):
        is_proxy = str(error).startswith("proxy ")
        check = "that proxy-url is right" if is_proxy else "that the cluster is up and that this is its address"
        return f"error: {error}; nothing listens there: check {check}"
    if isinstance(error, (UserError, NvmlError, OSError, ValueError)):
        return f"error: {' '.join(str(error).split())}"
    return None
