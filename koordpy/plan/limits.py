# SPDX-License-Identifier: Apache-2.0
"""Every threshold of the planner, with its unit: when another method is used, and how much work each method may do.

These are not settings: they bound the time of a round. Work is limited by counts or by CP-SAT's deterministic time
instead of wall time, so that the same input gives the same plan on any machine. A unit of deterministic time is about a
second. docs/design.md, "Methods", says which method runs when.
"""

# --- Placement: exact counting ---
TABLES_AT_ONCE = 64
"""Number of kinds of equal domains of a level from which on their tables are computed in one array operation."""
TABLE_AT_ONCE_ENTRIES = 512
"""Maximum number of entries of a table for `TABLES_AT_ONCE`; longer tables are as fast one at a time."""
MEASURES = 2
"""Number of capacity measures (resources) that are counted for a region, the scarcest first."""
MEASURE_UNITS = 2048
"""Maximum number of units in which a measure is counted. Larger amounts are counted in coarser units, rounded such that
the bound stays valid."""

# --- Messages ---
SENTENCE_CHARACTERS = 120
"""Maximum number of characters of the first sentence of a gang member's message, including its full stop."""
UNIT_CHARACTERS = 32
"""Minimum number of characters of a gang's id in that sentence, if the id must be cut to leave space for the cause."""
LISTED_DOMAINS = 5
"""Maximum number of domains that one sentence names."""
OUTGOING_TRIED = 4
"""Maximum number of old pods of a rollout that are tried, one by one, as the pod that occupies a new pod's capacity."""
SICK_GPU_NODES_TRIED = 4
"""Maximum number of nodes tried for a pod with an unhealthy GPU that keeps a healthy GPU from a pending pod."""

LIMITING_RULES_TRIED = 4
"""Maximum number of rules among the members of a gang that are dropped, one by one, to find which one blocks it."""
LIMITING_RULES_MEMBERS = 64
"""Maximum number of pending members for which `LIMITING_RULES_TRIED` applies, if the gang has several rules."""

# --- Suggestions ---
ADVICE_TRIALS = 40
"""Maximum number of rounds that are planned to find what would help one unit."""
ADVICE_TRIALS_LEAST = 12
"""Number of rounds to find what would help one unit that are allowed in a cluster of any size."""
ADVICE_WORK = 4_000_000
"""Limit on pods times nodes, summed over the rounds for one unit. Above it only `ADVICE_TRIALS_LEAST` rounds are
planned."""
ADVICE_REDUCTIONS = 32
"""Maximum number of further what-ifs that reduce one suggestion; a suggestion that needs more is not shown."""
ADVICE_LINES = 5
"""Maximum number of suggestions for one unit."""
ADVICE_KINDS = 8
"""Maximum number of kinds of pods of a unit for which changes are searched."""
ADVICE_NAMED = 3
"""Maximum number of nodes, domains, taints, values or pods that one suggestion names; each is tried by itself."""
ADVICE_RANGE = 3
"""Minimum number of pods with consecutive numbers that a suggestion names as a range."""
ADVICE_QUEUED = 12
"""Maximum number of units placed earlier of which each is tried as necessary, to name as few as possible."""
ADVICE_PAIRED = 2
"""Maximum number of changes of each kind that are tried together with a change of another kind."""
ADVICE_TEMPLATES = 3
"""Maximum number of node templates of which new nodes are tried, and of node counts tried for each."""
ADVICE_NEW_NODES = 64
"""Maximum number of new nodes that one suggestion proposes."""
ADVICE_ENDING = 8
"""Maximum number of pods of one node that are tried as ended, to gain one more slot."""
ADVICE_ENDING_TRIED = 16
"""Maximum number of pods of one node that are each tried as ended alone, the largest pods first."""
ADVICE_DOMAINS = 8
"""Maximum number of domains in which the fewest pods that could end are searched."""
ADVICE_SET = 3
"""Maximum number of pods of one node of which all sets are searched by their requests."""
ADVICE_SETS_TRIED = 4
"""Maximum number of such sets that are tried as ended on one node, the smallest sets first."""
ADVICE_NODES_TRIED = 32
"""Maximum number of nodes on which pods that could end are searched, those with the most free capacity first."""
ADVICE_POOL = 48
"""Maximum number of pods from which the smallest set that must end is chosen, nodes with most free capacity first."""
ADVICE_UNITS_ENDED = 4
"""Maximum number of running gangs that are tried as ended."""
ADVICE_LESS = 8
"""Maximum number of smaller amounts of a device that are tried for a pod, one by one, the highest first."""
ADVICE_MEMBERS = 16
"""Maximum number of further members that are tried to satisfy a multiple."""
ADVICE_CORRECTIONS = 4
"""Maximum number of misspelt names that are corrected in one annotation."""
ADVICE_RAISES = 6
"""Maximum number of times that quotas are raised together until none refuses the unit."""
ADVICE_WEIGHTS = 4
"""Maximum number of times that a weight is doubled."""

# --- Placement: CP-SAT models ---
SETUP_TIME = 1e-5
"""Deterministic time that is charged for building one variable or constraint."""
STAGE_SHARE = 0.6
"""Share of the remaining deterministic time that one stage may use."""
UNPROVEN_SHARE = 0.1
"""Factor on a stage's share once an earlier stage is unproven: a proof is impossible, and good answers are found
early."""
MODEL_NODES = 384
"""Number of nodes with capacity in a region from which on only a part of the region is modelled first."""
MODEL_FILLINGS = 24
"""Number of maximal fillings (sets of pods to which none can be added) above which a node type is modelled node by
node."""
MODEL_VARIABLES = 20_000
"""Maximum number of 0/1 variables of one model; above it the goal is left out and nothing is proven."""
DOMAINS_TRIED = 16
"""Maximum number of domains of a level that are tried after the solver's time is used up."""
CLASS_FILLINGS = 500
"""Maximum number of ways to fill one node for which equal nodes are counted together, if their pods affect the
score."""
MODEL_PODS = 20_000
"""Maximum of nodes times the kinds of pods on them in one model of single pods. Above it nodes are filled greedily and
nothing is proven."""
MODEL_TIES = 250_000
"""Maximum of nodes times kinds named by inter-pod rules in one model. Above it nodes are filled greedily, too."""
OPENED_PLACES = 256
"""Maximum number of domains in which a gang with required affinity to itself may start for which each is tried by
counting. Above it a model chooses."""
OPENED_MODELS = 8
"""The limit in place of `OPENED_PLACES` for pods of several kinds, where each distinct domain needs a model."""
COMPARED_COLUMNS = 64
"""Maximum number of resources for which dominated resources are searched."""
NAMED_VARIABLES = 1_000
"""Maximum number of variables of a model of single nodes that also breaks ties by node name. This takes one or two
solves for each pod."""
NAMES_SHARE = 0.1
"""Share of the remaining deterministic time for one solve by node name; after a solve that is not proven none
follows."""
SPLITS = 200
"""Maximum number of partitions of a unit's nodes that are tried if devices cannot serve its pods together."""
SEATS_LISTED = 3
"""Maximum number of gangs that a message names because capacity is kept for them; the rest is counted."""
DEVICE_TWINS = 32
"""Maximum number of devices of a node among which devices with equal links are looked for."""
OFFLINE_WATCHDOG_SECONDS = 3600.0
"""Wall-clock seconds for an offline solve: far more than its deterministic time needs."""

# --- Order of ranks ---
RANK_STEPS = 6_000
"""Maximum number of steps of one search for an order of ranks: exchanges tried, or domains put in order."""

# --- Victims ---
RUNTIME_STEPS = 256
"""Number of steps in which a runtime is computed as a function of the total that victims in no quota free; with more
values each step is rounded down."""
BLOCKERS = 2000
"""Maximum number of pods that a shape's filters depend on for which each is tried as a single victim."""
GATHERED_VICTIMS_STEPS = 2_000_000
"""Maximum number of ways to split pods over domains that are compared for priorities and cost level 9."""
NODE_COVER_STATES = 4096
"""Maximum number of states of the dynamic program that finds the cheapest victims of one node; above it CP-SAT
chooses."""
NODE_COVER_COMBINATIONS = 8
"""Maximum number of combinations of gangs broken or not that the dynamic program for one node tries; above it CP-SAT
chooses."""
MOVES = 20_000
"""Maximum of pods times nodes for which running pods are moved to free capacity."""
LEVEL_9_UNITS = 40
"""Maximum number of units of cost level 9 that one solve decides: their weights are powers of two."""
PRIORITY_PARTS = 4
"""Maximum number of priorities for which victims are searched separately, before all priorities are."""
LEVEL_WEIGHT = 1 << 26
"""Maximum weight of the first of several cost levels that one solve decides; larger models solve the levels in turn."""
EARLY_LEVEL_SHARE = 0.35
"""Share of the remaining deterministic time for a solve of cost levels 1 to 6: twice the time hardly ever proves a
solve that is unproven by then."""
LATE_LEVEL_SHARE = 0.1
"""Share of the remaining deterministic time for a solve of cost levels 7 to 9, which the proof does not cover."""
BEST_PLACES_SHARE = 0.1
"""Deterministic time to find the best placement with the chosen victims, as a share of a placement's. It is small
because the model has some placement already."""
VICTIM_TRIES = 200
"""Maximum number of victim choices that the dry run may reject before the search gives up."""
ASCEND_VICTIM_TRIES = 20
"""The limit in place of `VICTIM_TRIES` if the Ascend planner orders the members itself; after it the greedy way
runs."""
VICTIM_TRIALS = 24
"""Maximum number of placements tried for a rejected choice, to learn how many victims are still too few."""
REPRIEVES = 150
"""Maximum number of reprieves that are tried for an unproven plan."""
REPRIEVE_PODS = 100_000
"""Limit on nodes times kinds of pods, summed over the reprieves of a plan, because the time of a reprieve grows with
both."""
REPRIEVE_SHARE = 0.05
"""Deterministic time of one reprieve, as a share of a placement's."""
NEEDLESS_UNITS_TRIED = 4
"""Maximum number of victim units of one plan that are tried with all filters, to count plans that are not minimal."""

# --- Queue ---
COUNTED_KINDS = 16
"""Maximum number of kinds of pods of a gang that an ordinary round plans. A gang with more is left to a search, because
the state of thousands of kinds takes seconds to compute."""
STARVING_BESIDE = 64
"""Maximum number of starving units that are not due and are checked in a round."""

EMPTIED_UNITS = 16
"""Maximum number of kinds of units that a round places on the emptied cluster (as if all pods had ended), to learn
whether they could ever fit."""
EMPTIED_PODS = 20_000
"""Maximum number of pods removed from the emptied cluster in a round, for all units together: 3 us each, and more if
filters depend on them."""
EMPTIED_OFFLINE = 25
"""Factor on `EMPTIED_UNITS` and `EMPTIED_PODS` offline, where no pod waits for the round."""
EMPTIED_REGIONS = 32
"""Maximum number of domains that a placement on the emptied cluster tries; if more could hold the unit, the answer is
unknown."""
EMPTIED_TIME = 0.2
"""Deterministic time of a placement on the emptied cluster; if it is used up, the unit counts as one that may fit."""
NEVER_KEPT = 4_000
"""Maximum number of answers to the question whether a unit could ever fit that are cached between rounds."""

GIVE_BACK_TRIALS = 64
"""Maximum number of dry runs of the queue in a round, to find which units start with capacity that quotas give back.
Units that are undecided after that are evicted."""

# --- Round state and filters ---
SHAPES_KEPT = 256
"""Maximum number of shapes without a pending pod for which static state is cached."""
STATIC_KEPT = 5_000_000
"""Limit on cached shapes times nodes, about 30 bytes each; above it all static state is dropped."""
DOMAIN_LABELS = 256
"""Maximum number of node label keys by which domains are indexed; pods may name any key."""
FEW_ROWS = 4
"""Maximum number of changed nodes that are recomputed one by one rather than as arrays."""
NODE_PODS = 1 << 16
"""Limit on a node's number of pods: larger numbers are not realistic. It keeps products with that number small."""

# --- Devices ---
EXACT_GPUS = 16
"""Maximum number of GPUs of a machine for which tables over all sets are built."""
MASKS_AT_ONCE = 1 << 16
"""Maximum number of entries of one temporary array over sets of GPUs."""
GPU_RING = 8
"""Maximum number of GPUs of a set for which its best ring is computed; rings of larger sets count as equal."""
JUDGEMENTS_KEPT = 20_000
"""Maximum number of cached answers for one machine, or for one link pattern."""
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
"""Number of open requests of all tenants from which on each tenant may have only one open."""
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
"""Seconds of pause after one second of explaining for one tenant, for that tenant."""
TENANT_PAUSE_SECONDS = 300.0
"""Maximum length of the pause by `TENANT_PACE`, in seconds."""
ANSWER_SECONDS = 10.0
"""Seconds that a request waits for its explanation; after that the answer has none."""
ANSWERS_HELD_SECONDS = 20.0
"""Seconds for which an explanation is valid."""
ANSWERS_KEPT = 256
"""Maximum number of cached explanations."""
ANSWER_ROWS = 500
"""Maximum number of pods, units or domains that one answer lists; the rest is counted."""
ASKED_NAME_BYTES = 512
"""Maximum number of bytes of a name in a request: more than any name of an object has."""
HINTED_NAMES = 500
"""Maximum number of names of a namespace that are compared with a misspelt name."""
