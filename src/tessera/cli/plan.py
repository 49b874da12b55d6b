"""``tessera plan``: computes layouts without a cluster and without cards."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tessera.cli.base.connection import CommandError, report_errors
from tessera.cli.base.console import say
from tessera.cli.base.grammar import Output, output_option
from tessera.text import count_noun, list_alternatives, one_line

if TYPE_CHECKING:
    from tessera.mig.geometry import Geometry, GpuModel, Placement
    from tessera.mig.layout_planning import Infeasible


@click.group()
def command() -> None:
    """Compute a layout without a cluster and without cards.

    \b
    Example:
      tessera plan mig A100-40GB 2g.10gb=2 1g.5gb=3
    """


@command.command()
@click.argument("model", metavar="[MODEL]", default="")
@click.argument("wanted", nargs=-1, metavar="[PROFILE=COUNT]...")
@output_option("tiles")
@report_errors
def mig(model: str, wanted: Sequence[str], output: Output) -> int:
    """Show how MIG slices are laid out on one card, or why they do not fit.

    The layout is the one that Tessera makes on an empty card of the model. The exit code is 1 if the slices do not fit.
    Without PROFILE=COUNT the model's profiles are listed, and without MODEL all models. MODEL is a short name, or a
    product's name as nvidia-smi and the label nvidia.com/gpu.product have it.

    \b
    Examples:
      tessera plan mig
      tessera plan mig NVIDIA-A100-SXM4-40GB
      tessera plan mig A100-40GB 2g.10gb=2 1g.5gb=3
      tessera plan mig H100-80GB 3g.40gb=2 1g.10gb=1
      tessera plan mig A30 2g.12gb=2 -o json | jq '.layout[].start'
    """
    from tessera.mig.layout_planning import Infeasible, plan_layout
    from tessera.mig.models import model_by_short_name, suggest_model

    if not model:
        return _list_models(output)
    found = model_by_short_name(model)
    others = [each for each in suggest_model(model) if each != found.short_name]
    if others:
        say(f"note: {model} is read as {found.short_name}; it could also be {list_alternatives(others)}", err=True)
    if not wanted:
        return _list_profiles(found, output)
    counts, geometry = _counts(wanted), found.geometry
    plan = plan_layout(geometry, counts)
    if output.for_programs:
        output.show(_as_json(found.short_name, geometry, plan), ())
        return 1 if isinstance(plan, Infeasible) else 0
    if isinstance(plan, Infeasible):
        raise CommandError(plan.reason)
    say(*_draw_plan(found.short_name, geometry, plan))
    return 0


def _list_models(output: Output) -> int:
    """Prints every model that can be cut, with its profiles."""
    from tessera.mig.models import MODELS

    width = max(len(each.short_name) for each in MODELS)
    output.show(
        [_model_json(each) for each in MODELS],
        (f"{each.short_name:<{width}}   {' '.join(each.profile_names)}" for each in MODELS),
        (f"model/{each.short_name}" for each in MODELS),
    )
    return 0


def _list_profiles(model: "GpuModel", output: Output) -> int:
    """Prints the profiles of one model; an error for one that cannot be cut."""
    if output.for_programs:
        output.show(_model_json(model), (), [f"model/{model.short_name}"])
        return 0
    if not model.mig_capable or model.table is None:
        say(f"{model.short_name}   {', '.join(model.product_names)}")
        _ = model.geometry  # raises with the reason
    geometry = model.geometry
    say(f"{model.short_name}   {', '.join(model.product_names)}", f"  {geometry.slots} memory slots")
    for each in geometry.profiles:
        starts = ", ".join(map(str, each.starts))
        room = f"at most {each.max_count}, {count_noun(each.size, 'slot')}, starts {starts}"
        say(f"  {each.name:<12} {each.resource:<26} {room}")
    return 0


def _model_json(model: "GpuModel") -> dict[str, object]:
    rows = model.table.profiles if model.table is not None else ()
    profiles = [
        {
            "profile": each.name,
            "resource": each.resource,
            "most": each.max_count,
            "slots": each.size,
            "starts": each.starts,
        }
        for each in rows
    ]
    return {
        "model": model.short_name,
        "products": model.product_names,
        "profiles": profiles or [{"profile": name} for name in model.profile_names],
    }


def _counts(wanted: Sequence[str]) -> Counter[str]:
    """Reads ``1g.5gb=3`` or ``3x1g.5gb``; a profile alone means one, and counts of the same profile are added."""
    from tessera.mig.names import nvml_spelling

    counts: Counter[str] = Counter()
    for each in wanted:
        name, sign, number = each.partition("=")
        times = re.fullmatch(r"([0-9]{1,6})x(.+)", name, re.ASCII)
        if times and not sign:
            number, name = times[1], times[2]
        if not name or (sign and re.fullmatch(r"[0-9]{1,6}", number, re.ASCII) is None):
            raise ValueError(f'"{one_line(each)}" is not PROFILE=COUNT; write 1g.5gb=3, for example')
        counts[nvml_spelling(name)] += int(number) if sign or times else 1
    return counts


def _as_json(model: str, geometry: "Geometry", plan: "tuple[Placement, ...] | Infeasible") -> dict[str, object]:
    if not isinstance(plan, tuple):
        core = [{"profile": profile, "count": count} for profile, count in plan.core]
        return {"model": model, "infeasible": {"rule": plan.rule, "reason": plan.reason, "core": core}}
    resources = Counter(geometry.profile(placed.profile).resource for placed in plan)
    return {"model": model, "layout": plan, "resources": dict(resources), "stillFit": _still_fit(geometry, plan)}


def _draw_plan(model: str, geometry: "Geometry", plan: "tuple[Placement, ...]") -> Iterator[str]:
    from tessera.cli.base.tiles import layout_row

    used = sum(placed.size for placed in plan)
    yield f"{model}   {used} of {geometry.slots} memory slots used"
    yield f"  {layout_row(geometry, plan)}"
    for profile in geometry.profiles:
        starts = [str(placed.start) for placed in plan if placed.profile == profile.name]
        if starts:
            yield f"  {len(starts)} x {profile.name:<12} {profile.resource:<26} starts {', '.join(starts)}"
    more = _still_fit(geometry, plan)
    yield f"  still fits, one of: {', '.join(more)}" if more else "  nothing more fits"


def _still_fit(geometry: "Geometry", plan: "tuple[Placement, ...]") -> list[str]:
    from tessera.mig.geometry import free_placements, occupancy_of

    return list(dict.fromkeys(each.profile for each in free_placements(geometry, occupancy_of(geometry, plan))))
