"""``tessera driver build``: builds an image with precompiled modules for one kernel, by a Job in the cluster."""

import asyncio
import random
from pathlib import Path

import click
import msgspec

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.base.process import run_command
from tessera.cli.driver.subjects import pool_of
from tessera.clock import SystemClock
from tessera.driver.build.builds import BuildJobs
from tessera.driver.build.job import build_config_map, build_context, build_job, job_name, local_commands
from tessera.driver.build.orders import BuildOrder, BuildSettings, make_order, target_reference
from tessera.driver.build.states import BuildPhase, BuildRetries, BuildState
from tessera.driver.driver_sets import NAMESPACE
from tessera.kube.leader_election import KubeRuntime
from tessera.kube.resources import CONFIGMAPS, JOBS, manifest


@click.command()
@click.option("--kernel", required=True, metavar="NAME", help="The nodes' kernel, uname -r.")
@click.option(
    "--os", "system", required=True, metavar="NAME", help="The nodes' ID and VERSION_ID: ubuntu22.04, rhcos4.15."
)
@click.option(
    "--version",
    "driver",
    required=True,
    metavar="NAME",
    help="Driver version, 550.54.14; on Ubuntu also a branch, 550.",
)
@click.option("--to", "repository", required=True, metavar="REPO", help="Push to registry/path/image, without a tag.")
@click.option("--arch", metavar="NAME", help="amd64 or arm64.  [default: from the kernel's name, or amd64]")
@click.option(
    "--open/--proprietary", "open_modules", default=None, help="Kind of kernel modules.  [default: by the branch]"
)
@click.option(
    "--rhcos-version",
    "rhcos",
    metavar="NAME",
    default="",
    help="RHCOS version, 415.92.202402201450-0, to find its Driver Toolkit.",
)
@click.option("--dtk-image", metavar="IMAGE", default="", help="Driver Toolkit, or another image with kernel headers.")
@click.option("--base-image", metavar="IMAGE", default="", help="Base of the built image.  [default: Ubuntu's or UBI]")
@click.option("--buildah-image", metavar="IMAGE", help="Image of the Job.")
@click.option("--downloads", metavar="URL", help="Download NVIDIA's .run files from here.")
@click.option("--nvswitch/--no-nvswitch", default=True, help="Put in the fabric manager, for nodes with NVSwitches.")
@click.option(
    "--push-secret", metavar="NAME", default="", help="Secret (dockerconfigjson) in tessera-system for the push."
)
@click.option(
    "--ca-config-map", metavar="NAME", default="", help="ConfigMap with certificate authorities of registries (*.crt)."
)
@click.option("--tls-verify/--no-tls-verify", default=True, help="Check the registries' certificates.")
@click.option("--dry-run", is_flag=True, help="Print the objects as YAML for kubectl, and create nothing.")
@click.option("--local", is_flag=True, help="Print commands that build the image on your machine, and run nothing.")
@click.option("--tool", type=click.Choice(["buildah", "podman"]), default="buildah", help="Tool of --local.")
@click.option(
    "--files",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write the Containerfile and its scripts into DIR; for --local.",
)
@click.option("--wait", is_flag=True, help="Wait for the end of the build.")
@cluster_options
@report_errors
def command(
    *,
    kernel: str,
    system: str,
    driver: str,
    repository: str,
    arch: str | None,
    open_modules: bool | None,
    rhcos: str,
    dtk_image: str,
    base_image: str,
    buildah_image: str | None,
    downloads: str | None,
    nvswitch: bool,
    push_secret: str,
    ca_config_map: str,
    tls_verify: bool,
    dry_run: bool,
    local: bool,
    tool: str,
    files: Path | None,
    wait: bool,
    kubeconfig: Path | None,
    context: str | None,
) -> None:
    """Build a driver image with precompiled modules for one kernel, and push it under the tag that nodes need.

    On Ubuntu, the image gets Canonical's signed modules; nothing is compiled. On RHEL, RHCOS and their relatives, the
    modules are compiled in the Driver Toolkit of that kernel. The build runs as a Job in namespace tessera-system, on a
    node of the image's architecture, without root. If such a Job runs already, the command follows it and creates no
    second one.

    The build uses these Secrets in tessera-system if they exist: driver-build-pull (dockerconfigjson, for base images
    and Driver Toolkit), driver-build-rhsm (org, activationkey), driver-build-signing-key (private_key.priv,
    public_key.der).

    \b
    Examples:
      tessera driver build --kernel 5.15.0-119-generic --os ubuntu22.04 --version 535 \\
        --to registry.local/nvidia/driver --dry-run
      tessera driver build --kernel 5.14.0-284.55.1.el9_2.x86_64 --os rhcos4.15 --version 550.54.14 \\
        --rhcos-version 415.92.202403191241-0 --to registry.example/driver --push-secret quay --wait
      tessera driver build ... --local --tool podman --files driver-build
    """
    nodes = msgspec.structs.replace(pool_of(kernel, system, arch), ostree=rhcos)
    if ":" in repository.rpartition("/")[2]:
        raise click.UsageError(f"--to {repository}: leave the tag out; it is made from version, kernel and system")
    chosen = BuildSettings(
        nvswitch=nvswitch, push_secret=push_secret, ca_config_map=ca_config_map, tls_verify=tls_verify
    )
    given = {"buildah_image": buildah_image, "downloads": downloads}
    chosen = msgspec.structs.replace(chosen, **{name: value for name, value in given.items() if value})
    wanted = make_order(
        nodes,
        version=driver,
        target=target_reference(repository.rstrip("/"), driver, nodes),
        module_type={None: "auto", True: "open", False: "proprietary"}[open_modules],
        settings=chosen,
        base_image=base_image,
        builder_image=dtk_image,
    )
    if files is not None:
        _write(wanted, files)
    if local:
        say_document(_local(wanted, tool, files))
    elif dry_run:
        say_document(_manifests_to_run(wanted, tool))
    else:
        run_command(_build(wanted, kubeconfig, context, wait=wait))


def _write(order: BuildOrder, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in build_context(order.family).items():
            (folder / name).write_text(text)
    except OSError as error:
        text = f"{error.filename or folder} cannot be written: {error.strerror or error}"
        raise CommandError(f"error: --files {folder}: {text}; name a folder that you may write into") from error


def _local(order: BuildOrder, tool: str, files: Path | None) -> str:
    commands = local_commands(order, tool=tool, folder=str(files or "driver-build"))
    hint = "" if files else "# Add --files driver-build to write the Containerfile and its scripts there.\n"
    return f"# On a machine of architecture {order.pool.architecture}:\n{hint}{commands}"


def _manifests_to_run(order: BuildOrder, tool: str) -> str:
    """The ConfigMap with the Containerfile and the Job as YAML; the local commands as comments."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes texts of several lines as blocks."""

    Dumper.add_representer(
        str,
        lambda dumper, text: dumper.represent_scalar(
            "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
        ),
    )
    objects = [
        manifest(CONFIGMAPS.as_dicts(), build_config_map(order.family)),
        manifest(JOBS.as_dicts(), build_job(order, 1)),
    ]
    for each in objects:
        each["metadata"] = {"namespace": NAMESPACE, **each["metadata"]}
    remarks = [
        f"{order.target}",
        f"for {order.pool.text}. Without the cluster:",
        *_local(order, tool, None).splitlines(),
    ]
    head = "".join(f"# {line}\n" for line in remarks)
    return head + "".join(
        "---\n" + yaml.dump(each, Dumper=Dumper, sort_keys=False, width=4096, allow_unicode=True) for each in objects
    )


async def _build(order: BuildOrder, kubeconfig: Path | None, context: str | None, *, wait: bool) -> None:
    async with connect("tessera-driver", kubeconfig, context) as client:
        # A user's command does not wait for the pause after an earlier failure.
        runtime = KubeRuntime(client=client, clock=SystemClock(), rng=random.Random())
        builds = BuildJobs(runtime, retries=BuildRetries(pause=0.0, attempts=9999))
        await follow(builds, order, wait=wait)


async def follow(builds: BuildJobs, order: BuildOrder, *, wait: bool) -> None:
    """Creates the Job, or finds the one that exists, and with ``wait`` follows it to its end.

    Raises:
        CommandError: the API server refuses the Job, or the build failed.
    """
    changed = asyncio.Event()
    builds.listen(lambda _target, _phase: changed.set())
    running = asyncio.ensure_future(builds.run())
    try:
        following = asyncio.ensure_future(_follow_job(builds, order, changed, wait=wait))
        await asyncio.wait({running, following}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            following.cancel()
            running.result()
        await following
    finally:
        running.cancel()
        await asyncio.wait({running})


async def _follow_job(builds: BuildJobs, order: BuildOrder, changed: asyncio.Event, *, wait: bool) -> None:
    await builds.wait_synced()
    before = builds.state(order)
    builds.set_orders([order])
    failures = before.attempts if before.phase is BuildPhase.FAILED else 0
    found = await _wait_for_attempt(builds, order, changed, failures)
    name = f"Job tessera-system/{job_name(order, found.attempts)}"
    say(f"{name}: {order.target} for {order.pool.text}")
    if before.phase is BuildPhase.DONE:
        say("This Job has built the image before; delete the Job to build again.")
    builds.set_orders([])  # no second attempt after a failure; the user decides
    printed = ""
    while wait and found.phase is BuildPhase.RUNNING:
        if found.text and found.text != printed:
            say(found.text)
            printed = found.text
        changed.clear()
        await changed.wait()
        found = builds.state(order)
    _print_outcome(order, name, found)


async def _wait_for_attempt(builds: BuildJobs, order: BuildOrder, changed: asyncio.Event, failures: int) -> BuildState:
    """Waits for a new attempt and returns the state.

    Raises:
        CommandError: the API server refuses the Job.
    """
    while True:
        changed.clear()
        refusal = builds.refusal(order)
        if refusal:
            raise CommandError(f"error: {refusal}")
        found = builds.state(order)
        if found.attempts > failures:
            return found
        await changed.wait()


def _print_outcome(order: BuildOrder, name: str, found: BuildState) -> None:
    if found.phase is BuildPhase.DONE:
        say(f"pushed {order.target}" + (f" as {found.digest}" if found.digest else ""))
    elif found.phase is BuildPhase.FAILED:
        raise CommandError(f"error: {name} failed: {found.text}")
    elif found.phase is BuildPhase.NONE:
        raise CommandError(f"error: {name} was deleted")
    else:
        say(f"kubectl logs -n tessera-system -f job/{name.rpartition('/')[2]}")
