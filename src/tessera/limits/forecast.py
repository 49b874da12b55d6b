"""Limits on the forecast of starts: the history of leases, the simulation, and what is written about waiting pods."""

from tessera.limits import Limit

LIFE_RECORD = Limit(
    700 * 1024,
    "bytes",
    "that history in its ConfigMap; its oldest parts are not written beyond that; a larger one is not read",
    "a ConfigMap has at most 1 MiB",
)
FORECAST_STEPS = Limit(
    400_000,
    "steps",
    "ends and starts of pods in all simulated futures of one forecast",
    "about a second, in pieces; what was simulated until then counts",
)
FORECAST_PODS = Limit(
    1_000,
    "pods",
    "waiting pods, the first in their order that compete for room, whose start is simulated; the others have a "
    "position alone",
    "those behind start when these have started",
)
QUEUE_PODS = Limit(
    5_000,
    "pods",
    "waiting pods on the controller's page `/queue`; the number of others is shown",
    "nobody reads more; each has some 500 bytes",
)
BLOCKER_STEPS = Limit(
    100_000,
    "steps",
    "steps of searches for the pods that stand before others on that page, where the fewest are more than three",
    "about a second, in pieces; pods whose turn comes later have no names before them",
)
QUEUE_PAGE = Limit(
    16 * 2**20,
    "bytes",
    "that page, as a command reads it",
    "5,000 pods have 3 MiB",
)
KUEUE_READ = Limit(
    20_000,
    "workloads",
    "waiting Workloads of all namespaces that `tessera queue -A` and the live page read; that there are more is shown",
    "each is kept, without its pods",
)
KUEUE_LISTED = Limit(
    50_000,
    "workloads",
    "Workloads that are listed to find these, also those that do not wait; beyond it, the page lists the namespaces of "
    "its readers by themselves",
    "100 pages of a list, and as many for namespaces by themselves",
)
KUEUE_NAMESPACES = Limit(
    50,
    "namespaces",
    "namespaces whose queues of Kueue `tessera queue -A` and the live page show; the number of others is shown",
    "each takes a request for each of its queues; the page takes those of its readers first",
)
KUEUE_WORKLOADS = Limit(
    200,
    "workloads",
    "Workloads of one namespace that wait in Kueue, on the live page; the number of others is shown",
    "a reader gets a document of some 300 bytes for each",
)
KUEUE_SHOWN = Limit(
    1_000,
    "workloads",
    "Workloads of all namespaces that wait in Kueue, on the live page; large namespaces have equal parts",
    "most change their place with each admission, and go to all readers then",
)
KUEUE_PLACES = Limit(
    10_000,
    "places",
    "places in one queue of Kueue that `tessera why` and `tessera queue` read; the live page reads the first 1,000",
    "ten answers of Kueue's visibility API",
)
KUEUE_ANSWERS = Limit(
    200,
    "answers",
    "answers of Kueue's visibility API in one reading; places that they do not have are not shown",
    "50 namespaces with four queues each",
)
JOBS_READ = Limit(
    100,
    "Jobs",
    "Jobs whose deadlines are read before one forecast; the others follow with the next",
    "each is a request; a Job is read once for its pods that have started",
)
QUEUE_WRITES = Limit(
    200,
    "writes",
    "conditions of waiting pods that one forecast writes, those that were written longest ago first",
    "a few writes a second; the others follow with the next forecast",
)
