"""What this package adds to ``tessera provisioning report``: results of experiments, and the drawn formats. Pure."""

from collections.abc import Sequence

from tessera.provisioning.report.summary import ProvisioningSummary, WorkloadSummary
from tessera_lab.drawing.charts import bars, draw_stacked_bars
from tessera_lab.drawing.page import page
from tessera_lab.drawing.results_table import result_lines
from tessera_lab.experiments.results import Samples, read_experiments

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
