"""Limits on input of the simulated cluster."""

from tessera.limits import Limit

LAB_NESTING = Limit(
    100,
    "levels",
    "an object that the lab's API server takes",
    "no kind of Kubernetes nests half as deep",
)
LAB_VALUES = Limit(
    3 * 2**20,
    "values",
    "values in an object that the lab's API server takes, aliases of YAML written out",
    "a body has no more bytes; ten lines of aliases can stand for billions",
)
LAB_NODES = Limit(
    1_000,
    "nodes",
    "nodes of a lab",
    "each runs a simulated kubelet",
)
LAB_CARDS = Limit(
    64,
    "cards",
    "cards of a lab's node",
    "four times the largest machine",
)
LAB_QUESTION = Limit(
    65_536,
    "bytes",
    "a request to a lab's control socket",
    "the names of an image's pull secrets fit",
)
POD_PAGE = Limit(
    32 * 2**20,
    "bytes",
    "a page of a pod that the API server's proxy passes on",
    "the metrics of a node with 64 cards have 4 MiB",
)
LAB_XID = Limit(
    999,
    "XIDs",
    "an XID that a lab's card reports",
    "NVIDIA's catalogue ends below 200",
)
LAB_SCENARIO = Limit(
    32_768,
    "characters",
    "a scenario of a lab",
    "a hundred steps fit; the request to the control socket has twice as many bytes",
)
LAB_SCENARIO_PARTS = Limit(
    100,
    "entries",
    "series of pods, rules and steps of a scenario, each",
    "they are looked through every five seconds",
)
LAB_SCENARIO_PODS = Limit(
    500,
    "pods",
    "pods of a series that exist at a time",
    "a lab runs as many within seconds",
)
REPORT_BARS = Limit(
    30,
    "bars",
    "bars in a chart of the report; those of the most nodes are drawn",
    "more cannot be told apart",
)
REPORT_TABLES = Limit(
    200,
    "tables",
    "tables in the page of the report; those of the most nodes stay",
    "a page of more is too long to read; `--group` and `--by` choose",
)
