"""What this package adds to ``tessera provisioning report``: results of experiments, and the drawn formats. Pure.

A terminal gets the results of experiments as text.

The HTML report is one file without scripts and external content, light or dark as the reader's system asks.

The tables of the largest groups are open and the others are folded. Groups beyond :data:`REPORT_TABLES` are left out of
the page; ``-o json`` has all of them. The page also compares scenarios of an experiment that differ in one property.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from tessera.provisioning.report import (
    NOTHING,
    WHERE,
    Numbers,
    ProvisioningSummary,
    WorkloadSummary,
    nodes_text,
    pods_text,
    seconds,
)
from tessera.text import html as escape
from tessera_lab.drawing.charts import NARROW, PHASES, TITLES, bars, draw_stacked_bars
from tessera_lab.experiments.results import AUTOSCALE, POLICY_RESET, Samples, contrast, read_experiments
from tessera_lab.limits import REPORT_TABLES


class ScenarioDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference of two scenarios, as texts.

    Attributes:
        scenarios: names of both.
        change: change of the mean, seconds; negative if the second is faster.
        share: the change as a share of the first.
        interval: interval of the change, at 95 % confidence.
        effect: Hedges' g.
        simulated: True if one of both is simulated.
    """

    scenarios: str
    change: str
    share: str
    interval: str
    effect: str
    simulated: bool


def differences(results: Sequence[Samples]) -> Iterator[ScenarioDifference]:
    """Compares each two scenarios of an experiment with the same operator, or with the same name."""
    counted = [each for each in results if each.samples]
    for place, first in enumerate(counted):
        for second in counted[place + 1 :]:
            alike = first.operator == second.operator or first.scenario == second.scenario
            if first.experiment == second.experiment and alike:
                yield _difference(first, second)


def _difference(first: Samples, second: Samples) -> ScenarioDifference:
    pair = contrast(first, second)
    found = pair.comparison
    known = found.low is not None and found.high is not None
    return ScenarioDifference(
        scenarios=f"{pair.slower} → {pair.faster}",
        change=_format_signed(-found.difference),
        share="-" if found.ratio is None else f"{found.ratio - 1:+.0%}",
        interval=f"{_format_signed(-(found.high or 0.0))} to {_format_signed(-(found.low or 0.0))}" if known else "-",
        effect="-" if found.effect is None else f"{found.effect:.1f}",
        simulated=first.simulated or second.simulated,
    )


def _format_signed(value: float) -> str:
    sign = "-" if value < 0 else "+"
    return f"{sign}{seconds(abs(value))}"


#: Number of open tables, if there are more.
_OPEN = 12

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--ground:#ffffff}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b3;--line:#3a424c;--ground:#0d1117}}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;color:var(--ink);
background:var(--ground);max-width:56rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}p.note{color:var(--soft)}
h2,summary{overflow-wrap:anywhere}summary{cursor:pointer;margin:.5rem 0}
figure{margin:1.2rem 0}svg{display:block;max-width:none;height:auto}.narrow{display:none}
@media (max-width:56rem){.wide{display:none}.narrow{display:block}}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal;min-width:8rem}th{color:var(--soft);font-weight:600}
tr.sum td{font-weight:600}
@media (max-width:40rem){table{font-size:13px}th,td{padding:.25rem .2rem}th{white-space:normal}
th:first-child,td:first-child{min-width:4.5rem}}
.scroll{overflow-x:auto}
@media print{body{max-width:none;margin:0}.wide{display:block}.narrow{display:none}.wide svg{width:100%}
.scroll{overflow:visible}
figure,tr{break-inside:avoid}h2{break-after:avoid}}
""".strip()

_SUMS = {
    "total": "request to workload",
    "total-provisioned": "request to cards given out",
    "total-startup": "registration to cards given out",
    "total-ready-to-workload": "Ready to workload",
    "total-labelled-to-allocatable": "facts known to cards given out",
}


_SCENARIOS = ("scenario", "order of steps", "n", "mean", "median", "95 % interval of the mean")
_DIFFERENCES = ("difference", "mean", "share", "95 % interval", "Hedges' g")


def page(
    summaries: Sequence[ProvisioningSummary],
    results: Sequence[Samples],
    made: str,
    workloads: Sequence[WorkloadSummary] = (),
) -> str:
    """The whole page.

    Args:
        summaries: summaries of records; may be empty.
        results: results of experiments; may be empty.
        made: time of the report, RFC 3339.
        workloads: summaries of pods; may be empty.
    """
    body = "\n".join(_body(summaries, results, made, workloads))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Time to a GPU</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _body(
    summaries: Sequence[ProvisioningSummary],
    results: Sequence[Samples],
    made: str,
    workloads: Sequence[WorkloadSummary],
) -> Iterator[str]:
    yield "<h1>Time to a GPU</h1>"
    yield f'<p class="note">{escape(_about(summaries, results, made, workloads))}</p>'
    if not summaries and not results and not workloads:
        yield f"<p>There are {escape(NOTHING)}.</p><p>{escape(WHERE)}.</p>"
    for experiment in dict.fromkeys((POLICY_RESET, AUTOSCALE, *(each.experiment for each in results))):
        own = [each for each in results if each.experiment == experiment]
        drawn = bars(own, experiment)
        yield from _drawing_in_two_widths(drawn, bars(own, experiment, NARROW))
        if own and not drawn:
            yield f"<h2>{escape(TITLES.get(experiment, experiment))}</h2>"
        yield from _scenarios(own) if own else ()
    yield from _drawing_in_two_widths(draw_stacked_bars(summaries), draw_stacked_bars(summaries, NARROW))
    for place, each in enumerate(summaries[:REPORT_TABLES]):
        title = f"{escape(each.title)} ({escape(nodes_text(each))})"
        folded = place >= _OPEN
        yield f"<details><summary>{title}</summary>" if folded else f"<h2>{title}</h2>"
        yield from _table("phase", (each.phases, PHASES, ""), (each.totals, _SUMS, ' class="sum"'))
        yield "</details>" if folded else ""
    if len(summaries) > REPORT_TABLES:
        more = len(summaries) - REPORT_TABLES
        rest = f"{more:,} more have fewer nodes and are left out; choose with --group, or fewer --by."
        yield f'<p class="note">{rest}</p>'
    for way in workloads:
        yield f"<h2>{escape(way.title)} ({escape(pods_text(way))})</h2>"
        yield from _table("step", (way.steps, {}, ""), ({"total": way.total}, {}, ' class="sum"'))
    if summaries:
        yield (
            '<p class="note">n is the number of nodes of which a phase is known. * With fewer than 299 nodes the 99th'
            " percentile is no more than the slowest few of them.</p>"
        )


def _about(
    summaries: Sequence[ProvisioningSummary],
    results: Sequence[Samples],
    made: str,
    workloads: Sequence[WorkloadSummary],
) -> str:
    kinds = [
        ("node", sum(each.records for each in summaries), sum(each.simulated for each in summaries)),
        ("pod", sum(each.pods for each in workloads), sum(each.simulated for each in workloads)),
        ("scenario of experiments", len(results), sum(1 for each in results if each.simulated)),
    ]
    counted = [f"{n} {name if n == 1 else _plural(name)}" for name, n, _ in kinds if n]
    every, simulated = sum(n for _, n, _ in kinds), sum(n for _, _, n in kinds)
    all_of_it = every and simulated == every
    note = "Everything here is simulated. " if all_of_it else "What is simulated says so. " if simulated else ""
    return f"{note}From {' and '.join(counted) or 'no records'}, {made}."


def _plural(name: str) -> str:
    first, _, rest = name.partition(" ")
    return f"{first}s {rest}".rstrip()


def _drawing_in_two_widths(wide: str, narrow: str) -> Iterator[str]:
    """A drawing in two widths; the page shows the one that fits the screen."""
    if wide:
        yield f'<figure class="scroll wide">{wide}</figure>'
        yield f'<figure class="scroll narrow" aria-hidden="true">{narrow}</figure>'


def _scenarios(results: Sequence[Samples]) -> Iterator[str]:
    """The numbers behind the bars, and their differences."""
    yield from _cells(_SCENARIOS, [_scenario(each) for each in results])
    found = list(differences(results))
    if found:
        rows = [
            (_mark_simulated(each.scenarios, each.simulated), each.change, each.share, each.interval, each.effect)
            for each in found
        ]
        yield from _cells(_DIFFERENCES, rows)


def _scenario(each: Samples) -> tuple[str, ...]:
    name = _mark_simulated(each.scenario, each.simulated)
    if not each.samples:
        return (name, each.operator, "0", "-", "-", "-")
    found = each.summary
    within = f"{seconds(found.low)} to {seconds(found.high)}" if found.low is not None else "needs two values"
    return (name, each.operator, str(found.n), seconds(found.mean), seconds(found.median), within)


def _mark_simulated(name: str, simulated: bool) -> str:
    return f"{name}, simulated" if simulated else name


def _cells(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f'<div class="scroll"><table><tr>{"".join(f"<th>{escape(head)}</th>" for head in heads)}</tr>'
    for row in rows:
        yield f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
    yield "</table></div>"


def _table(title: str, *parts: tuple[Mapping[str, Numbers], Mapping[str, str], str]) -> Iterator[str]:
    heads = "".join(f"<th>{head}</th>" for head in (title, "n", "mean", "p50", "p90", "p99"))
    yield f'<div class="scroll"><table><tr>{heads}</tr>'
    for named, words, marks in parts:
        yield from _rows(named, words, marks)
    yield "</table></div>"


def _rows(named: Mapping[str, Numbers], words: Mapping[str, str], marks: str) -> Iterator[str]:
    for name, each in named.items():
        star = "" if each.supported or not each.n else "*"
        cells = (str(each.n), *(seconds(value) for value in (each.mean, each.p50, each.p90)), seconds(each.p99) + star)
        row = "".join(f"<td>{cell}</td>" for cell in cells)
        yield f"<tr{marks}><td>{escape(words.get(name, name))}</td>{row}</tr>"


def result_lines(results: Sequence[Samples]) -> Iterator[str]:
    """A line for each scenario."""
    named = [(f"{each.scenario} ({each.operator}{', simulated' if each.simulated else ''})", each) for each in results]
    wide = max(len(scenario) for scenario, _ in named) + 2
    yield f"  {'experiment':<14}{'scenario':<{wide}}{'n':>4}{'mean':>9}{'median':>9}   95 % interval of the mean"
    for scenario, each in named:
        start = f"  {each.experiment:<14}{scenario:<{wide}}"
        if not each.samples:
            yield f"{start}{0:>4}"
            continue
        found = each.summary
        within = f"{seconds(found.low)} to {seconds(found.high)}" if found.low is not None else "needs two values"
        yield f"{start}{found.n:>4}{seconds(found.mean):>9}{seconds(found.median):>9}   {within}"


__all__ = ["draw", "read_experiments", "result_lines"]


def draw(
    output: str,
    summaries: Sequence[ProvisioningSummary],
    results: Sequence[Samples],
    made: str,
    workloads: Sequence[WorkloadSummary],
) -> str:
    """Returns the document.

    Args:
        output: ``html`` or ``svg``.
        summaries: summaries of records.
        results: results of experiments.
        made: time of the report, RFC 3339.
        workloads: summaries of pods.

    Raises:
        ValueError: there is not one chart.
    """
    return page(summaries, results, made, workloads) if output == "html" else _chart(summaries, results)


def _chart(summaries: Sequence[ProvisioningSummary], results: Sequence[Samples]) -> str:
    names = list(dict.fromkeys(each.experiment for each in results))
    if len(names) > 1 and not summaries:
        raise ValueError(f"an SVG shows one chart, and the files have the experiments {', '.join(names)}; use -o html")
    drawn = draw_stacked_bars(summaries) if summaries else "".join(bars(results, name) for name in names)
    if not drawn:
        raise ValueError("there is nothing to draw: no record has the begin and the end of a phase")
    return drawn
