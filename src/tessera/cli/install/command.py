"""``tessera install``: applies the manifests of ``deploy/``, with the settings of NVIDIA's operator if it is given."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tessera.cli.base.connection import CommandError, cluster_options, connect, report_errors
from tessera.cli.base.console import say, say_document
from tessera.cli.base.controller_options import build_options, site_options
from tessera.cli.base.grammar import Output, output_option
from tessera.cli.base.inputs import (
    check_cards,
    check_image,
    claim_driver_option,
    claim_placement_option,
    display_name,
    read_text,
)
from tessera.cli.base.page_options import origin_option, prometheus_options, provider_options, without_token_option
from tessera.cli.base.process import run_command
from tessera.cli.install.variants import PROTECTIONS
from tessera.text import one_line

if TYPE_CHECKING:
    from tessera.cli.install.choices import SavedOptions
    from tessera.cli.install.manifests import InstallChoices

_FILE = click.Path(path_type=Path, dir_okay=False, exists=True, allow_dash=True)
_NETWORK = "write a CIDR, as in 192.0.2.0/28, or 192.0.2.7/32 for one address"


def _networks(_context: click.Context, _parameter: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the networks unchanged.

    Raises:
        click.BadParameter: one has another form, or is an address without the length of its network.
    """
    import ipaddress

    for each in texts:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise click.BadParameter(f'"{one_line(each, 100)}" is not a network; {_NETWORK}') from error
        if "/" not in each:
            raise click.BadParameter(f'"{each}" is a single address; {_NETWORK}')
    return texts


def _issuer(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[str, str] | None:
    """Returns kind and name.

    Raises:
        click.BadParameter: the text has another form.
    """
    if text is None:
        return None
    kind, _, name = text.partition("/")
    if kind not in {"Issuer", "ClusterIssuer"} or not name:
        raise click.BadParameter(f'"{one_line(text, 100)}" is neither Issuer/NAME nor ClusterIssuer/NAME')
    return kind, name


class _Install(click.Command):
    """Keeps the words of its command line, for the next run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click has it."""
        from tessera.cli.install.choices import words_of

        given = list(args)
        left = super().parse_args(ctx, args)
        ctx.meta[_WORDS] = words_of(self, given)
        return left


_WORDS = "tessera.install.words"


@click.command(cls=_Install)
@click.option(
    "--values",
    type=_FILE,
    metavar="FILE",
    help="Take over the settings in this values file or ClusterPolicy of NVIDIA's gpu-operator; - is standard input.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Namespace of the ConfigMaps that FILE names, as in helm --namespace.  [default: tessera-system, or the"
    " namespace in the status of a ClusterPolicy]",
)
@click.option(
    "--image",
    metavar="IMAGE",
    callback=check_image,
    help="Image of Tessera's pods, by tag or digest. Nobody has published one: build it and push it first. Only a lab"
    " needs none.",
)
@click.option(
    "--mig-evict",
    "evict",
    is_flag=True,
    help="Evict pods that use devices which a new layout removes, instead of waiting.",
)
@click.option(
    "--metrics-access",
    type=click.Choice(["reviewed", "open"]),
    default="reviewed",
    show_default=True,
    help="Who reads /metrics of agents and controller, which name pods of all namespaces: accounts with the right to"
    " get /metrics, by their token, or everybody.",
)
@click.option(
    "--memory-limits",
    type=click.Choice(["off", "observe", "warn", "evict", "kill"]),
    help="Action on pods that use more than their share of a card's memory.  [default: observe]",
)
@click.option(
    "--simulate",
    metavar="CARDS",
    callback=check_cards,
    help="Simulate these cards on every node with an agent, e.g. 4xA100-40GB.",
)
@claim_driver_option(
    "Serve ResourceClaims under this driver's name; gpu.nvidia.com takes the place of NVIDIA's DRA driver, which"
    " must not be installed.  [default: none]"
)
@claim_placement_option
@click.option(
    "--drivers/--no-drivers",
    default=None,
    help="Let Tessera install the drivers, or use the drivers of the hosts.  [default: --drivers if FILE names one]",
)
@click.option(
    "--replace-failed",
    type=click.IntRange(0, 100),
    default=0,
    metavar="N",
    help="Replace nodes whose cards cannot be used in time, at most N of a group in an hour.  [default: none]",
)
@click.option(
    "--device-access",
    type=click.Choice(["deny", "warn", "off"]),
    default="deny",
    show_default=True,
    help="Refuse, warn about or admit pods that use GPUs without requesting them: by NVIDIA_VISIBLE_DEVICES, by"
    " mounting device folders, or as privileged pods.",
)
@click.option(
    "--device-access-namespace",
    "device_namespaces",
    multiple=True,
    metavar="NAME",
    help="Admit such pods in this namespace, besides the system's namespaces; repeatable.",
)
@click.option(
    "--pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="NAME",
    help="Let the controller read this image pull secret in tessera-system, besides those that FILE names; repeatable.",
)
@click.option(
    "--api-server",
    "api_servers",
    multiple=True,
    callback=_networks,
    metavar="CIDR",
    help="Let only these addresses reach the webhook, by a NetworkPolicy; repeatable. List all API servers: if one is"
    " missing, pods with slices cannot be created through it.  [default: all addresses]",
)
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(PROTECTIONS),
    help="Leave out a protection, where the cluster has its own; repeatable. See docs/protections.md.",
)
@click.option(
    "--openshift/--no-openshift",
    default=None,
    help="Give Tessera's pods rights to OpenShift's security context constraints.  [default: where the cluster has"
    " them; with -o: --no-openshift]",
)
@click.option(
    "--certificate",
    type=click.Choice(["own", "cert-manager"]),
    default="own",
    show_default=True,
    help="Let the webhook make and renew its certificate, or cert-manager, which must be installed.",
)
@click.option(
    "--issuer",
    metavar="KIND/NAME",
    callback=_issuer,
    help="cert-manager's issuer of that certificate, ClusterIssuer/NAME or Issuer/NAME in tessera-system; it must write"
    " its authority into the Secret.  [default: an authority of Tessera's own]",
)
@click.option(
    "--dashboard/--no-dashboard",
    default=True,
    help="Install the live page and the API for tenants, which is behind tessera map, top, queue, health, idle and why"
    " for users with the rights of one namespace; or leave both out.  [default: install]",
)
@origin_option(
    "--dashboard-origin",
    text="Serve the page under this name, e.g. https://gpu.example.com; repeatable.",
)
@without_token_option(
    "--dashboard-without-token",
    text="Ask visitors of the page without a token to log in, or show them the page without names.",
)
@provider_options("--dashboard-", text="For the page: ")
@prometheus_options("--dashboard-", text="On the page: ")
@click.option(
    "--dashboard-keda-port",
    "keda_port",
    type=click.IntRange(1024, 65535),
    help="Serve KEDA's external scaler on this port of the page's Service, to pods of namespace keda alone; by TLS if"
    " there is a Secret tessera-keda-tls (docs/services.md).  [default: off]",
)
@site_options
@click.option(
    "--node-groups",
    type=_FILE,
    metavar="FILE",
    help="Node groups whose nodes an autoscaler can make: groups.yaml of docs/autoscaling.md, as ConfigMap"
    " tessera-node-groups; - is standard input.  [default: none]",
)
@click.option(
    "--repairs",
    type=_FILE,
    metavar="FILE",
    help="What is done about cards with faults: repairs.yaml of docs/repairs.md, as ConfigMap tessera-repairs; - is"
    " standard input.  [default: nothing but resets of empty cards]",
)
@build_options
@click.option(
    "--adopt",
    is_flag=True,
    help="Take the nodes over from NVIDIA's operator, device plugin and MIG manager: stop these, keep pods and MIG"
    " instances. Without --values, the settings are those of the ClusterPolicy in the cluster.",
)
@click.option("--reuse", is_flag=True, help="Take the options of the last run too; those given here come after them.")
@click.option("--show", is_flag=True, help="Print the last run as a command line; change nothing.")
@click.option("--dry-run", is_flag=True, help="Show the change of each object; write nothing.")
@output_option(text="Print the manifests and contact no cluster")
@cluster_options
@click.pass_context
@report_errors
def command(
    click_context: click.Context,
    /,
    *,
    values: Path | None,
    node_groups: Path | None,
    repairs: Path | None,
    adopt: bool,
    reuse: bool,
    show: bool,
    dry_run: bool,
    output: Output | None,
    kubeconfig: Path | None,
    context: str | None,
    **options: Any,
) -> None:
    """Install Tessera, or change the options of an installation.

    Without options, the command applies deploy/ as kubectl apply --server-side -k deploy/ does. With --values, the
    agents take over settings of NVIDIA's operator: its MIG strategy, its ConfigMaps of sharing profiles and MIG layouts
    with their defaults, and the environment of its device plugin. The command lists settings that have no effect;
    tessera config check FILE lists them without a change.

    Drivers: if FILE names a driver (driver.version, repository, image or usePrecompiled, without driver.enabled:
    false), the command creates the ClusterPolicy that NVIDIA's chart would create, and Tessera installs that driver. If
    FILE is a ClusterPolicy, it is applied unchanged. With --drivers and no driver in FILE, or no FILE, Tessera installs
    the chart's default driver. A ClusterPolicy or definition of another owner stays unchanged; --drivers takes the
    ClusterPolicy over.

    Options: each run sets all options again. An option that is left out returns to its default, also --values and the
    names of the ConfigMaps. To change one option, give it with --reuse, which takes the others and the files from the
    last run; --show prints them. Without --reuse, drivers alone stay, until --no-drivers removes Tessera's
    ClusterPolicy.

    From NVIDIA's operator: --adopt stops its MIG manager, feature discovery and device plugin on all nodes, waits until
    their pods are gone, and installs Tessera. Running pods keep their devices, and MIG instances stay. Driver, toolkit
    and DCGM stay with the operator. tessera uninstall gives the nodes back.

    Certificates: the file of --registry-ca becomes a ConfigMap that the controller mounts. Builds trust it too, unless
    --build-ca-config-map names another ConfigMap. To change the certificates, run tessera install again.

    New nodes: the file of --node-groups becomes the ConfigMap tessera-node-groups, which controller and webhook follow.
    A file with a mistake changes nothing. A run without the option removes what it wrote, and the
    ConfigMap if nothing of others is left in it.

    Faulty cards: the file of --repairs becomes the ConfigMap tessera-repairs, which controller and agents follow. A
    file with a mistake changes nothing; a run without the option removes it, as with --node-groups.

    Live page: kubectl -n tessera-system port-forward service/tessera-dashboard 8088 brings it to this machine; an
    ingress needs its name by --dashboard-origin. The same process answers tenants' commands, by Kubernetes' roles view
    and edit. --no-dashboard removes both.

    Device access: pods outside the system's namespaces may not use GPUs that they do not request. The API server
    refuses pods that set NVIDIA_VISIBLE_DEVICES to a device, name devices in annotations, mount device folders, or are
    privileged. With --device-access warn it admits them with a warning. --device-access-namespace exempts a namespace,
    as does its label tessera.dev/device-access=allowed.

    OpenShift: where the API server has security context constraints, Tessera's accounts get the right to use those that
    their pods need.

    \b
    Examples:
      tessera install --image REGISTRY/tessera:0.2.0
      tessera install --values values.yaml --namespace kube-system
      tessera install --values values.yaml --namespace kube-system --mig-evict
      kubectl get clusterpolicy cluster-policy -o yaml | tessera install --values -
      tessera install --values values.yaml -n kube-system -o yaml | kubectl diff -f -
      tessera install --node-groups groups.yaml --scale-up placeholder
      tessera install --reuse --dashboard
      tessera install --show
      tessera install --adopt --dry-run
      tessera install --values examples/drivers/cluster-policy.yaml
      tessera install --values values.yaml --registry-ca authority.crt --startup-deadline 20m
      tessera install --image localhost/tessera:0.2.0 --simulate 4xA100-40GB
    """
    from tessera.cli.install.choices import SavedOptions, choices_from

    if output is not None and (reuse or show):
        raise CommandError("error: --reuse and --show read the cluster, and -o contacts none; leave one of them out")
    if adopt and output is not None:
        raise CommandError("error: --adopt changes a cluster, and -o contacts none; leave one of them out")
    named = (values, node_groups, repairs)
    if named.count(Path("-")) > 1:
        text = "only one of --values, --node-groups and --repairs can be standard input; name files for the others"
        raise CommandError(f"error: {text}")
    saved = run_command(_load(kubeconfig, context)) if reuse or show else SavedOptions()
    if show:
        say(saved.command_line())
        return
    saved = saved.with_more(click_context.meta[_WORDS])
    if reuse:
        parsed = command.make_context("tessera install", list(saved.words)).params
        options = {name: parsed[name] if name != "registry_ca" else options[name] for name in options}
    file, groups, rules = (
        (saved.files[name], f"the {name} of the last run")
        if path is None and name in saved.files
        else None
        if path is None
        else (read_text(path), display_name(path))
        for name, path in zip(("values", "node_groups", "repairs"), named, strict=True)
    )
    authorities = "" if options["registry_ca"] else saved.files.get("registry_ca", "")
    texts = {"values": file, "node_groups": groups, "repairs": rules}
    if adopt and file is None and (policy := run_command(_read_policy(kubeconfig, context))):
        file = (policy, "the ClusterPolicy of the cluster")
    choices, notices = choices_from(options, file, authorities, node_groups=groups, repairs=rules)
    files = {name: each[0] for name, each in texts.items() if each}
    saved = SavedOptions(saved.words, files | ({"registry_ca": choices.authorities} if choices.authorities else {}))
    for notice in notices:
        say(f"note: {notice}", err=True)
    if output is not None:
        _show(choices, output)
        return
    run_command(_install(choices, saved, dry_run, kubeconfig, context, adopt=adopt))


async def _load(kubeconfig: Path | None, context: str | None) -> "SavedOptions":
    from tessera.cli.install.apply import FIELD_MANAGER
    from tessera.cli.install.choices import load

    async with connect(FIELD_MANAGER, kubeconfig, context) as client:
        return await load(client)


async def _read_policy(kubeconfig: Path | None, context: str | None) -> str:
    from tessera.cli.install.adoption import read_policy
    from tessera.cli.install.apply import FIELD_MANAGER

    async with connect(FIELD_MANAGER, kubeconfig, context) as client:
        return await read_policy(client)


def _show(choices: "InstallChoices", output: Output) -> None:
    from tessera.cli.install.apply import render
    from tessera.doctor.manifests import format_manifests

    objects = render(choices)
    if output.form == "yaml":
        say_document(format_manifests(objects))
        return
    names = (f"{each['kind'].lower()}/{each['metadata']['name']}" for each in objects)
    output.show({"apiVersion": "v1", "kind": "List", "items": objects}, (), names)


async def _install(
    choices: "InstallChoices",
    saved: "SavedOptions",
    dry: bool,
    kubeconfig: Path | None,
    context: str | None,
    *,
    adopt: bool,
) -> None:
    from tessera.cli.install.adoption import stop_others
    from tessera.cli.install.apply import (
        DRY_RUN,
        FIELD_MANAGER,
        apply_all,
        next_steps,
        render,
        result_line,
        summary_line,
        withdraw_removals,
    )
    from tessera.cli.install.choices import save
    from tessera.cli.install.ownership import find_owner, refuse_install
    from tessera.cli.install.preflight import (
        ask_cluster,
        immutable_config_map,
        missing_namespace,
        newer_definition,
        refuse_image,
        refuse_instaslice,
        warnings,
    )
    from tessera.clock import SystemClock

    async with connect(FIELD_MANAGER, kubeconfig, context) as client:
        if owner := await find_owner(client):
            raise CommandError(refuse_install(owner))
        if obstacle := await refuse_image(client, choices) or await refuse_instaslice(client):
            raise CommandError(f"error: {obstacle}")
        choices = await ask_cluster(client, choices)
        objects = render(choices)
        missing = await missing_namespace(client, choices)
        if missing and all(each["metadata"]["name"] != missing for each in objects if each["kind"] == "Namespace"):
            raise CommandError(
                f'error: there is no namespace "{missing}" for the ConfigMaps; create it, or name another with -n'
            )
        if obstacle := await newer_definition(client, objects) or await immutable_config_map(client, objects):
            raise CommandError(f"error: {obstacle}")
        all_done = []
        if adopt:
            async for stopped in stop_others(client, SystemClock(), dry=dry):
                say(result_line(stopped, dry=dry))
        async for done in apply_all(client, SystemClock(), objects, dry=dry, drivers=choices.ask_for_drivers):
            all_done.append(done)
            if text := result_line(done, dry=dry):
                say(text)
        async for node in withdraw_removals(client, dry=dry):
            say(f"node/{node} may be used again: the request of tessera uninstall is withdrawn{DRY_RUN if dry else ''}")
        say(summary_line(all_done, dry=dry))
        if not dry:
            await save(client, saved)
        async for warning in warnings(client, choices):
            say(f"warning: {warning}", err=True)
    steps = [] if dry else list(next_steps(all_done))
    if steps:
        say("", *steps)
