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
SPDY_FRAME = Limit(
    2**20,
    "bytes",
    "a frame of a client of port-forward",
    "kubectl copies 32 KiB at a time",
)
SPDY_HEADERS = Limit(
    16_384,
    "bytes",
    "the headers of one stream of port-forward, decompressed",
    "kubectl sends three short ones; a few bytes can stand for gigabytes",
)
TUNNEL_CONNECTIONS = Limit(
    20,
    "connections",
    "connections in one port-forward of the lab",
    "a browser opens six to a server",
)
TUNNELS = Limit(
    10,
    "port-forwards",
    "port-forwards at a time to the pods of one namespace of the lab",
    "each connection takes two files of the process, which often has 1,024 in all",
)
LAB_SERVER = Limit(
    1_000,
    "requests",
    "requests that wait at a simulated server",
    "more than clients wait for",
)
LAB_SERVER_TEXT = Limit(
    16_384,
    "characters",
    "the declaration of a simulated server, its answer included",
    "a page of text fits",
)
LAB_SERVER_BODY = Limit(
    2**20,
    "bytes",
    "the body of a request to a simulated server",
    "the longest prompts have a tenth",
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
