"""The report as one HTML file: no scripts, nothing from elsewhere, light or dark as the reader has it. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from tessera.provisioning.experiments.results import AUTOSCALE, POLICY_RESET, Samples
from tessera.provisioning.report.charts import PHASES, bars, stacked
from tessera.provisioning.report.summary import Numbers, Summary, WorkloadSummary
from tessera.provisioning.report.table import nodes_text, pods_text, seconds

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--line:#d0d7de;--ground:#ffffff}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9da7b3;--line:#3a424c;--ground:#0d1117}}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",Arial,sans-serif;color:var(--ink);
background:var(--ground);max-width:56rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{font-size:1.15rem;margin-top:2.2rem}p.note{color:var(--soft)}
svg{max-width:100%;height:auto}
table{border-collapse:collapse;width:100%;margin:.6rem 0}
th,td{padding:.25rem .6rem;border-bottom:1px solid var(--line);text-align:right}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}
tr.sum td{font-weight:600}
.scroll{overflow-x:auto}
""".strip()

_SUMS = {
    "total": "request to workload",
    "total-provisioned": "request to cards given out",
    "total-startup": "registration to cards given out",
    "total-after-ready": "Ready to workload",
}


def page(
    summaries: Sequence[Summary],
    results: Sequence[Samples],
    made: str,
    workloads: Sequence[WorkloadSummary] = (),
) -> str:
    """The whole page.

    Args:
        summaries: of records; may be empty.
        results: of experiments; may be empty.
        made: when, RFC 3339.
        workloads: of pods; may be empty.
    """
    body = "\n".join(_body(summaries, results, made, workloads))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Time to a GPU</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _body(
    summaries: Sequence[Summary], results: Sequence[Samples], made: str, workloads: Sequence[WorkloadSummary]
) -> Iterator[str]:
    yield "<h1>Time to a GPU</h1>"
    yield f'<p class="note">{escape(_about(summaries, results, made))}</p>'
    for experiment in dict.fromkeys((POLICY_RESET, AUTOSCALE, *(each.experiment for each in results))):
        yield from _drawn(bars(results, experiment))
    yield from _drawn(stacked(summaries))
    for each in summaries:
        yield f"<h2>{escape(each.title)} ({escape(nodes_text(each))})</h2>"
        yield from _table("phase", (each.phases, PHASES, ""), (each.totals, _SUMS, ' class="sum"'))
    for way in workloads:
        yield f"<h2>{escape(way.title)} ({escape(pods_text(way))})</h2>"
        yield from _table("step", (way.steps, {}, ""), ({"total": way.total}, {}, ' class="sum"'))
    if summaries:
        yield (
            '<p class="note">n is the number of nodes of which a phase is known. * With fewer than 299 nodes the 99th'
            " percentile is no more than the slowest few of them.</p>"
        )


def _about(summaries: Sequence[Summary], results: Sequence[Samples], made: str) -> str:
    nodes = sum(each.records for each in summaries)
    counted = [f"{nodes} nodes"] if summaries else []
    counted += [f"{len(results)} scenarios of experiments"] if results else []
    simulated = sum(each.simulated for each in summaries) + sum(1 for each in results if each.simulated)
    every = simulated == nodes + len(results)
    told = "Everything here is simulated. " if every else "What is simulated says so. " if simulated else ""
    return f"{told}From {' and '.join(counted) or 'no records'}, {made}."


def _drawn(svg: str) -> Iterator[str]:
    if svg:
        yield f"<figure style='margin:1.2rem 0'>{svg}</figure>"


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
