"""Checks MIG layouts: the models that each fits, and its tiles on nodes of given cards.

A layout is wrong if it fits no model that its filters select, or if it requests devices that Tessera makes on no card.
A layout for other models than the given ones is not wrong: files hold layouts for every card of a cluster.
"""

from collections.abc import Iterator, Sequence
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
from tessera.api.names import resource_of
from tessera.api.problems import FileRefused, Problem
from tessera.cli.base.tiles import layout_row
from tessera.cli.config.part_report import PartReport, TrialNode, report_refused
from tessera.mig.geometry import GpuModel, Placement
from tessera.mig.layout_planning import Infeasible, plan_layout
from tessera.mig.models import MODELS

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
