"""What a sharing profile means, in words, and on nodes of given cards that are not cut."""

from collections.abc import Iterator, Sequence
from typing import Any

from tessera.api.documents import FileRefused
from tessera.api.sharing.config import Flags, MigStrategy, SharedBlock, SharedResource, SharingKind, SharingProfile
from tessera.api.sharing.devices import Gpu
from tessera.api.sharing.grammar import profile_from
from tessera.api.sharing.mps import client_share
from tessera.api.sharing.offer import make_offer
from tessera.cli.checks.part import Node, Part, refused_part


def check_sharing(document: Any, name: str, nodes: Sequence[Node]) -> Part:
    """Judges a sharing profile that is loaded already."""
    try:
        profile = profile_from(document)
    except FileRefused as refused:
        return refused_part(name, "sharing profile", refused)
    means, problems = list(_profile_means(profile)), list[str]()
    notices = list(map(str, profile.notices))
    for node in nodes:
        try:
            offer = make_offer(_gpus(node), profile, profile.flags.mig_strategy or MigStrategy.MIXED)
        except FileRefused as refused:
            problems.extend(f"on {node}: {problem}" for problem in refused.problems)
            continue
        notices.extend(f"on {node}, not cut: {notice}" for notice in offer.notices)
        counts = ", ".join(f"{resource} {count}" for resource, count in offer.counts.items())
        means.append(f"on {node}, not cut: {counts}")
        means.extend(_client_shares(profile, node))
    return Part(name=name, kind="sharing profile", means=tuple(means), notices=tuple(notices), problems=tuple(problems))


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
    """What the file decides instead of leaving it to the installation."""
    if flags.mig_strategy is not None:
        yield f"MIG strategy {flags.mig_strategy.value}"
    if flags.device_list_strategies is not None:
        yield f"containers learn of their devices by {', '.join(flags.device_list_strategies)}"
    if flags.device_ids_are_uuids is not None:
        yield f"containers are told each device's {'uuid' if flags.device_ids_are_uuids else 'index'}"
    if flags.cdi_annotation_prefix is not None:
        yield f"annotations of CDI begin with {flags.cdi_annotation_prefix}"
    if flags.pass_device_specs is not None:
        yield f"kubelet is {'told' if flags.pass_device_specs else 'not told'} the device nodes"
    if flags.dev_root is not None or flags.driver_root is not None:
        yield f"device nodes lie below {flags.dev_root or flags.driver_root} on the host"
    if not flags.timestamp:
        yield "no label tells when labels were first made"
    if flags.allocation_policy is not None:
        yield f"several devices of one container are {flags.allocation_policy.value}"


def _entry_means(block: SharedBlock, entry: SharedResource) -> str:
    how = "MPS" if block.kind is SharingKind.MPS else "time slices"
    which = f"each {entry.name}"
    if entry.devices.count is not None:
        which = f"each of the first {entry.devices.count} {entry.name}"
    elif entry.devices.refs:
        which = f"{entry.name} {', '.join(entry.devices.refs)}"
    most = "; a container may ask for 1" if block.one_per_request else ""
    return f"{how}: {which} becomes {entry.replicas} of {entry.advertised}{most}"


def _client_shares(profile: SharingProfile, node: Node) -> Iterator[str]:
    for entry in profile.mps.resources if profile.mps else ():
        share = client_share(node.model.memory_mib, entry.replicas)
        part = f"{share.memory_mib} MiB, {share.thread_percent} % of the threads"
        yield f"on {node}, each client of {entry.advertised}: {part}"


def _gpus(node: Node) -> list[Gpu]:
    model = node.model
    return [
        Gpu(uuid=f"GPU-{n}", index=n, product=model.product_name, compute_capability=model.compute_capability)
        for n in range(node.count)
    ]
