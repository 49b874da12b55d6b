"""Makes Grafana's JSON of a board, with Grafana's own builders (grafana-foundation-sdk)."""

import itertools
import json
from collections.abc import Sequence

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BarGaugeDisplayMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    VariableRefresh,
)

from monitoring.boards.panels import Board, Kind, Panel, Variable

#: What a panel shows for missing data; never a zero.
MISSING = "n/a"
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
#: Width of a panel, of Grafana's 24 columns; and its height.
_SIZES = {Kind.CHART: (12, 8), Kind.STACK: (12, 8), Kind.NUMBER: (4, 4), Kind.BARS: (12, 8)}
_TAG = "tessera"

_AnyPanel = timeseries.Panel | stat.Panel | bargauge.Panel


def to_json(board: Board) -> str:
    """Returns the text of a board, always the same."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.meaning)
        .tags([_TAG, "gpu"])
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .refresh("1m")
        .time("now-6h", "now")
        .timezone("browser")
        .link(_other_boards())
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        made = made.with_variable(_variable(variable))
    numbers = itertools.count(1)
    for title, panels in board.rows:
        made = made.with_row(dashboard.Row(title).id(next(numbers)))
        for panel in panels:
            made = made.with_panel(_panel(panel).id(next(numbers)))
    return json.dumps(made.build(), cls=JSONEncoder, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _other_boards() -> dashboard.DashboardLink:
    link = dashboard.DashboardLink("Tessera").type(DashboardLinkType.DASHBOARDS).tags([_TAG])
    return link.as_dropdown(as_dropdown=True).keep_time(keep_time=True)


def _variable(variable: Variable) -> dashboard.QueryVariable:
    """All values are chosen at first; they match series without the label too."""
    return (
        dashboard.QueryVariable(variable.name)
        .datasource(_SOURCE)
        .query(f"label_values({variable.series}, {variable.label})")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(multi=True)
        .include_all(include_all=True)
        .all_value(".*")
    )


def _panel(panel: Panel) -> _AnyPanel:
    made = _of_kind(panel.kind)
    width, height = _SIZES[panel.kind]
    made = made.title(panel.title).datasource(_SOURCE).unit(panel.unit).no_value(MISSING).span(width).height(height)
    if panel.meaning:
        made = made.description(panel.meaning)
    for target in _targets(panel):
        made = made.with_target(target)
    return made


def _of_kind(kind: Kind) -> _AnyPanel:
    if kind is Kind.NUMBER:
        return stat.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    if kind is Kind.BARS:
        shown = bargauge.Panel().orientation(VizOrientation.HORIZONTAL).display_mode(BarGaugeDisplayMode.BASIC)
        return shown.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).min(0)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    made = (
        timeseries.Panel()
        .draw_style(GraphDrawStyle.LINE)
        .line_width(1)
        .legend(legend.show_legend(show_legend=True))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        # A gap stays a gap.
        .span_nulls(span_nulls=False)
    )
    if kind is Kind.STACK:
        made = made.fill_opacity(30).stacking(common.StackingConfig().mode(StackingMode.NORMAL).group("A"))
    return made


def _targets(panel: Panel) -> Sequence[prometheus.Dataquery]:
    """The queries with the letters by which Grafana names them; numbers and bars need only the last value."""
    made = []
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend or "__auto").ref_id(letter)
        over_time = panel.kind in {Kind.CHART, Kind.STACK}
        made.append((target.range() if over_time else target.instant()).datasource(_SOURCE))
    return made
