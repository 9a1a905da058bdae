"""Every threshold of the planner, with its unit: from where on another method is taken, and how far each may go.

Which method runs when: docs/design.md, "Methods".
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

# --- Words ---
SENTENCE_CHARACTERS = 120
"""Characters of the sentence that begins the message of a gang's member, its full stop included."""
LISTED_DOMAINS = 5
"""Domains that one sentence names at most."""
OUTGOING_TRIED = 4
"""Old pods of a rollout that are tried, one by one, for the one that holds the room of a new pod."""
SICK_GPU_NODES_TRIED = 4
"""Nodes that are tried for a pod whose sick GPU keeps a healthy one from a waiting pod."""

LIMITING_RULES_TRIED = 4
"""Rules among the members of a gang without which, one by one, its placement is tried."""
LIMITING_RULES_MEMBERS = 64
"""Pending members of a gang of several rules up to which that is done."""

# --- Advice ---
ADVICE_TRIALS = 40
"""Rounds that are planned at most to find what would help one unit."""
ADVICE_TRIALS_LEAST = 12
"""Rounds that are planned for that however large the cluster is."""
ADVICE_WORK = 4_000_000
"""Pods times nodes of all these rounds, above which no more than the least number is planned."""
ADVICE_REDUCTIONS = 32
"""Further what-ifs that make one suggestion smaller; more, and it is not told."""
ADVICE_LINES = 5
"""Suggestions for one unit."""
ADVICE_KINDS = 8
"""Kinds of pods of a unit that changes are looked for."""
ADVICE_NAMED = 3
"""Nodes, domains, taints, values or pods that one suggestion names, and of which each is tried by itself."""
ADVICE_PAIRED = 2
"""Changes of each kind that are tried together with one of another kind."""
ADVICE_TEMPLATES = 3
"""Sorts of nodes of which new ones are tried, and numbers of new nodes of each."""
ADVICE_NEW_NODES = 64
"""New nodes at most."""
ADVICE_ENDING = 8
"""Pods of one node whose end is tried for one further slot."""
ADVICE_ENDING_TRIED = 16
"""Pods of one node of which the end of each alone is tried, those that hold most first."""
ADVICE_NODES_TRIED = 32
"""Nodes on which pods that could end are looked for, those with most room first."""
ADVICE_POOL = 48
"""Pods of which the fewest that have to end are looked for, those of the nodes with most room first."""
ADVICE_UNITS_ENDED = 4
"""Running gangs of which the end is tried."""
ADVICE_LESS = 8
"""Amounts of a device that are tried one by one, the highest first, for a pod that asks for less."""
ADVICE_MEMBERS = 16
"""Further members that a multiple may ask for."""
ADVICE_RAISES = 6
"""Times that quotas are raised together until none refuses."""
ADVICE_WEIGHTS = 4
"""Times that a weight is doubled."""

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
OPENED_PLACES = 256
"""Domains that a gang with required affinity to itself may open, up to which counting tries each; beyond, a model
chooses."""
OPENED_MODELS = 8
"""The same for pods of several kinds, each place in a model of its own: places that differ in more than names."""
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
RANK_STEPS = 6_000
"""Steps of one search for an order of ranks: exchanges tried, or domains put in order."""

# --- Victims ---
RUNTIME_STEPS = 256
"""Steps in which a runtime follows the total that victims in no quota give to; with more values of that each step is
rounded down."""
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
NEEDLESS_UNITS_TRIED = 4
"""Victim units of one plan that are tried with all filters to count plans that are not minimal."""

# --- Queue ---
COUNTED_KINDS = 16
"""Kinds of pods of a gang up to which an ordinary round looks for nodes; a gang of more is left to a search, because
the figures of thousands of kinds alone take seconds."""
STARVING_BESIDE = 64
"""Starving units that are not due and looked at in a round."""

EMPTIED_UNITS = 16
"""Kinds of units that a round places on the emptied cluster, to learn whether they could ever fit."""
EMPTIED_PODS = 20_000
"""Pods that leave the emptied cluster in a round, all units together: 3 us each, and more where filters follow them."""
EMPTIED_OFFLINE = 25
"""How many times as many of both offline, where no pod waits for the round."""
EMPTIED_REGIONS = 32
"""Domains that one such placement tries; where more may hold the unit it is not decided."""
EMPTIED_TIME = 0.2
"""Deterministic time of one such placement; beyond, the unit may fit."""
NEVER_KEPT = 4_000
"""Answers whether a unit could ever fit that are kept between rounds."""

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

# --- Questions of tenants ---
ASKED_EACH_SECOND = 2.0
"""Questions a second that one tenant may ask on average."""
ASKED_AT_ONCE = 20
"""Questions that one tenant may ask at once after a pause."""
TENANTS_METERED = 4_096
"""Tenants whose questions are counted; of more the longest silent one is forgotten."""
QUESTIONS_OPEN = 64
"""Open questions of all tenants from which on no tenant may have a second one open."""
QUESTIONS_OPEN_EACH = 4
"""Questions of one tenant that may be open at once, and explanations of one namespace that may be due at once."""
REFUSAL_SECONDS = 2.0
"""Seconds after which a question above a limit is refused, so that a loop of questions is a slow one."""
REFUSALS_WAITING = 256
"""Refusals that wait at once; further ones are sent at once."""
REVIEWS_EACH_SECOND = 20.0
"""SubjectAccessReviews a second that questions may cost the API server."""
REVIEWS_AT_ONCE = 40
"""SubjectAccessReviews that questions may cost at once after a pause."""
REVIEW_SECONDS = 10.0
"""Seconds for which the answer of a SubjectAccessReview holds."""
REVIEWS_KEPT = 1_024
"""Answers of SubjectAccessReviews that are kept."""
BOARD_SECONDS = 2.0
"""Seconds for which the view of the cluster that questions are answered from is kept."""
BOARD_PACE = 10.0
"""The view is kept for at least so many times the seconds that it took to make."""
WORK_PACE = 4.0
"""Seconds of pause after a second of explaining, for all tenants together ..."""
WORK_PAUSE_SECONDS = 10.0
"""... and the longest such pause."""
TENANT_PACE = 20.0
"""Seconds of pause after a second of explaining for one tenant, for that tenant ..."""
TENANT_PAUSE_SECONDS = 300.0
"""... and the longest such pause."""
ANSWER_SECONDS = 10.0
"""Seconds that a question waits for its explanation; then it is answered without."""
ANSWERS_HELD_SECONDS = 20.0
"""Seconds for which an explanation holds."""
ANSWERS_KEPT = 256
"""Explanations that are kept."""
ANSWER_ROWS = 500
"""Pods, units or domains that one answer lists; the rest is counted."""
ASKED_NAME_BYTES = 512
"""Bytes of a name in a question; no object has a longer one."""
HINTED_NAMES = 500
"""Names of a namespace among which a misspelt one is looked for."""
