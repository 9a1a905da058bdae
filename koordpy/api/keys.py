"""Names of all labels, annotations, resources and API groups that koordpy reads or writes. No other module has them.

vocabulary.md 3 to 9 states the meaning and the values of each key. If a key has an alias, the alias follows the name
that koordpy writes.
"""

DEFAULT_SCHEDULER_NAME = "koord-scheduler"

# Gangs
GANG_PREFIX = "gang.scheduling.koordinator.sh/"
LABEL_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"
LABEL_POD_GROUP_X = "scheduling.x-k8s.io/pod-group"
LABEL_GANG_NAME = "pod-group.scheduling.sigs.k8s.io/name"
LABEL_GANG_MIN = "pod-group.scheduling.sigs.k8s.io/min-available"
GANG_NAME = GANG_PREFIX + "name"
GANG_MIN = GANG_PREFIX + "min-available"
GANG_GROUPS = GANG_PREFIX + "groups"
GANG_MODE = GANG_PREFIX + "mode"
GANG_MATCH_POLICY = GANG_PREFIX + "match-policy"
GANG_WAITING_TIME = GANG_PREFIX + "waiting-time"
GANG_TOTAL = GANG_PREFIX + "total-number"
GANG_TOPOLOGY = GANG_PREFIX + "networkTopologyAware"
GANG_TOPOLOGY_ALIAS = GANG_PREFIX + "network-topology-spec"
GANG_AUTO = GANG_PREFIX + "auto"  # on, off: whether the pods of a workload are a gang
GANG_STALE_GRACE = GANG_PREFIX + "stale-grace"
MAX_RUNTIME = "scheduling.koordinator.sh/max-runtime"

# Ranks
RANK_INDEX_LABEL = "pod-group.scheduling.koordinator.sh/index"
RANK_INDEX_ANNOTATION = "network-topology-index"
RANK_INDEX_ANNOTATION_LONG = GANG_PREFIX + "network-topology-index"
JOB_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

# Attraction
TOPOLOGY_SELECTOR = "scheduling.koordinator.sh/network-topology-selector"

# Written with every Binding
BOUND_DOMAIN = "scheduling.koordinator.sh/domain"
BOUND_RANK = "scheduling.koordinator.sh/rank"
BIND_GROUP_ID = "internal.scheduling.koordinator.sh/bind-gang-group-id"
BIND_MEMBER_COUNT = "internal.scheduling.koordinator.sh/bind-gang-member-count"
BOUND_EPOCH = "internal.scheduling.koordinator.sh/epoch"
BOUND_LEASE = "internal.scheduling.koordinator.sh/lease"

# Marks the substitute of an object that cannot be read; never written
UNREADABLE = "internal.scheduling.koordinator.sh/unreadable"

# Quotas and users
QUOTA_PREFIX = "quota.scheduling.koordinator.sh/"
QUOTA_NAME = QUOTA_PREFIX + "name"
QUOTA_USER = QUOTA_PREFIX + "user"
QUOTA_PREEMPTIBLE = QUOTA_PREFIX + "preemptible"
DISABLE_PREEMPTIBLE = "scheduling.koordinator.sh/disable-preemptible"
QUOTA_PARENT = QUOTA_PREFIX + "parent"
QUOTA_IS_PARENT = QUOTA_PREFIX + "is-parent"
QUOTA_LENDS = QUOTA_PREFIX + "allow-lent-resource"
QUOTA_TREE_ID = QUOTA_PREFIX + "tree-id"
QUOTA_FORCE = QUOTA_PREFIX + "allow-force-update"
QUOTA_WEIGHT = QUOTA_PREFIX + "shared-weight"
QUOTA_NAMESPACES = QUOTA_PREFIX + "namespaces"
QUOTA_TOTAL = QUOTA_PREFIX + "total-resource"
QUOTA_CHILDREN_FROM = QUOTA_PREFIX + "allow-children-from"
DEFAULT_QUOTA = "koordinator-default-quota"
SYSTEM_QUOTA = "koordinator-system-quota"
ROOT_QUOTA = "koordinator-root-quota"
BUILT_IN_QUOTAS = (DEFAULT_QUOTA, SYSTEM_QUOTA, ROOT_QUOTA)
SYSTEM_NAMESPACE = "kube-system"
MIRROR = "kubernetes.io/config.mirror"

# Keys that prevent a running pod from being moved
DEFRAG = "scheduling.koordinator.sh/defrag"
"""Value `never`, on the pod or its PodGroup."""
PREFER_NO_EVICTION = "descheduler.alpha.kubernetes.io/prefer-no-eviction"
DO_NOT_DISRUPT = "karpenter.sh/do-not-disrupt"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
SAFE_TO_CONSOLIDATE = "kai.scheduler/safe-to-consolidate"

# Resources
GPU_RESOURCES = ("nvidia.com/gpu", "koordinator.sh/gpu", "aliyun.com/gpu", "aliyun.com/gpu-count")
NPU_RESOURCES = ("huawei.com/Ascend910", "huawei.com/Ascend310", "huawei.com/Ascend310P", "huawei.com/npu")
GPU_PARTS = (
    "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio",
    "koordinator.sh/gpu.shared", "aliyun.com/gpu-mem",
)  # fmt: skip
"""Resources for parts of GPUs: the cards of such a pod are written in its annotations."""
ACCELERATORS = (*GPU_RESOURCES, *NPU_RESOURCES)
"""Resources that are counted as devices when queues and users are compared."""
HUNDREDTHS = ("koordinator.sh/gpu",)
"""Resources counted in hundredths of a device."""

# Ascend (ascend.md 2 and 4 to 6): keys of jobs and nodes
ACCELERATOR_TYPE = "accelerator-type"
SCHEDULE_POLICY = "huawei.com/schedule_policy"
AFFINITY_CONFIG = "huawei.com/affinity-config"
RECOVER_POLICY = "huawei.com/recover_policy_path"
SP_BLOCK = "sp-block"
SUPER_POD_AFFINITY = "super-pod-affinity"
SUPER_POD_ID = "huawei.com/topotree.superpodid"
SUPER_POD_ID_ANNOTATION = "superPodID"
TOR_AFFINITY = "tor-affinity"
NPU_310_STRATEGY = "npu-310-strategy"
NPU_DUO = "duo"
NPU_DISTRIBUTED = "distributed"
FAULT_SCHEDULING = "fault-scheduling"

ASCEND_LABELS = (TOR_AFFINITY, SUPER_POD_AFFINITY, NPU_310_STRATEGY, NPU_DUO, NPU_DISTRIBUTED, FAULT_SCHEDULING)
ASCEND_ANNOTATIONS = (SCHEDULE_POLICY, SP_BLOCK, AFFINITY_CONFIG, RECOVER_POLICY)
"""Keys of a job: read from its PodGroup, or from its pods."""

# Ascend: annotations in every Binding of an NPU pod, in addition to the annotation named like its resource
DISTRIBUTED_JOB = "distributed-job"
RANK_INDEX = "hccl/rankIndex"
SHARED_TOR = "isSharedTor"
TOR_HEALTHY = "isHealthy"
SHARED_TOR_IP = "sharedTorIp"
SUPER_POD_RANK = "super-pod-rank"
BOUND_SUPER_POD = "super-pod-id"
PREDICATE_TIME = "predicate-time"
"""Unix nanoseconds of the Binding; the device plugin serves waiting pods in this order. Live only."""

# Ascend: ConfigMaps
DEVICE_INFO_PREFIX = "mindx-dl-deviceinfo-"
DEVICE_INFO_KEY = "DeviceInfoCfg"
SWITCH_TABLE = "basic-tor-node-cm"
SWITCH_TABLE_KEY = "tor_info"
SWITCH_LEVEL_KEY = "tor_level"

# GPUs in a node
GPU_GROUP_NAME = "gputopology.scheduling.koordinator.sh/name"
GPU_GROUP_REPLICA = "gputopology.scheduling.koordinator.sh/replica"
GPU_MIN_BANDWIDTH = "gputopology.scheduling.koordinator.sh/min-bandwidth"
GPU_ALLOCATION = "topology.scheduling.koordinator.sh/gpu"
GPU_NVIDIA_VISIBLE = "topology.scheduling.koordinator.sh/nvidia-visible-devices"
GPU_CUDA_VISIBLE_PREFIX = "topology.scheduling.koordinator.sh/cuda-visible-devices."
"""Prefix; followed by the index of the container in spec.containers, or by INIT_PREFIX and its index in
spec.initContainers."""
INIT_PREFIX = "init-"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"
GPUSHARE_ASSIGNED = "ALIYUN_COM_GPU_ASSIGNED"
GPUSHARE_ASSUME_TIME = "ALIYUN_COM_GPU_ASSUME_TIME"
GPUSHARE_ID_PREFIX = "ALIYUN_COM_GPU_ID_"
"""Prefix; followed by the minor of a GPU."""
GSOC_PREFIX = "GSOC_ID_"
"""Prefix on nodes; followed by two GPUs joined by `_`. The value is the link between them."""
GPU_PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
GPU_PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"
GPU_PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"
GPU_MODEL = "node.koordinator.sh/gpu-model"
GPU_DELIVERY = "scheduling.koordinator.sh/gpu-delivery"
DEVICE_BOOT = "scheduling.koordinator.sh/boot-id"
"""Boot id of the node at which a Device was written: a Device keeps GPUs that vanish during this boot."""
NVIDIA_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

# Annotations that koordpy writes for other programs, and prefixes of such annotations
WRITTEN = (
    BOUND_DOMAIN, BOUND_RANK, BIND_GROUP_ID, BIND_MEMBER_COUNT, BOUND_EPOCH, BOUND_LEASE, GPU_ALLOCATION,
    GPU_NVIDIA_VISIBLE, DEVICE_ALLOCATED, DEVICE_BOOT, UNREADABLE,
)  # fmt: skip
WRITTEN_PREFIXES = (GPU_CUDA_VISIBLE_PREFIX,)


def is_written(key: str) -> bool:
    """Returns whether koordpy writes an annotation of this name."""
    return key in WRITTEN or key.startswith(WRITTEN_PREFIXES)


# Prefixes of koordpy and of Koordinator: an unknown key with one of these gets a warning
PREFIXES = (
    GANG_PREFIX, QUOTA_PREFIX, "gputopology.scheduling.koordinator.sh/", "topology.scheduling.koordinator.sh/",
    "scheduling.koordinator.sh/", "koordpy.io/", "pod-group.scheduling.sigs.k8s.io/",
    "pod-group.scheduling.koordinator.sh/",
)  # fmt: skip
# Keys with these prefixes that get no warning: Koordinator writes them, or its descheduler and load estimates read them
KOORDINATOR_KEYS = (
    GANG_PREFIX + "timeout",
    *(
        QUOTA_PREFIX + name
        for name in (
            "runtime", "request", "child-request", "guaranteed", "allocated", "used", "non-preemptible-request",
            "non-preemptible-used", "unschedulable-resource", "resource-keys", "profile", "is-root",
        )
    ),
    *(
        "scheduling.koordinator.sh/" + name
        for name in (
            "resource-status", "bind-gang-group-id", "bind-gang-member-count", "bind-timestamp", "gpu-minors",
            "reservation-allocated", "reservation-current-owner", "reservation-ignored", "eviction-cost",
            "soft-eviction", "load-estimated-scaling-factors", "load-estimated-seconds-after-pod-scheduled",
            "load-estimated-seconds-after-initialized",
        )
    ),
)  # fmt: skip

# Keys of future versions
LATER = frozenset(
    (
        *(GANG_PREFIX + name for name in ("repair", "seat-hold", "provisioning-class", "slice")),
        *(
            "scheduling.koordinator.sh/" + name
            for name in ("spare", "min-runtime", "last-checkpoint", "gpu-mig", "gpu-isolation")
        ),
        *(
            "koordpy.io/" + name
            for name in (
                "maintenance-window", "workload", "arrival", "duration", "checkpoint-interval", "dsw", "psw", "asw",
            )
        ),
        "koordinator.sh/gpu-isolation-provider",
    )
)  # fmt: skip
LATER_PREFIXES = ("provisioning.scheduling.koordinator.sh/", "kueue.x-k8s.io/podset-")

TOPOLOGY_OBJECT = "default"
"""Name of the only ClusterNetworkTopology that is read (gang-network.md 3)."""

# Gangs of other schedulers: key -> scheduler
VOLCANO_GROUPS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
FOREIGN_GANGS = {
    **dict.fromkeys(VOLCANO_GROUPS, "Volcano"),
    "kueue.x-k8s.io/pod-group-name": "Kueue",
    "pod-group-name": "KAI-Scheduler",
    "yunikorn.apache.org/task-group-name": "YuniKorn",
}

READ_GROUP = f"koordpy reads the label {LABEL_POD_GROUP} instead, which names a PodGroup"
_QUOTA, _GATHER = (f"koordpy reads the {one} instead" for one in (f"label {QUOTA_NAME}", f"annotation {GANG_TOPOLOGY}"))
_MIN_MEMBER = "koordpy reads minMember of a PodGroup instead"
_JOINED = f"koordpy reads the annotation {GANG_GROUPS} of PodGroups instead"
FOREIGN = {
    "scheduling.volcano.sh/queue-name": ("Volcano", _QUOTA),
    "volcano.sh/queue-name": ("Volcano", _QUOTA),
    "volcano.sh/preemptable": ("Volcano", f"koordpy reads the label {QUOTA_PREEMPTIBLE} instead"),
    "kai.scheduler/queue": ("KAI-Scheduler", _QUOTA),
    "kai.scheduler/batch-min-member": ("KAI-Scheduler", _MIN_MEMBER),
    "kai.scheduler/subgroup-name": ("KAI-Scheduler", _JOINED),
    "kai.scheduler/topology": (
        "KAI-Scheduler",
        f"koordpy reads the ClusterNetworkTopology {TOPOLOGY_OBJECT} instead",
    ),
    "kai.scheduler/topology-required-placement": ("KAI-Scheduler", _GATHER),
    "kai.scheduler/topology-preferred-placement": ("KAI-Scheduler", _GATHER),
    "yunikorn.apache.org/queue": ("YuniKorn", _QUOTA),
    "yunikorn.apache.org/task-groups": ("YuniKorn", f"{_MIN_MEMBER}, and joins PodGroups by {GANG_GROUPS}"),
}
"""Key of another scheduler -> (the scheduler, text of the warning)."""

# API groups of koordpy and of coscheduling
GROUP_KOORDINATOR = "scheduling.koordinator.sh"
GROUP_SIGS = "scheduling.sigs.k8s.io"
GROUP_X = "scheduling.x-k8s.io"
GROUP_UPSTREAM = "scheduling.k8s.io"
GROUP_VOLCANO_TOPOLOGY = "topology.volcano.sh"

# Topology
CLUSTER_LAYER = "ClusterTopologyLayer"
NODE_LAYER = "nodeLayer"

# Priorities that exist on every API server
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
SYSTEM_PRIORITY_FLOOR = 2_000_000_000
PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"
"""Default preemptionPolicy of an API server; the other value is Never."""
