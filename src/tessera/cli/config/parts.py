"""Checks the parts of a file, sharing profiles and MIG layouts, also on nodes of given cards; and the report on a part.

A layout is wrong if it fits no model that its filters select, or if it requests devices that Tessera makes on no card.
A layout for other models than the given ones is not wrong: files hold layouts for every card of a cluster.

MPS cannot share MIG devices. The nodes on which a sharing profile is tried have none, so this mistake is found from the
entry's names alone; other reports about the same entry are then left out.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tessera.api.mig_layouts import (
    DeviceFilter,
    LayoutEntry,
    MigCard,
    MigLayouts,
    parse_layouts_document,
    resolve_targets,
)
from tessera.api.names import profile_of, resource_of
from tessera.api.problems import FileRefused, Notice, Problem
from tessera.api.sharing.advertisement import GPU_RESOURCE, make_advertisement
from tessera.api.sharing.devices import SHARING_RULES, Advertisement, GpuDescription
from tessera.api.sharing.profile import Flags, MigStrategy, SharedBlock, SharedResource, SharingProfile, client_share
from tessera.api.sharing.profile_parser import parse_profile_document
from tessera.cli.base.tiles import layout_row
from tessera.mig.geometry import GpuModel, Placement
from tessera.mig.layout_planning import Infeasible, plan_layout
from tessera.mig.models import MODELS, model_by_short_name


class TrialNode(msgspec.Struct, frozen=True):
    """A node to try the file on: ``count`` cards of one model."""

    count: int
    model: GpuModel

    def __str__(self) -> str:
        return f"{self.count} x {self.model.short_name}"


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report on one part of a file, such as a sharing profile or a file of MIG layouts.

    Attributes:
        name: the part's place, ``configmap/key``; ``file`` for the whole file.
        kind: ``sharing profile``, ``MIG layouts``, ``values of gpu-operator``, ``ClusterPolicy`` or another kind.
        means: lines that say the part's effect.
        notices: settings that have no effect, or less than they seem to have.
        problems: mistakes.
        used: True if Tessera follows settings of this kind; the effect of others is not explained.
    """

    name: str
    kind: str
    means: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    used: bool = True

    @property
    def verdict(self) -> str:
        """``wrong``, ``right`` or ``not used``."""
        if self.problems:
            return "wrong"
        return "right" if self.used else "not used"

    def with_notices(self, notices: Iterable[Notice]) -> "PartReport":
        """The report with these notices before its own."""
        return msgspec.structs.replace(self, notices=(*map(str, notices), *self.notices))


def parse_node(text: str) -> TrialNode:
    """Reads ``A100-40GB`` or ``4xA100-40GB``.

    Raises:
        ValueError: no model has that name.
    """
    count, x, name = text.partition("x")
    if x and count.isdecimal() and int(count) > 0:
        return TrialNode(int(count), model_by_short_name(name))
    return TrialNode(1, model_by_short_name(text))


def report_refused(name: str, kind: str, refused: FileRefused) -> PartReport:
    """The report on a part that could not be read."""
    return PartReport(name=name, kind=kind, problems=tuple(map(str, refused.problems)))


#: The vendor in every PCI id of NVIDIA's cards.
_NVIDIA = 0x10DE


def check_layouts(document: Any, name: str, nodes: Sequence[TrialNode]) -> PartReport:
    """Checks a parsed file of MIG layouts."""
    try:
        found = parse_layouts_document(document)
    except FileRefused as refused:
        return report_refused(name, "MIG layouts", refused)
    problems = [str(each) for entries in found.layouts.values() for entry in entries for each in _problems(entry)]
    return PartReport(
        name=name,
        kind="MIG layouts",
        means=tuple(_layouts_mean(found, nodes)),
        notices=tuple(map(str, found.notices)),
        problems=tuple(problems),
    )


def _layouts_mean(found: MigLayouts, nodes: Sequence[TrialNode]) -> Iterator[str]:
    for name, entries in found.layouts.items():
        if not nodes:
            yield f"{name}: {_fits(entries)}"
        for node in nodes:
            yield from _layout_on(name, entries, node)


def _fits(entries: Sequence[LayoutEntry]) -> str:
    """The models that the whole layout fits, as text."""
    if not any(entry.counts for entry in entries):
        return "MIG mode on, without instances" if any(entry.mig_enabled for entry in entries) else "MIG mode off"
    models = [model.short_name for model in MODELS if _fits_on(model, entries)]
    if models:
        return f"fits {', '.join(models)}"
    return "cannot be made on any node" if any(map(_find_unsupported, entries)) else "fits no model that Tessera knows"


def _fits_on(model: GpuModel, entries: Sequence[LayoutEntry]) -> bool:
    selecting = [entry for entry in entries if _selects(entry, model)]
    return bool(selecting) and all(_possible_on(entry, model) for entry in selecting)


def _layout_on(name: str, entries: Sequence[LayoutEntry], node: TrialNode) -> Iterator[str]:
    try:
        targets = resolve_targets(entries, _cards(node.model, node.count)).targets
    except FileRefused as refused:
        reported = {problem for entry in entries for problem in _find_unsupported(entry)}
        texts = [str(problem) for problem in refused.problems if problem not in reported]
        yield f"{name} on {node}: {'; '.join(texts) or 'cannot be made'}"
        return
    if not node.model.mig_capable:
        yield f"{name} on {node}: no MIG devices; these cards have no MIG and stay whole"
        return
    table = node.model.table
    if table is None:
        yield f"{name} on {node}: unknown; the model's placements are not published, only a real card reports them"
        return
    totals: dict[str, int] = {}
    rows: dict[str, list[int]] = {}
    for target in targets:
        plan = plan_layout(table, target.counts) if target.counts else ()
        if isinstance(plan, Infeasible):
            yield f"{name} on {node}: does not fit: {plan.reason}"
            return
        row = layout_row(table, plan) if target.mig_enabled else "[whole card]"
        rows.setdefault(row, []).append(target.card.index)
        _add(totals, plan)
    counts = ", ".join(f"{resource} {count}" for resource, count in sorted(totals.items()))
    yield f"{name} on {node}: {counts or 'no MIG devices'}"
    for row, indexes in rows.items():
        yield f"  GPU {', '.join(map(str, indexes))}  {row}"


def _add(totals: dict[str, int], plan: Sequence[Placement]) -> None:
    for placed in plan:
        resource = resource_of(placed.profile)
        totals[resource] = totals.get(resource, 0) + 1


def _cards(model: GpuModel, count: int) -> list[MigCard]:
    pci = int(model.pci_device_ids[0], 16) if model.pci_device_ids else 0
    return [
        MigCard(
            uuid=f"GPU-{n}",
            index=n,
            product=model.product_name,
            pci_device_id=pci << 16 | _NVIDIA,
            mig_capable=model.mig_capable,
        )
        for n in range(count)
    ]


def _selects(entry: LayoutEntry, model: GpuModel) -> bool:
    """Returns True if the entry's filters select a card of the model."""
    return not entry.filters or any(_filter_selects(each, model) for each in entry.filters)


def _filter_selects(each: DeviceFilter, model: GpuModel) -> bool:
    if each.device is not None:
        return each.device & 0xFFFF == _NVIDIA and f"{each.device >> 16:04X}" in model.pci_device_ids
    return any(
        each.matches(MigCard(uuid="", index=0, product=product, pci_device_id=0)) for product in model.product_names
    )


def _possible_on(entry: LayoutEntry, model: GpuModel) -> bool:
    if not _selects(entry, model) or model.table is None:
        return False
    return not entry.counts or not isinstance(plan_layout(model.table, entry.counts), Infeasible)


def _problems(entry: LayoutEntry) -> Iterator[Problem]:
    """The mistakes of an entry on every node; an unsupported entry is not tried on the models."""
    yield from _find_unsupported(entry) or _impossible(entry)


def _find_unsupported(entry: LayoutEntry) -> Sequence[Problem]:
    """Requests that every node refuses, such as a compute instance that is a part of its GPU instance."""
    card = MigCard(uuid="", index=0, product="", pci_device_id=0)
    try:
        resolve_targets([msgspec.structs.replace(entry, devices=None, filters=())], [card])
    except FileRefused as refused:
        return refused.problems
    return ()


def _impossible(entry: LayoutEntry) -> Iterator[Problem]:
    """The reason why an entry fits no known model that it selects; nothing if it fits one."""
    models = [model for model in MODELS if _selects(entry, model)]
    if not entry.counts or not models or any(_possible_on(entry, model) for model in models):
        return
    if any(model.table is None and set(entry.counts) <= set(model.profile_names) for model in models):
        return  # a model whose placements are not published; only its node knows them
    plans = [plan_layout(model.table, entry.counts) for model in models if model.table is not None]
    refusals = [plan for plan in plans if isinstance(plan, Infeasible)]
    conflict = next((plan.reason for plan in refusals if plan.rule != "unknown profile"), None)
    together = " together" if len(entry.counts) > 1 else ""
    nobody = f"no model that Tessera knows has {', '.join(entry.counts)}{together}"
    yield Problem(f"{entry.path}.mig-devices", conflict or nobody)


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
