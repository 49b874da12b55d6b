"""Limits on visitors of a page that runs in the cluster: tokens, rights that are looked up, connections, readers."""

from tessera.limits import Limit

RIGHTS_LIFE = Limit(
    60,
    "seconds",
    "the time for which the page believes an answer about a token or a right; it asks again after half of it",
    "a right that was withdrawn hides names on open pages within it, also while the API server does not answer",
)
PAGE_REVIEWS = Limit(
    100,
    "reviews a second",
    "reviews of known tokens and of rights to nodes and pods. Rights that a reader has, new ones, and refused ones "
    "have this number each, divided among those who ask; what could not be asked stays hidden",
    "256 readers with 10 rights each, asked again each 30 s, need 86; an API server answers thousands",
)
KUEUE_NAMED = Limit(
    128,
    "namespaces",
    "namespaces with Workloads that wait in Kueue whose rights are asked for at a time; further ones take turns, "
    "for which a quarter is kept",
    "each is a review for each reader who may not list all Workloads",
)
PAGE_BYTES = Limit(
    4 * 2**20,
    "bytes",
    "requests that the page's port holds, all connections together; the feed's requests count while they are served",
    "8 KiB for each connection; a browser sends 2 KiB, with a large token 10",
)
PAGE_HEADERS = Limit(
    64,
    "headers",
    "headers of a request to the page",
    "browsers send 15, and ingresses add 10",
)
PAGE_HEADER = Limit(
    16_384,
    "bytes",
    "the request line, or one header, of a request to the page",
    "tokens of OpenID Connect with many groups have 8 KiB",
)
