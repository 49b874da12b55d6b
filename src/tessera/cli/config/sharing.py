"""Explains and checks a sharing profile, also for nodes of given cards without MIG devices.

MPS cannot share MIG devices. The nodes tried here have none, so this mistake is found from the entry's names alone;
other reports about the same entry are then left out.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.api.names import profile_of
from tessera.api.problems import FileRefused, Problem
from tessera.api.sharing.advertisement import GPU_RESOURCE, make_advertisement
from tessera.api.sharing.devices import SHARING_RULES, Advertisement, GpuDescription
from tessera.api.sharing.profile import Flags, MigStrategy, SharedBlock, SharedResource, SharingProfile, client_share
from tessera.api.sharing.profile_parser import parse_profile_document
from tessera.cli.config.part_report import PartReport, TrialNode, report_refused


def check_sharing(document: Any, name: str, nodes: Sequence[TrialNode]) -> PartReport:
    """Checks a parsed sharing profile."""
    try:
        profile = parse_profile_document(document)
    except FileRefused as refused:
        return report_refused(name, "sharing profile", refused)
    on_mig = list(_whole_only_on_mig(profile))
    means, problems = list(_profile_means(profile)), list(map(str, on_mig))
    notices = list(map(str, profile.notices))
    for node in nodes:
        try:
            offer = make_advertisement(_gpus(node), profile, profile.flags.mig_strategy or MigStrategy.MIXED)
        except FileRefused as refused:
            others = (problem for problem in refused.problems if not _within(problem.path, on_mig))
            problems.extend(f"on {node}: {problem}" for problem in others)
            continue
        notices.extend(
            f"on {node} without MIG: {notice}" for notice in offer.notices if not _within(notice.path, on_mig)
        )
        counts = ", ".join(f"{resource} {count}" for resource, count in offer.counts.items())
        means.append(f"on {node} without MIG: {counts}")
        means.extend(_client_shares(offer, node))
    return PartReport(
        name=name, kind="sharing profile", means=tuple(means), notices=tuple(notices), problems=tuple(problems)
    )


def _whole_only_on_mig(profile: SharingProfile) -> Iterator[Problem]:
    """The entries that share MIG devices by a kind that shares whole cards only, such as MPS."""
    for rules, entry in (
        (rules, entry)
        for block in profile.blocks
        if (rules := SHARING_RULES[block.kind]).whole_cards_only
        for entry in block.resources
    ):
        devices = [ref for ref in entry.devices.refs if ":" in ref or ref.startswith("MIG-")]
        if devices:
            which = f"{'MIG device' if len(devices) == 1 else 'MIG devices'} {', '.join(devices)}"
        elif _means_mig(entry.name, profile):
            which = f"{entry.name}, which are MIG devices"
        else:
            continue
        text = (
            f"{rules.title} would share {which}; {rules.title} shares whole cards only:"
            " use timeSlicing, or name whole cards"
        )
        yield Problem(entry.path, text)


def _means_mig(resource: str, profile: SharingProfile) -> bool:
    """Returns True if a resource stands for MIG devices and for no whole card."""
    of_cards = {each.name for each in profile.gpus} or {GPU_RESOURCE}
    return resource not in of_cards and (
        bool(profile_of(resource)) or any(each.name == resource for each in profile.mig)
    )


def _within(path: str, refused: Sequence[Problem]) -> bool:
    """Returns True if a path is the path of a refused entry, or lies below it."""
    return any(path == each.path or path.startswith(f"{each.path}.") for each in refused)


def _profile_means(profile: SharingProfile) -> Iterator[str]:
    yield from _flags_mean(profile.flags)
    for each in (*profile.gpus, *profile.mig):
        yield f"devices like {each.pattern} are {each.name}"
    for block in profile.blocks:
        for entry in block.resources:
            yield _entry_means(block, entry)
    if not profile.blocks:
        yield "nothing is shared"


def _flags_mean(flags: Flags) -> Iterator[str]:
    """The flags that the file sets; the installation sets the others."""
    if flags.mig_strategy is not None:
        yield f"MIG strategy {flags.mig_strategy.value}"
    if flags.device_list_strategies is not None:
        yield f"containers get their devices by {', '.join(flags.device_list_strategies)}"
    if flags.device_ids_are_uuids is not None:
        yield f"containers name each device by its {'uuid' if flags.device_ids_are_uuids else 'index'}"
    if flags.cdi_annotation_prefix is not None:
        yield f"annotations of CDI begin with {flags.cdi_annotation_prefix}"
    if flags.pass_device_specs is not None:
        yield f"answers to kubelet {'list' if flags.pass_device_specs else 'do not list'} the device nodes"
    if flags.dev_root is not None or flags.driver_root is not None:
        yield f"device nodes are in {flags.dev_root or flags.driver_root} on the host"
    if not flags.timestamp:
        yield "the node gets no label with the time of its first labels"
    if flags.allocation_policy is not None:
        yield f"several devices of one container are {flags.allocation_policy.value}"


def _entry_means(block: SharedBlock, entry: SharedResource) -> str:
    how = SHARING_RULES[block.kind].title
    which = f"each {entry.name}"
    if entry.devices.count is not None:
        which = f"each of the first {entry.devices.count} {entry.name}"
    elif entry.devices.refs:
        which = f"{entry.name} {', '.join(entry.devices.refs)}"
    most = "; a container may ask for 1" if block.one_per_request else ""
    return f"{how}: {which} becomes {entry.replicas} of {entry.advertised}{most}"


def _client_shares(offer: Advertisement, node: TrialNode) -> Iterator[str]:
    """The share of one client of each resource that limits it; one line for each number of replicas."""
    for resource, offered in offer.resources.items():
        divided = {
            device.replicas for device in offered.devices if device.shared and SHARING_RULES[device.kind].limits_threads
        }
        for replicas in sorted(divided):
            share = client_share(node.model.memory_mib, replicas)
            part = f"{share.memory_mib} MiB, {share.thread_percent} % of the threads"
            yield f"on {node}, each client of {resource}: {part}"


def _gpus(node: TrialNode) -> list[GpuDescription]:
    model = node.model
    return [
        GpuDescription(
            uuid=f"GPU-{n}", index=n, product=model.product_name, compute_capability=model.compute_capability
        )
        for n in range(node.count)
    ]
