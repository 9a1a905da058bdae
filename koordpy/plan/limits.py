# SPDX-License-Identifier: Apache-2.0
"""Defines the planner's thresholds: from which size on another method is used, and how much work a method may do.

The thresholds are not settings of users: they limit the time of a round. Work is limited by counts, or by CP-SAT's
deterministic time, and not by wall time, so that the same input gives the same plan on any machine. A unit of
deterministic time is about a second. docs/design.md, "Methods", says which method runs when.
"""

# --- Placement: exact counting ---
TABLES_AT_ONCE = 64
"""If a level has at least this many different kinds of domains, their tables are computed in one array operation."""
TABLE_AT_ONCE_ENTRIES = 512
"""Maximum number of entries of a table for `TABLES_AT_ONCE`. Longer tables are computed one at a time, as fast."""
MEASURES = 2
"""Number of resources for which free capacity is counted in a region; the scarcest resources are chosen."""
MEASURE_UNITS = 2048
"""Maximum number of units in which such a resource is counted. Larger amounts are counted in coarser units, and rounded
so that the resulting bound stays valid."""

# --- Messages ---
SENTENCE_CHARACTERS = 120
"""Maximum number of characters of the first sentence of a gang member's message, including its full stop."""
UNIT_CHARACTERS = 32
"""Minimum number of characters of a gang's id in that sentence, if the id must be cut to leave space for the cause."""
LISTED_DOMAINS = 5
"""Maximum number of domains that one sentence names."""
OUTGOING_TRIED = 4
"""Maximum number of old pods of a rollout for which it is tested whether they occupy a new pod's capacity."""
SICK_GPU_NODES_TRIED = 4
"""Maximum number of nodes on which a pod with an unhealthy GPU is looked for that blocks a pending pod."""

LIMITING_RULES_TRIED = 4
"""Maximum number of rules among members that are dropped, one by one, to find which one blocks a gang."""
LIMITING_RULES_MEMBERS = 64
"""Maximum number of pending members of a gang with several rules for which this is tried (`LIMITING_RULES_TRIED`)."""

# --- Suggestions ---
ADVICE_TRIALS = 40
"""Maximum number of rounds that are planned to find suggestions for one unit."""
ADVICE_TRIALS_LEAST = 12
"""Number of rounds that may be planned for one unit in a cluster of any size."""
ADVICE_WORK = 4_000_000
"""Limit on the sum of (pods x nodes) over the rounds for one unit. Above it only `ADVICE_TRIALS_LEAST` rounds are
planned."""
ADVICE_REDUCTIONS = 32
"""Maximum number of further rounds to reduce one suggestion, such as to fewer pods. A suggestion that needs more rounds
is not shown."""
ADVICE_LINES = 5
"""Maximum number of suggestions for one unit."""
ADVICE_KINDS = 8
"""Maximum number of shapes of a unit's pods for which changes are searched."""
ADVICE_NAMED = 3
"""Maximum number of nodes, domains, taints, values or pods that one suggestion names."""
ADVICE_RANGE = 3
"""Minimum number of pods with consecutive numbers that a suggestion names as a range."""
ADVICE_QUEUED = 12
"""Maximum number of earlier units for which it is tested, one by one, whether a suggestion must name them."""
ADVICE_PAIRED = 2
"""Maximum number of changes with one kind of effort that are combined with other changes."""
ADVICE_TEMPLATES = 3
"""Maximum number of existing nodes to copy as new nodes; also the maximum number of node counts tried for each."""
ADVICE_NEW_NODES = 64
"""Maximum number of new nodes that one suggestion proposes."""
ADVICE_ENDING = 8
"""Maximum number of pods of one node that a suggestion ends to gain one more slot there."""
ADVICE_ENDING_TRIED = 16
"""Maximum number of pods of one node for which it is tested whether their end alone helps, the largest pods first."""
ADVICE_DOMAINS = 8
"""Maximum number of domains in which the fewest pods to end are searched."""
ADVICE_SET = 3
"""Maximum size of the sets of pods of one node that are all compared by their requests."""
ADVICE_SETS_TRIED = 4
"""Maximum number of such sets of one node that are tested, the smallest sets first."""
ADVICE_NODES_TRIED = 32
"""Maximum number of nodes on which pods to end are searched; nodes with the most free capacity are first."""
ADVICE_POOL = 48
"""Maximum number of pods from which the smallest set to end is chosen; nodes with the most free capacity are first."""
ADVICE_UNITS_ENDED = 4
"""Maximum number of running gangs for which it is tested whether their end helps."""
ADVICE_LESS = 8
"""Maximum number of smaller device amounts that are tried for a pod, one by one, the highest first."""
ADVICE_MEMBERS = 16
"""Maximum number of further members that a suggestion adds to satisfy a multiple."""
ADVICE_CORRECTIONS = 4
"""Maximum number of misspelt names that are corrected in one annotation."""
ADVICE_RAISES = 6
"""Maximum number of limits of quotas that one suggestion raises until no quota refuses the unit."""
ADVICE_WEIGHTS = 4
"""Maximum number of times that a weight is doubled."""

# --- Placement: CP-SAT models ---
SETUP_TIME = 1e-5
"""Deterministic time that is charged for building one variable or constraint."""
STAGE_SHARE = 0.6
"""Share of the remaining deterministic time that one stage may use."""
UNPROVEN_SHARE = 0.1
"""Factor on a stage's share after an unproven stage: the result can no longer be proven, and good answers are found
early."""
MODEL_NODES = 384
"""If a region has at least this many nodes with capacity, only a part of it is modelled first."""
MODEL_FILLINGS = 24
"""If equal nodes have more maximal fillings than this (sets of pods to which no pod can be added), each node is
modelled separately."""
MODEL_VARIABLES = 20_000
"""Maximum number of 0/1 variables of one model. Above it the goal is left out, and the result is not proven."""
DOMAINS_TRIED = 16
"""Maximum number of domains, per level, that are tried after the solver's time is used up."""
CLASS_FILLINGS = 500
"""Maximum number of ways to fill one node for which equal nodes are counted together, if their pods affect the
score."""
MODEL_PODS = 20_000
"""Maximum of (nodes x shapes of pods on them) in one model of single pods. Above it nodes are filled greedily, and the
result is not proven."""
MODEL_TIES = 250_000
"""Maximum of (nodes x shapes in inter-pod rules) in one model. Above it nodes are filled greedily, too."""
OPENED_PLACES = 256
"""A gang with required affinity to itself may start in one of several domains. Up to this number, each domain is tried
by counting; above it a CP-SAT model chooses."""
OPENED_MODELS = 8
"""The limit in place of `OPENED_PLACES` for pods of several shapes, for which each domain needs a CP-SAT model."""
COMPARED_COLUMNS = 64
"""Maximum number of resources in a problem for which redundant resources (never scarcer than another one) are
dropped."""
NAMED_VARIABLES = 1_000
"""Maximum number of variables of a model of single nodes for which ties are also broken by node name. This takes one or
two solves for each pod."""
NAMES_SHARE = 0.1
"""Share of the remaining deterministic time for one solve that breaks ties by node name. An unproven solve is the last
one."""
SETS_COMPARED = 64
"""Maximum number of sets of network-attached devices of which each two are compared by a search."""
SPLITS = 200
"""Maximum number of partitions of a unit's nodes that are tried if devices cannot serve its pods together."""
SEATS_LISTED = 3
"""Maximum number of gangs with seats that a message names; the remaining ones are counted."""
DEVICE_TWINS = 32
"""Maximum number of devices of a node among which devices with equal links are looked for."""
OFFLINE_WATCHDOG_SECONDS = 3600.0
"""Limit of wall-clock seconds for an offline solve, far more than its deterministic time takes."""

# --- Order of ranks ---
RANK_STEPS = 6_000
"""Maximum number of steps of one search for an order of ranks: exchanges tried, or domains put in order."""

# --- Victims ---
RUNTIME_STEPS = 256
"""Victims without a quota free capacity for quotas, and a quota's runtime is a function of the amount that they free.
This is the maximum number of amounts for which it is computed; other amounts are rounded down."""
BLOCKERS = 2000
"""Maximum number of pods that affect a shape's filters for which each is tested as a single victim."""
GATHERED_VICTIMS_STEPS = 2_000_000
"""Maximum number of ways to divide pods among domains that are compared by priorities and cost level 9."""
NODE_COVER_STATES = 4096
"""Maximum number of states of the dynamic program that finds the cheapest victims of one node; above it CP-SAT
chooses."""
NODE_COVER_COMBINATIONS = 8
"""Maximum number of combinations of broken gangs that the dynamic program for one node tries; above it CP-SAT
chooses."""
MOVES = 20_000
"""Maximum of (pods x nodes) for which moves of running pods are searched that free capacity."""
RETURN_TRIES = 16
"""Maximum number of placements tried for the pods of one moved unit, each without nodes that lacked devices before."""
LEVEL_9_UNITS = 40
"""Maximum number of units of cost level 9 that one solve decides: their weights are powers of two."""
PRIORITY_PARTS = 4
"""Maximum number of priorities for which victims are searched separately, before they are searched among all."""
LEVEL_WEIGHT = 1 << 26
"""One solve decides several cost levels if the weight of the first of them is at most this. Otherwise the levels are
solved one after the other."""
EARLY_LEVEL_SHARE = 0.35
"""Share of the remaining deterministic time for a solve of cost levels 1 to 6. If a solve is unproven after it, twice
the time hardly ever proves it."""
LATE_LEVEL_SHARE = 0.1
"""Share of the remaining deterministic time for a solve of cost levels 7 to 9, which the proof does not cover."""
BEST_PLACES_SHARE = 0.1
"""Deterministic time to find the best placement after the victims are chosen, as a share of the time for an ordinary
placement. It is small because the model already has a placement."""
VICTIM_TRIES = 200
"""Maximum number of victim choices that the dry run may reject before the search gives up."""
ASCEND_VICTIM_TRIES = 20
"""The limit in place of `VICTIM_TRIES` if the Ascend planner decides the order of members; after it victims are chosen
greedily."""
CLOSING_UNITS = 8
"""Maximum number of victim units for a search which respects that more evictions may close a node by its NUMA zones: it
tries nearly all of their sets. With more units, such a node may be missed."""
VICTIM_TRIALS = 24
"""Maximum number of placements tried for a rejected choice of victims, to learn which numbers of victims are too
few."""
REPRIEVES = 150
"""Maximum number of victims of an unproven plan for which a reprieve is tried: the plan without this victim."""
REPRIEVE_PODS = 100_000
"""Limit on the sum of (nodes x shapes) over the reprieves of a plan, because the time of a reprieve grows with both."""
REPRIEVE_SHARE = 0.05
"""Deterministic time of one reprieve, as a share of the time for an ordinary placement."""
NEEDLESS_UNITS_TRIED = 4
"""Maximum number of victim units of one plan for which it is tested, with all filters, whether they are needed. The
result is only counted in metrics."""

# --- Queue ---
COUNTED_KINDS = 16
"""Maximum number of shapes in a gang for an ordinary round to plan it. A gang with more is left to a search, because
the state of thousands of shapes takes seconds to compute."""
STARVING_BESIDE = 64
"""Maximum number of starving units that a round checks although they are not due."""

EMPTIED_UNITS = 16
"""Maximum number of equivalence classes of units that a round places on the emptied cluster (as if all pods had ended),
to learn whether they could ever fit."""
EMPTIED_PODS = 20_000
"""Maximum number of pods that a round removes to empty the cluster, for all units together. A pod takes 3 us, and more
if filters depend on it."""
EMPTIED_OFFLINE = 25
"""Factor on `EMPTIED_UNITS` and `EMPTIED_PODS` offline, where no pod waits for the round."""
EMPTIED_REGIONS = 32
"""Maximum number of domains that a placement on the emptied cluster tries. If more domains could hold the unit, it is
unknown whether it could ever fit."""
EMPTIED_TIME = 0.2
"""Deterministic time of a placement on the emptied cluster. If it is used up, the unit counts as one that may fit."""
NEVER_KEPT = 4_000
"""Maximum number of units for which it is cached between rounds whether they could ever fit."""

GIVE_BACK_TRIALS = 64
"""Maximum number of dry runs of the queue in a round, to find which units can stay when quotas above their runtime give
capacity back. Units that are undecided after that are evicted."""

# --- Round state and filters ---
SHAPES_KEPT = 256
"""Maximum number of shapes without a pending pod for which results of filters that read only nodes are cached."""
STATIC_KEPT = 5_000_000
"""Limit on (cached shapes x nodes), about 30 bytes each. Above it all these cached results are dropped."""
DOMAIN_LABELS = 256
"""Maximum number of node label keys by which domains are indexed; pods may name any key."""
FEW_ROWS = 4
"""Maximum number of changed nodes that are recomputed one by one instead of as arrays."""
NODE_PODS = 1 << 16
"""Limit on a node's number of pods, to keep products with it small. Real nodes have far fewer."""

# --- Devices ---
EXACT_GPUS = 16
"""Maximum number of GPUs of a machine for which tables over all sets of its GPUs are built."""
MASKS_AT_ONCE = 1 << 16
"""Maximum number of entries of one temporary array over sets of GPUs."""
GPU_RING = 8
"""Maximum number of GPUs of a set for which its best ring is computed; rings of larger sets count as equal."""
SET_KINDS = 4
"""Maximum number of kinds of pods with claims on a node for which sets of devices are chosen; above it the search
compares solutions one by one."""
SET_REQUESTS = 6
"""Maximum number of a pod's requests that different devices suit, for the same choice."""
JUDGEMENTS_KEPT = 20_000
"""Maximum number of cached results about sets of GPUs for one machine, or for one link pattern."""
CLIQUE_STEPS = 20_000
"""Maximum number of steps of one search for cliques on a machine with more GPUs than `EXACT_GPUS`."""

# --- Requests of tenants ---
ASKED_EACH_SECOND = 2.0
"""Requests per second that one tenant may send on average."""
ASKED_AT_ONCE = 20
"""Burst of requests that one tenant may send after a pause."""
TENANTS_METERED = 4_096
"""Maximum number of tenants for which requests are counted; above it the longest inactive tenant is dropped."""
QUESTIONS_OPEN = 64
"""If all tenants together have at least this many open requests, each tenant may have only one open."""
QUESTIONS_OPEN_EACH = 4
"""Maximum number of open requests of one tenant, and of pending explanations of one namespace."""
REFUSAL_SECONDS = 2.0
"""Seconds after which a request above a limit is refused, so that a loop of requests is slow."""
REFUSALS_WAITING = 256
"""Maximum number of refusals that are delayed at once; further refusals are sent immediately."""
REVIEWS_EACH_SECOND = 20.0
"""Maximum rate of SubjectAccessReviews that requests cause, per second."""
REVIEWS_AT_ONCE = 40
"""Burst of SubjectAccessReviews that requests may cause after a pause."""
REVIEW_SECONDS = 10.0
"""Seconds for which the answer of a SubjectAccessReview is valid."""
REVIEWS_KEPT = 1_024
"""Maximum number of cached answers of SubjectAccessReviews."""
BOARD_SECONDS = 2.0
"""Seconds for which the cluster view that answers requests is cached."""
BOARD_PACE = 10.0
"""Minimum lifetime of the cluster view, as a multiple of the seconds that it took to build."""
WORK_PACE = 4.0
"""Seconds of pause after one second of explaining, for all tenants together."""
WORK_PAUSE_SECONDS = 10.0
"""Maximum length of the pause by `WORK_PACE`, in seconds."""
TENANT_PACE = 20.0
"""Seconds of pause for one tenant after one second of explaining for it."""
TENANT_PAUSE_SECONDS = 300.0
"""Maximum length of the pause by `TENANT_PACE`, in seconds."""
ANSWER_SECONDS = 10.0
"""Seconds that a request waits for its explanation. After that it is answered without one."""
ANSWERS_HELD_SECONDS = 20.0
"""Seconds for which an explanation is valid."""
ANSWERS_KEPT = 256
"""Maximum number of cached explanations."""
ANSWER_ROWS = 500
"""Maximum number of pods, units or domains that one answer lists; the rest is counted."""
ASKED_NAME_BYTES = 512
"""Maximum number of bytes of a name in a request, more than the name of any object has."""
HINTED_NAMES = 500
"""Maximum number of names, per namespace, that are compared with a misspelt name."""
