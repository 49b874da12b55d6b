"""Limits on the forecast of starts: the history of leases, the simulation, and what is written about waiting pods."""

from tessera.limits import Limit

LIFE_SAMPLES = Limit(
    200,
    "leases",
    "leases of one kind that ended, in the history from which starts are forecast; the oldest goes",
    "a quantile of 0.9 needs some dozens; older leases say little of today",
)
LIFE_CLASSES = Limit(
    200,
    "kinds",
    "kinds of leases (namespace, kind of owner, profiles) in that history; of the namespace with the most, the one "
    "that ended longest ago goes",
    "the record is written without the oldest where it would grow too large",
)
LIFE_RECORD = Limit(
    700 * 1024,
    "bytes",
    "that history in its ConfigMap; its oldest parts are not written beyond that; a larger one is not read",
    "a ConfigMap has at most 1 MiB",
)
LIFE_NAME = Limit(
    200,
    "characters",
    "the profiles of a pod as a kind of lease in that history; the rest is cut",
    "a dozen profiles",
)
START_IMAGES = Limit(
    200,
    "images",
    "images whose times from the promise to the start are kept; of the namespace that brought the most, the one that "
    "started longest ago goes",
    "a few kinds of work have most of the starts; others take the times of all images",
)
START_SAMPLES = Limit(
    20,
    "starts",
    "times of one image from the promise to the start; the oldest goes",
    "a pull changes with each version of an image",
)
CALIBRATED_SIZES = Limit(
    128,
    "sizes",
    "corrections of forecasts by size of the pods, two for each; of the namespace that brought the most, the one that "
    "started longest ago goes",
    "others take the correction of all",
)
WAIT_SAMPLES = Limit(
    100,
    "waits",
    "waits of pods of one size, from which their start is forecast beside the simulation; the oldest goes",
    "a quantile of 0.9 needs some dozens, also of those that waited longer",
)
WAITING_SAMPLES = Limit(
    5,
    "pods",
    "pods of one namespace and size that still wait and count among past waits, the first in their order",
    "fewer than a tenth of the waits of a size that is well known, so no namespace moves the late end alone",
)
WAIT_SIZES = Limit(
    128,
    "sizes",
    "sizes of pods whose waits are kept; of the namespace that brought the most, the one that started longest ago goes",
    "with 100 waits each, some 125 KiB of the record; it is written without the oldest where it would grow too large",
)
FORECAST_SCENARIOS = Limit(
    40,
    "scenarios",
    "simulated futures from which the range of a start is taken",
    "the ninth decile of 40 has four behind it; more cost more than they tell",
)
FORECAST_STEPS = Limit(
    400_000,
    "steps",
    "ends and starts of pods in all simulated futures of one forecast",
    "about a second, in pieces; what was simulated until then counts",
)
FORECAST_PIECE = Limit(
    1_000,
    "steps",
    "steps of a simulation without a pause",
    "about 5 ms, for which a decision may have to wait",
)
FORECAST_PODS = Limit(
    1_000,
    "pods",
    "waiting pods, the first in their order that compete for room, whose start is simulated; the others have a "
    "position alone",
    "those behind start when these have started",
)
RATE_STARTS = Limit(
    10_000,
    "starts",
    "starts of the last hour that are counted for rates",
    "almost three in each second",
)
FORECASTS_KEPT = Limit(
    5_000,
    "pods",
    "waiting pods whose first forecast is kept until they start, to correct the next ones",
    "a few hundred starts correct as well as all",
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
QUEUE_BLOCKERS = Limit(
    8,
    "pods",
    "pods that a row of that page names as standing before another",
    "more are counted by nobody; the position says how many wait",
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
