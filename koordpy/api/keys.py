# SPDX-License-Identifier: Apache-2.0
"""Names of all labels, annotations, resources and API groups that koordpy reads or writes. No other module has them.

vocabulary.md 3 to 9 states the meaning and the values of each key. If a key has an alias, the alias follows the name
that koordpy writes.
"""

DEFAULT_SCHEDULER_NAME = "koord-scheduler"
HOSTNAME = "kubernetes.io/hostname"  # label of a node: its name, as most clusters set it

# Gangs
GANG_PREFIX = "gang.scheduling.koordinator.sh/"
LABEL_POD_GROUP = "pod-group.scheduling.sigs.k8s.io"  # label of a pod: name of its PodGroup
LABEL_POD_GROUP_X = "scheduling.x-k8s.io/pod-group"  # alias of LABEL_POD_GROUP
LABEL_GANG_NAME = "pod-group.scheduling.sigs.k8s.io/name"  # label of a pod: its gang, if there is no PodGroup
LABEL_GANG_MIN = "pod-group.scheduling.sigs.k8s.io/min-available"  # label of a pod: minMember of that gang
GANG_NAME = GANG_PREFIX + "name"  # annotation of a pod: its gang, if there is no PodGroup
GANG_MIN = GANG_PREFIX + "min-available"  # annotation: minMember
GANG_GROUPS = GANG_PREFIX + "groups"  # JSON list of gangs that are planned together
GANG_MODE = GANG_PREFIX + "mode"  # Strict, NonStrict
GANG_MATCH_POLICY = GANG_PREFIX + "match-policy"  # which members count for minMember
GANG_WAITING_TIME = GANG_PREFIX + "waiting-time"  # Go duration
GANG_TOTAL = GANG_PREFIX + "total-number"  # number of members, for messages only
GANG_TOPOLOGY = GANG_PREFIX + "networkTopologyAware"  # JSON: locality in the network
GANG_TOPOLOGY_ALIAS = GANG_PREFIX + "network-topology-spec"
GANG_AUTO = GANG_PREFIX + "auto"  # on, off: whether the pods of a workload are a gang
GANG_PROVISIONING_CLASS = GANG_PREFIX + "provisioning-class"  # class of the gang's ProvisioningRequests, or none
GANG_STALE_GRACE = GANG_PREFIX + "stale-grace"  # Go duration, -1 for never
GANG_REPAIR = GANG_PREFIX + "repair"  # replace, regather, wait
GANG_SEAT_HOLD = GANG_PREFIX + "seat-hold"  # Go duration: capacity is reserved for missing members; 0s: never
SPARE = "scheduling.koordinator.sh/spare"  # label of a node: true, false: kept free for broken gangs
MAX_RUNTIME = "scheduling.koordinator.sh/max-runtime"  # Go duration: the gang ends within this time

# Ranks
RANK_INDEX_LABEL = "pod-group.scheduling.koordinator.sh/index"  # rank of a pod: the first of four keys that is set
RANK_INDEX_ANNOTATION = "network-topology-index"
RANK_INDEX_ANNOTATION_LONG = GANG_PREFIX + "network-topology-index"
JOB_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

# Attraction
TOPOLOGY_SELECTOR = "scheduling.koordinator.sh/network-topology-selector"  # pods with equal values are close

# Written with every Binding
BOUND_DOMAIN = "scheduling.koordinator.sh/domain"  # path of the lowest domain with all bound members
BOUND_RANK = "scheduling.koordinator.sh/rank"  # rank in the gang, from 0
BIND_GROUP_ID = "internal.scheduling.koordinator.sh/bind-gang-group-id"  # equal for pods that were bound together
BIND_MEMBER_COUNT = "internal.scheduling.koordinator.sh/bind-gang-member-count"  # number of these pods
BOUND_EPOCH = "internal.scheduling.koordinator.sh/epoch"  # epoch of the leader
BOUND_LEASE = "internal.scheduling.koordinator.sh/lease"  # namespace/name of the Lease of the leader

# Marks the substitute that koordpy stores for an unreadable object; not written to the API server
UNREADABLE = "internal.scheduling.koordinator.sh/unreadable"

# Quotas and users
QUOTA_PREFIX = "quota.scheduling.koordinator.sh/"
QUOTA_NAME = QUOTA_PREFIX + "name"  # label of a pod: its ElasticQuota
QUOTA_USER = QUOTA_PREFIX + "user"  # label of a pod: its user
QUOTA_PREEMPTIBLE = QUOTA_PREFIX + "preemptible"  # label of a pod: "false" forbids its eviction
DISABLE_PREEMPTIBLE = "scheduling.koordinator.sh/disable-preemptible"  # label of a pod: "true" means the same
QUOTA_PARENT = QUOTA_PREFIX + "parent"  # label of an ElasticQuota: the quota above
QUOTA_IS_PARENT = QUOTA_PREFIX + "is-parent"  # "true": other quotas are below it
QUOTA_LENDS = QUOTA_PREFIX + "allow-lent-resource"  # "false": its min is not lent
QUOTA_TREE_ID = QUOTA_PREFIX + "tree-id"  # puts a quota into a separate tree
QUOTA_FORCE = QUOTA_PREFIX + "allow-force-update"  # "true": mins of quotas below may exceed its own
QUOTA_WEIGHT = QUOTA_PREFIX + "shared-weight"  # JSON: share of free capacity by resource
QUOTA_NAMESPACES = QUOTA_PREFIX + "namespaces"  # JSON list: namespaces of its pods
QUOTA_TOTAL = QUOTA_PREFIX + "total-resource"  # JSON: total resources of the tree
QUOTA_CHILDREN_FROM = QUOTA_PREFIX + "allow-children-from"  # JSON list: namespaces of quotas below
DEFAULT_QUOTA = "koordinator-default-quota"
SYSTEM_QUOTA = "koordinator-system-quota"
ROOT_QUOTA = "koordinator-root-quota"
BUILT_IN_QUOTAS = (DEFAULT_QUOTA, SYSTEM_QUOTA, ROOT_QUOTA)
SYSTEM_NAMESPACE = "kube-system"
MIRROR = "kubernetes.io/config.mirror"  # annotation of static pods, which the kubelet creates

# Keys that prevent a running pod from being moved
DEFRAG = "scheduling.koordinator.sh/defrag"
"""Annotation of a pod or its PodGroup: the value `never` forbids moves."""
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
ACCELERATOR_TYPE = "accelerator-type"  # label of a node: product of its NPUs
SCHEDULE_POLICY = "huawei.com/schedule_policy"  # annotation of a job: preset for the choice of NPUs
AFFINITY_CONFIG = "huawei.com/affinity-config"  # annotation of a job: sizes of its groups by layer
RECOVER_POLICY = "huawei.com/recover_policy_path"  # annotation of a job: pod, job; what may move after a fault
SP_BLOCK = "sp-block"  # annotation of a job: NPUs in one block of a SuperPoD
SUPER_POD_AFFINITY = "super-pod-affinity"  # label of a job: hard, soft
SUPER_POD_ID = "huawei.com/topotree.superpodid"  # label of a node: its SuperPoD
SUPER_POD_ID_ANNOTATION = "superPodID"  # the same as an annotation
TOR_AFFINITY = "tor-affinity"  # label of a job: placement by leaf switches
NPU_310_STRATEGY = "npu-310-strategy"  # label of a job; card: all NPUs of a pod on one card
NPU_DUO = "duo"  # label of a job; "true": Duo cards
NPU_DISTRIBUTED = "distributed"  # label of a job; "true": the job has one NPU pod
FAULT_SCHEDULING = "fault-scheduling"  # label of a job: grace, force

ASCEND_LABELS = (TOR_AFFINITY, SUPER_POD_AFFINITY, NPU_310_STRATEGY, NPU_DUO, NPU_DISTRIBUTED, FAULT_SCHEDULING)
ASCEND_ANNOTATIONS = (SCHEDULE_POLICY, SP_BLOCK, AFFINITY_CONFIG, RECOVER_POLICY)
"""Keys of a job: read from its PodGroup, or from its pods."""

# Ascend: annotations in every Binding of an NPU pod, in addition to the annotation named like its resource
DISTRIBUTED_JOB = "distributed-job"
RANK_INDEX = "hccl/rankIndex"  # rank of the pod
SHARED_TOR = "isSharedTor"  # 0: one leaf; 2: the leaf belongs to the job; 1: other leaves
TOR_HEALTHY = "isHealthy"  # "1" or "0"
SHARED_TOR_IP = "sharedTorIp"  # address of that switch
SUPER_POD_RANK = "super-pod-rank"  # number of the block
BOUND_SUPER_POD = "super-pod-id"  # SuperPoD of the block
PREDICATE_TIME = "predicate-time"
"""Unix nanoseconds of the Binding; the device plugin serves waiting pods in this order. Live only."""

# Ascend: ConfigMaps
DEVICE_INFO_PREFIX = "mindx-dl-deviceinfo-"  # followed by the name of the node: its NPUs
DEVICE_INFO_KEY = "DeviceInfoCfg"  # key of the JSON in such a ConfigMap
SWITCH_TABLE = "basic-tor-node-cm"  # nodes by leaf switch
SWITCH_TABLE_KEY = "tor_info"
SWITCH_LEVEL_KEY = "tor_level"

# GPUs in a node
GPU_GROUP_NAME = "gputopology.scheduling.koordinator.sh/name"  # label of a pod: its GPU group, with the next label
GPU_GROUP_REPLICA = "gputopology.scheduling.koordinator.sh/replica"  # both must be equal for the pods of a group
GPU_MIN_BANDWIDTH = "gputopology.scheduling.koordinator.sh/min-bandwidth"  # annotation of a pod: GB/s
GPU_ALLOCATION = "topology.scheduling.koordinator.sh/gpu"  # of a Binding, JSON: GPUs by container
GPU_NVIDIA_VISIBLE = "topology.scheduling.koordinator.sh/nvidia-visible-devices"  # of a Binding: UUIDs of its GPUs
GPU_CUDA_VISIBLE_PREFIX = "topology.scheduling.koordinator.sh/cuda-visible-devices."
"""Prefix; followed by the index of the container in spec.containers, or by INIT_PREFIX and its index in
spec.initContainers."""
INIT_PREFIX = "init-"
DEVICE_ALLOCATED = "scheduling.koordinator.sh/device-allocated"  # of a Binding, JSON: all GPUs of the pod
GPUSHARE_ASSIGNED = "ALIYUN_COM_GPU_ASSIGNED"
GPUSHARE_ASSUME_TIME = "ALIYUN_COM_GPU_ASSUME_TIME"
GPUSHARE_ID_PREFIX = "ALIYUN_COM_GPU_ID_"
"""Prefix; followed by the minor of a GPU."""
GSOC_PREFIX = "GSOC_ID_"
"""Prefix of annotations of nodes; followed by the minors of two GPUs, joined by `_`. The value is their link."""
GPU_PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"  # of a Device, JSON: sets of GPUs
GPU_PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"  # of a pod, JSON: how strictly the sets apply
GPU_PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"  # label of a node: GPU_PARTITION_SPEC for all pods
GPU_MODEL = "node.koordinator.sh/gpu-model"  # label of a node: selects a built-in table of partitions
GPU_DELIVERY = "scheduling.koordinator.sh/gpu-delivery"  # label of a Device: how containers get their GPUs
DEVICE_BOOT = "scheduling.koordinator.sh/boot-id"
"""Annotation of a Device: boot id of the node when it was written. It keeps GPUs that vanish during this boot."""
NVIDIA_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
CUDA_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

# ProvisioningRequests of autoscaling.x-k8s.io
PROVISIONING_PARAMETER = "provisioning.scheduling.koordinator.sh/"  # prefix of annotations of a gang: parameters
PROVISIONING_FOR = "scheduling.koordinator.sh/provisioning-for"  # of a request: names of its gangs
PROVISIONING_ATTEMPT = "scheduling.koordinator.sh/provisioning-attempt"  # of a request: its number, from 1
CONSUMES_REQUEST = "autoscaling.x-k8s.io/consume-provisioning-request"  # of a Binding: name of the request
CONSUMES_CLASS = "autoscaling.x-k8s.io/provisioning-class-name"  # of a Binding: class of the request

# NUMA zones of nodes
NUMA_POLICY = "node.koordinator.sh/numa-topology-policy"  # label of a node: policy if no report states one
NUMA_SPEC = "scheduling.koordinator.sh/numa-topology-spec"  # annotation of a pod, JSON: alignment that it demands
NUMA_SPEC_ALIAS = "volcano.sh/numa-topology-policy"  # the same, as a word
RESOURCE_STATUS = "scheduling.koordinator.sh/resource-status"  # of a Binding, JSON: amounts of the pod by zone
KAI_PLACEMENT = "kai.scheduler/numa-placement-observed"  # of a pod, JSON: amounts by zone as an exporter saw them
CPU_MANAGER_POLICY = "kubelet.koordinator.sh/cpu-manager-policy"  # of a report, JSON: CPU Manager of the kubelet
CPU_TOPOLOGY = "node.koordinator.sh/cpu-topology"  # of a report, JSON: zone of each CPU
POD_CPU_ALLOCS = "node.koordinator.sh/pod-cpu-allocs"  # of a report, JSON: CPUs of each pod
NUMA_REPORT = (CPU_MANAGER_POLICY, CPU_TOPOLOGY, POD_CPU_ALLOCS)

# Annotations that koordpy writes for other programs, and prefixes of such annotations
WRITTEN = (
    BOUND_DOMAIN, BOUND_RANK, BIND_GROUP_ID, BIND_MEMBER_COUNT, BOUND_EPOCH, BOUND_LEASE, GPU_ALLOCATION,
    GPU_NVIDIA_VISIBLE, DEVICE_ALLOCATED, DEVICE_BOOT, UNREADABLE, RESOURCE_STATUS, PROVISIONING_FOR,
    PROVISIONING_ATTEMPT,
)  # fmt: skip
WRITTEN_PREFIXES = (GPU_CUDA_VISIBLE_PREFIX,)


def is_written(key: str) -> bool:
    """Returns True if koordpy writes an annotation of this name."""
    return key in WRITTEN or key.startswith(WRITTEN_PREFIXES)


# Prefixes of koordpy and of Koordinator: an unknown key with such a prefix gets a warning
PREFIXES = (
    GANG_PREFIX, QUOTA_PREFIX, "gputopology.scheduling.koordinator.sh/", "topology.scheduling.koordinator.sh/",
    "scheduling.koordinator.sh/", "koordpy.io/", "pod-group.scheduling.sigs.k8s.io/",
    "pod-group.scheduling.koordinator.sh/",
)  # fmt: skip
# Keys with these prefixes that get no warning, because Koordinator writes or reads them
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
            "bind-gang-group-id", "bind-gang-member-count", "bind-timestamp", "gpu-minors",
            "reservation-allocated", "reservation-current-owner", "reservation-ignored", "eviction-cost",
            "soft-eviction", "load-estimated-scaling-factors", "load-estimated-seconds-after-pod-scheduled",
            "load-estimated-seconds-after-initialized",
        )
    ),
)  # fmt: skip

# Keys of future versions
LATER = frozenset(
    (
        GANG_PREFIX + "slice",
        *(
            "scheduling.koordinator.sh/" + name
            for name in ("min-runtime", "last-checkpoint", "gpu-mig", "gpu-isolation")
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
LATER_PREFIXES = ("kueue.x-k8s.io/podset-",)

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
GROUP_AUTOSCALING = "autoscaling.x-k8s.io"
GROUP_VOLCANO_TOPOLOGY = "topology.volcano.sh"
GROUP_NODE_TOPOLOGY = "topology.node.k8s.io"

# Topology
CLUSTER_LAYER = "ClusterTopologyLayer"
NODE_LAYER = "nodeLayer"

# Priorities that exist on every API server
SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
SYSTEM_PRIORITY_FLOOR = 2_000_000_000  # priorities from here on are reserved for system classes
PREEMPT_LOWER_PRIORITY = "PreemptLowerPriority"
"""Default preemptionPolicy of an API server; the other value is Never."""
