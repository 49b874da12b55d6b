"""``tessera controller``: the cluster's process."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tessera.api.names import PAUSE_IMAGE, SYSTEM_NAMESPACE, USER_KEY
from tessera.cli.base.connection import connect_transport, report_errors, server_options
from tessera.cli.base.controller_options import (
    Site,
    build_options,
    check_key,
    pop_build_settings,
    pop_site,
    read_reservations,
    site_options,
)
from tessera.cli.base.features import JOINING
from tessera.cli.base.inputs import check_image, claim_driver_option, claim_placement_option
from tessera.cli.base.process import (
    address_option,
    log_option,
    metrics_access_option,
    record_option,
    run_process,
    start_log,
)

#: The options that only satellites read, by their names in Python, and which of them.
_READERS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("image", "registry_ca", "plain_http"), ("drivers",)),
    **dict.fromkeys(("startup_taints", "replace_failed"), ("provisioning",)),
    "startup_deadline": ("provisioning", "scale-up"),
    **dict.fromkeys(("usage_user", "usage_label", "team_label"), ("usage",)),
    **dict.fromkeys(("scale_up", "placeholder_image"), ("scale-up",)),
    **dict.fromkeys(("claim_driver", "claim_placement"), ("claims",)),
    "handover": ("handover",),
}


@click.command()
@click.option(
    "--identity", envvar="POD_NAME", help="Name of this replica in the Lease.  [env: POD_NAME; default: the host name]"
)
@click.option(
    "--namespace",
    envvar="POD_NAMESPACE",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    help="Namespace of the Lease.  [env: POD_NAMESPACE]",
)
@click.option(
    "--leader-election/--no-leader-election", default=True, help="Elect a leader; needed for several replicas."
)
@click.option("--image", metavar="IMAGE", help="Tessera's image in pods that it creates.  [default: this pod's image]")
@site_options
@build_options
@click.option(
    "--replace-failed",
    type=click.IntRange(0, 100),
    metavar="N",
    default=0,
    show_default=True,
    help="Replace nodes that miss the startup deadline, at most N of a group in an hour; needs the rights of"
    " deploy/options/replace.yaml. 0 replaces none.",
)
@claim_driver_option("Place ResourceClaims for devices that agents publish as this driver.  [default: none]")
@claim_placement_option
@click.option(
    "--health-breaker-share",
    type=click.FloatRange(0, 1),
    metavar="SHARE",
    default=0.1,
    show_default=True,
    help="Share of all cards that one kind of error takes away at most; cards beyond it stay allocated. 1 turns the"
    " breaker off.",
)
@click.option(
    "--health-breaker-cards",
    type=click.IntRange(0),
    metavar="N",
    default=3,
    show_default=True,
    help="Cards that one kind of error may always take away; also those of the largest node.",
)
@click.option(
    "--usage-user",
    metavar="KEY",
    default=USER_KEY,
    show_default=True,
    callback=check_key,
    help="Label, or else annotation, of pods that names their user in tessera usage.",
)
@click.option(
    "--usage-label",
    metavar="KEY",
    default="app.kubernetes.io/part-of",
    show_default=True,
    callback=check_key,
    help="Label of pods by which tessera usage --by label adds up.",
)
@click.option(
    "--placeholder-image",
    metavar="IMAGE",
    default=PAUSE_IMAGE,
    show_default=True,
    callback=check_image,
    help="Image that placeholder pods name; they never run, so it is never pulled.",
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice([each.name for each in JOINING]),
    help="Leave out a feature; repeatable. What it has made stays. docs/how-it-works.md lists them.",
)
@click.option("--http-port", type=click.IntRange(0, 65535), help="Serve /metrics, /healthz and /readyz here.")
@metrics_access_option
@record_option
@address_option
@log_option
@server_options
@report_errors
def command(kubeconfig: Path | None, context: str | None, log_level: str, **options: Any) -> None:
    """Run the cluster's process.

    The controller places slices, installs drivers, and measures how long new nodes take until their cards can be used.
    It runs as a Deployment (deploy/controller.yaml), or on your machine for the cluster of your kubeconfig. Several
    replicas may run; the one that holds the Lease acts.

    \b
    Example:
      tessera controller --kubeconfig admin.conf
    """
    start_log(log_level)
    run_process(_run(options_from(options), kubeconfig, context))


def options_from(values: Mapping[str, Any]) -> Any:
    """The controller's options for values of the command line."""
    from tessera.controller.base import BreakerLimits, MoveMode, MoveSettings
    from tessera.controller.satellite import ControllerOptions

    given = dict(values)
    _refuse_unread(given)
    given["identity"] = given["identity"] or socket.gethostname()
    site = pop_site(given)
    reserve: dict[str, Any] = (
        {} if site.reservations is None else {"reserve_after": read_reservations(site.reservations)}
    )
    moves: dict[str, Any] = {} if site.moves is None else {"mode": MoveMode(site.moves)}
    if site.moves_per_hour is not None:
        moves["per_hour"] = site.moves_per_hour
    if site.preferences is not None:
        given["preferences"] = site.preferences
    return ControllerOptions(
        breaker=BreakerLimits(share=given.pop("health_breaker_share"), cards=given.pop("health_breaker_cards")),
        satellites=tuple(_satellites(site, given)),
        preempt=site.preempt,
        moves=MoveSettings(**moves),
        **reserve,
        **given,
    )


def _readers(name: str) -> tuple[str, ...]:
    """The satellites that alone read an option; none for an option of the core."""
    return ("drivers",) if name.startswith("build_") else _READERS.get(name, ())


def _refuse_unread(given: Mapping[str, Any]) -> None:
    """Refuses an option that nobody reads, since its satellites are left out.

    Raises:
        click.UsageError: there is one.
    """
    for option in command.params:
        readers = _readers(option.name or "")
        if not readers or not set(readers) <= set(given["without"]):
            continue
        if given[option.name or ""] not in (None, (), False, 0, "off", option.default):
            left_out = " and ".join(f"--without {each}" for each in readers)
            raise click.UsageError(
                f"{option.opts[0]} is an option of {' and '.join(readers)}, and {left_out} leaves that out: remove"
                f" {option.opts[0]}, or keep {readers[0]}"
            )


def _satellites(site: Site, given: dict[str, Any]) -> Iterator[Any]:
    """The satellites that are not left out; removes their options from ``given``."""
    without = given.pop("without")
    names = [name for name in given if _readers(name)]
    settings = {name: given.pop(name) for name in names}
    for feature in JOINING:
        if feature.name not in without and (found := _satellite(feature.name, site, {**settings, **given})):
            yield found


def _satellite(name: str, site: Site, given: Mapping[str, Any]) -> Any:
    """One satellite with its options; None if they leave it nothing to do. Its modules are imported only here."""
    startup = {"startup_taints": site.startup_taints, "deadline": site.startup_deadline}
    match name:
        case "provisioning":
            from tessera.provisioning.satellite import ProvisioningSatellite
            from tessera.provisioning.startup_deadline import ProvisioningOptions

            chosen: dict[str, Any] = {key: value for key, value in startup.items() if value not in (None, ())}
            return ProvisioningSatellite(
                options=ProvisioningOptions(
                    namespace=given["namespace"], replace_failed=given["replace_failed"], **chosen
                )
            )
        case "drivers":
            from tessera.driver.registry.client import RegistryOptions
            from tessera.driver.satellite import DriverOptions, DriverSatellite

            return DriverSatellite(
                options=DriverOptions(
                    identity=given["identity"], image=given["image"] or "", builds=pop_build_settings(dict(given))
                ),
                registries=RegistryOptions(ca=site.registry_ca, plain_http=site.plain_http),
                namespace=given["namespace"],
            )
        case "usage":
            from tessera.usage.satellite import UsageOptions, UsageSatellite

            return UsageSatellite(
                options=UsageOptions(
                    namespace=given["namespace"],
                    user=given["usage_user"],
                    label=given["usage_label"],
                    team_label=site.team_label or "",
                )
            )
        case "kueue":
            from tessera.kueue.satellite import CheckSatellite

            return CheckSatellite()
        case "forecast":
            from tessera.forecast.queue.satellite import ForecastSatellite

            return ForecastSatellite()
        case "signals":
            from tessera.signals.satellite import SignalsSatellite

            return SignalsSatellite()
        case "handover":
            from tessera.handover.satellite import HandOverMode, HandOverSatellite

            mode, moves = site.handover or "on", site.moves == "evict"
            return HandOverSatellite(mode=HandOverMode(mode), moves=moves) if mode != "off" else None
        case "scale-up":
            from tessera.scale_up.node_requests import ScaleUpMethod, ScaleUpOptions
            from tessera.scale_up.satellite import ScaleUpSatellite

            options = ScaleUpOptions(method=ScaleUpMethod(site.scale_up or "auto"), image=given["placeholder_image"])
            deadline = site.startup_deadline
            return ScaleUpSatellite(options=options, **({} if deadline is None else {"startup": deadline}))
        case "claims":
            from tessera.claims.satellite import ClaimSatellite

            by_scheduler = given["claim_placement"] == "scheduler"
            driver = given["claim_driver"]
            return ClaimSatellite(driver=driver, by_scheduler=by_scheduler) if driver else None
    raise AssertionError(name)


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """The controller's options for a container's arguments and environment."""
    given = [("--identity", "POD_NAME"), ("--namespace", "POD_NAMESPACE"), ("--record", "TESSERA_RECORD")]
    extra = [part for flag, name in given if name in environment for part in (flag, environment[name])]
    values = dict(command.make_context("controller", [*arguments, *extra]).params)
    for name in ("kubeconfig", "context", "log_level"):
        values.pop(name)
    return options_from(values)


async def _run(options: Any, kubeconfig: Path | None, context: str | None) -> None:
    from tessera.clock import SystemClock
    from tessera.controller.main import run

    async with connect_transport("tessera-controller", kubeconfig, context) as (client, _):
        await run(options, client, SystemClock())
