"""Limits on visitors of a page that runs in the cluster: tokens, rights that are looked up, connections, readers."""

from tessera.limits import Limit

RIGHTS_LIFE = Limit(
    60,
    "seconds",
    "the time for which the page believes an answer about a token or a right; it asks again after half of it",
    "a right that was withdrawn hides names on open pages within it, also while the API server does not answer",
)
PAGE_TOKENS = Limit(
    1_024,
    "tokens",
    "valid bearer tokens that the page remembers, by hash; the one that was unused longest is forgotten",
    "four for each reader",
)
REFUSED_TOKENS = Limit(
    1_024,
    "tokens",
    "refused bearer tokens that the page remembers, by hash; the one that was unused longest is forgotten",
    "a program that tries one again and again costs no review; they take no place of valid ones",
)
TOKEN_REVIEWS = Limit(
    20,
    "reviews a second",
    "reviews of tokens that the page does not know, divided among the addresses that send some; more are refused with "
    "429",
    "people log in; the API server may check each by an external service. Tokens that are in use have their own pace",
)
PAGE_REVIEWS = Limit(
    100,
    "reviews a second",
    "reviews of known tokens and of rights to nodes and pods. Rights that a reader has, new ones, and refused ones "
    "have this number each, divided among those who ask; what could not be asked stays hidden",
    "256 readers with 10 rights each, asked again each 30 s, need 86; an API server answers thousands",
)
PAGE_RIGHTS = Limit(
    16_384,
    "answers",
    "answers about rights to nodes and pods that the page remembers; the one that was unused longest is forgotten",
    "256 readers with 64 namespaces each",
)
KUEUE_NAMED = Limit(
    128,
    "namespaces",
    "namespaces with Workloads that wait in Kueue whose rights are asked for at a time; further ones take turns, "
    "for which a quarter is kept",
    "each is a review for each reader who may not list all Workloads",
)
KUEUE_REVIEWS = Limit(
    100,
    "reviews a second",
    "reviews of rights to Kueue's Workloads. Rights that a reader has, new ones, and refused ones have this number "
    "each",
    "150 readers with 50 namespaces learn in 76 s what they may see; apart from pods, whose names do not wait for it",
)
KUEUE_RIGHTS = Limit(
    32_768,
    "answers",
    "answers about rights to Kueue's Workloads that the page remembers; the one that was unused longest is forgotten",
    "256 readers with 128 namespaces each; some 300 bytes an answer",
)
PAGE_NAMESPACES = Limit(
    512,
    "namespaces",
    "namespaces with cards or waiting pods whose rights are asked for a reader; names of others stay hidden",
    "each is a review; a reader who may list the pods of all namespaces needs one",
)
PERSON_READERS = Limit(
    16,
    "readers",
    "open feeds of one user, or of the service accounts of one namespace; the next is refused with 429",
    "windows of a person; one user cannot take the places of all. Those without a token share four times as many",
)
PAGE_CONNECTIONS = Limit(
    512,
    "connections",
    "connections to the page; beyond them, the address with the most loses its longest silent one",
    "twice the readers of the feed",
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
PAGE_HEADER_TIME = Limit(
    10_000,
    "ms",
    "handshake and headers of a request to the page",
    "a slow phone needs less",
)
PAGE_WRITE_TIME = Limit(
    20_000,
    "ms",
    "the time in which a reader of the page takes 64 KiB; a slower one is cut off",
    "3 kB/s; a reader that stands still holds 64 KiB",
)
PAGE_EXPLANATIONS = Limit(
    32,
    "explanations",
    "explanations of waiting pods that wait to be made, each user's in turn with those of others; a further one takes "
    "the place of one of the user with most, or is refused with 503",
    "each takes milliseconds to a second, one after the other",
)
PROXY_NAMES = Limit(
    64,
    "names",
    "names of certificates and headers of the API server's front proxy, each; the rest is not read",
    "kubeadm has one of each",
)
VIEW_ANSWERS = Limit(
    32,
    "answers",
    "answers of the API view.tessera.dev that the page remembers for two seconds; the oldest is forgotten",
    "one for each kind of rights; an answer for 1,600 cards has 2 MB and takes a tenth of a second",
)
VIEW_WAITING = Limit(
    32,
    "answers",
    "answers of the API view.tessera.dev that wait to be made, each user's in turn with those of others; a further one "
    "takes the place of one of the user with most, or is refused with 503",
    "each takes a tenth of a second, one after the other",
)
PAGE_ANSWER_LIFE = Limit(
    240,
    "seconds",
    "the time for which agents and controller believe that a token may read a page; they ask again after half of it",
    "kubelet believes a token for 2 minutes and a right for 5; 5,000 agents ask 80 times a second",
)
PAGE_REFUSAL_LIFE = Limit(
    10,
    "seconds",
    "the time for which agents and controller remember that a token may not read a page",
    "somebody who grants the right waits no longer; a program with a wrong token costs no more",
)
PAGE_ANSWERS = Limit(
    256,
    "answers",
    "tokens with the right to a page, and refused ones, each, that agents and controller remember, by hash",
    "two Prometheus servers and the readers of two pages need ten",
)
READER_REVIEWS = Limit(
    10,
    "reviews a second",
    "reviews of tokens that an agent or the controller does not know, divided among the addresses that send some; more "
    "are refused with 429",
    "a reader has a new token each five minutes; nobody makes an agent flood the API server",
)
