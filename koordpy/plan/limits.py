"""Every threshold of the planner, with its unit: from where on another method is taken, and how far each may go.

Which method runs when: docs/architecture.md, "Methods".
"""

# --- Placement: exact counting ---
TABLES_AT_ONCE = 64
"""Kinds of equal domains of a level from which on their tables are made in one array operation."""
TABLE_AT_ONCE_ENTRIES = 512
"""Entries of a table up to which that is done; longer ones are as fast one at a time."""
MEASURES = 2
"""Measures of room that are counted for a region, the scarcest first."""
MEASURE_UNITS = 2048
"""A measure is counted in at most so many units; larger amounts are rounded in favour of the bound."""

# --- Placement: CP-SAT models ---
SETUP_TIME = 1e-5
"""Deterministic time that one variable or constraint is charged."""
STAGE_SHARE = 0.6
"""Part of the deterministic time left that one stage may take."""
UNPROVEN_SHARE = 0.1
"""What a stage gets of its share once an earlier one is open: no proof can be had, and a good answer comes early."""
MODEL_NODES = 384
"""Nodes with room in a region from which on it is modelled in part first."""
MODEL_FILLINGS = 24
"""Node types with more maximal fillings are modelled node by node."""
MODEL_VARIABLES = 20_000
"""0/1 variables of one model; beyond, the goal is left out and nothing is proven."""
DOMAINS_TRIED = 16
"""Domains of a level that are tried where the solver's time is up."""
CLASS_FILLINGS = 500
"""Ways to fill one node up to which equal nodes that are worth something by their pods are counted together."""
MODEL_PODS = 20_000
"""Nodes times kinds of pods that they hold, one by one, in one model; beyond, nodes are filled greedily and nothing is
proven."""
MODEL_TIES = 250_000
"""Nodes times kinds that kinds speak of, in one model; beyond, the same."""
COMPARED_COLUMNS = 64
"""Resources up to which it is asked which of them another holds as well."""
NAMED_VARIABLES = 1_000
"""Variables of a model of single nodes up to which it settles their names, too: a solve or two for each pod."""
NAMES_SHARE = 0.1
"""Part of the deterministic time left that one such solve may take; where that is not enough, none follows."""
SPLITS = 200
"""Partitions of a unit's nodes that are tried where devices cannot serve its pods together."""
OFFLINE_WATCHDOG_SECONDS = 3600.0
"""Seconds of the wall for a solve offline: far above what deterministic time lets it take."""

# --- Order of ranks ---
RANK_MIXTURES = 400
"""Ways to mix one node's runs in a ring; beyond, nothing is said of any."""
RANK_KINDS = 32
"""Kinds of pods in a ring; beyond, nothing is said of how nodes mix them."""
RANK_STEPS = 3_000
"""Steps of one walk of the search for ranks; no further walk begins after as many."""
RANK_RING_PODS = 80
"""Members of a ring up to which walks are tried; longer ones are only tried at one run per domain."""

# --- Victims ---
BLOCKERS = 2000
"""Pods that a shape's filters look at up to which each is tried as a victim by itself."""
COUNTED_VICTIMS_STEPS = 3_000_000
"""Additions of the min-plus tables beyond which the solver is no slower."""
COUNTED_VICTIMS_STATES = 60_000
"""Pods times what a quota wants back times nodes, beyond which the solver is asked."""
GATHERED_VICTIMS_STEPS = 2_000_000
"""Ways to split pods over domains that are looked at for priorities and level 9."""
NODE_COVER_STATES = 4096
"""States of the dynamic programme that finds the cheapest victims of one node; beyond, CP-SAT chooses."""
NODE_COVER_COMBINATIONS = 8
"""Combinations of gangs broken or not that it looks at; beyond, CP-SAT chooses."""
MOVES = 20_000
"""Pods times nodes up to which running pods are moved to make room."""
LEVEL_9_UNITS = 40
"""Units of cost level 9 that one solve decides: their weights are powers of two."""
PRIORITY_PARTS = 4
"""Priorities up to which victims of each are looked at by themselves, before all are."""
LEVEL_WEIGHT = 1 << 26
"""Weight of the first of several cost levels that one solve decides; beyond, levels are solved in turn."""
EARLY_LEVEL_SHARE = 0.35
"""Part of the deterministic time left that a solve for cost levels 1 to 6 may take: where they are not proven by then,
twice the time hardly ever proves them."""
LATE_LEVEL_SHARE = 0.1
"""Part of the deterministic time left that a solve for cost levels 7 to 9 may take: they are no part of a proof."""
BEST_PLACES_SHARE = 0.1
"""Deterministic time for the best places beside chosen victims, as a part of a placement's: the model has some."""
VICTIM_TRIES = 200
"""Choices of victims that the trial may refuse before the search gives up."""
ASCEND_VICTIM_TRIES = 20
"""The same where the Ascend planner orders members itself, before the greedy way is asked."""
VICTIM_TRIALS = 24
"""Placements tried for a refused choice, to learn how many victims are still too few."""
REPRIEVES = 150
"""Tries to give victims back of a plan that is not proven."""
REPRIEVE_PODS = 100_000
"""Nodes times kinds of pods in all of them together; one with twice as many takes twice as long."""
REPRIEVE_SHARE = 0.05
"""Deterministic time of each of them, as a part of a placement's."""
REFITS = 2_000_000
"""Members and units looked at to see, by sums, who may stay beside them where they stand."""
REFITTED_UNITS = 20
"""Units given back that the check tries with all filters; beyond, nobody is said to go in vain."""

# --- Queue ---
STARVING_BESIDE = 64
"""Starving units that are not due and looked at in a round."""

STARTLESS_UNITS = 200
"""Gangs, and kinds of plain pods, of which a round asks whether any node could ever hold them."""

GIVE_BACK_TRIALS = 64
"""Dry runs of the queue that a round makes to find who starts for what quotas give back; what is open then goes."""

# --- Figures and filters ---
SHAPES_KEPT = 256
"""Static figures of shapes that are kept when none of their pods waits."""
STATIC_KEPT = 5_000_000
"""Static figures times nodes, some 30 bytes each, above which static figures are forgotten whoever waits."""
DOMAIN_LABELS = 256
"""Label keys of nodes by which domains are known; pods may name any."""
FEW_ROWS = 4
"""Changed nodes that are worked out one by one rather than as arrays."""
CEL_NESTING = 50
"""Brackets and negations inside one another; an API server's parser gives up at 250."""
NODE_PODS = 1 << 16
"""Beyond this many pods a node's number of pods is no figure of a real node; products of it stay small."""

# --- Devices ---
EXACT_GPUS = 16
"""GPUs of a machine up to which tables over all sets are made."""
MASKS_AT_ONCE = 1 << 16
"""Entries of one temporary array over sets of GPUs."""
GPU_RING = 8
"""GPUs of a set up to which its best ring is told; rings of larger sets count as equal."""
JUDGEMENTS_KEPT = 20_000
"""Answers kept of one machine, or of one pattern of links."""
CLIQUE_STEPS = 20_000
"""Steps of one search for cliques on a machine of more GPUs than EXACT_GPUS."""
