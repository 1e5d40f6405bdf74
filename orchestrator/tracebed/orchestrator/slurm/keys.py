"""The keys of a slurm.conf: those that affect scheduling, by group, and all others that Slurm accepts.

Source: the manual page slurm.conf(5) of Slurm 22.05, and which keys the parser of Slurm 22.05.8 accepts; in addition
keys of older versions (to 15.08) and newer ones (to 26.05).
"""

from __future__ import annotations

from collections.abc import Mapping

PRIORITY = "priority"
PREEMPTION = "preemption"
LIMITS = "limits"
RESOURCES = "resources"
DELAYS = "delays of starts and ends"
STATES = "availability"
ORDER = "the choice of nodes"
CHANGES = "changes of jobs"
ACCESS = "access"

GROUPS: Mapping[str, tuple[str, ...]] = {
    PRIORITY: (
        *("FairShareDampeningFactor", "PriorityCalcPeriod", "PriorityDecayHalfLife", "PriorityFavorSmall"),
        *("PriorityFlags", "PriorityMaxAge", "PriorityParameters", "PrioritySiteFactorParameters"),
        *("PrioritySiteFactorPlugin", "PriorityUsageResetPeriod", "PriorityWeightAge", "PriorityWeightAssoc"),
        *("PriorityWeightFairshare", "PriorityWeightJobSize", "PriorityWeightPartition", "PriorityWeightQOS"),
        "PriorityWeightTRES",
    ),
    PREEMPTION: ("PreemptExemptTime", "PreemptMode", "PreemptParameters", "PreemptType", "SchedulerTimeSlice"),
    LIMITS: (
        *("AccountingStorageEnforce", "DefCpuPerGPU", "DefMemPerCPU", "DefMemPerGPU", "DefMemPerNode", "Licenses"),
        *("EnforcePartLimits", "MaxJobCount", "MaxMemPerCPU", "MaxMemPerNode"),
    ),
    RESOURCES: (
        *("BurstBufferType", "GresTypes", "MCSParameters", "MCSPlugin", "NodeFeaturesPlugins", "PowerParameters"),
        *("PowerPlugin", "SelectTypeParameters", "TopologyParam"),
    ),
    DELAYS: (
        *("CompleteWait", "Epilog", "EpilogSlurmctld", "KillWait", "OverTimeLimit", "Prolog"),
        *("PrologFlags", "PrologSlurmctld", "ResumeProgram", "ResumeRate", "ResumeTimeout", "ResvOverRun"),
        *("SuspendExcNodes", "SuspendExcParts", "SuspendExcStates", "SuspendProgram", "SuspendRate"),
        *("SuspendTime", "SuspendTimeout"),
    ),
    CHANGES: (
        *("CliFilterPlugins", "DependencyParameters", "FederationParameters", "JobRequeue", "JobSubmitPlugins"),
        *("MaxBatchRequeue", "RequeueExit", "RequeueExitHold"),
    ),
}
"""What the policy does not model -> the keys of whole lines that set it."""
PARTITION_GROUPS: Mapping[str, tuple[str, ...]] = {
    PRIORITY: ("Priority", "PriorityJobFactor", "PriorityTier"),
    PREEMPTION: ("GraceTime", "PreemptMode"),
    LIMITS: (
        *("DefaultTime", "DefCPUPerGPU", "DefMemPerCPU", "DefMemPerGPU", "DefMemPerNode", "JobDefaults"),
        *("MaxCPUsPerNode", "MaxCPUsPerSocket", "MaxMemPerCPU", "MaxMemPerNode", "MaxNodes", "MaxTime", "MinNodes"),
        *("QOS", "ReqResv"),
    ),
    RESOURCES: (
        *("Exclusive", "ExclusiveTopo", "ExclusiveUser", "LLN", "OverSubscribe", "SelectTypeParameters", "Shared"),
        "Topology",
    ),
    DELAYS: ("OverTimeLimit", "PowerDownOnIdle", "ResumeTimeout", "SuspendTime", "SuspendTimeout"),
    STATES: ("State",),
    ACCESS: (
        *("AllocNodes", "AllowAccounts", "AllowGroups", "AllowQos", "Alternate", "DenyAccounts", "DenyQos"),
        *("DisableRootJobs", "RootOnly"),
    ),
}
"""What the policy does not model -> the keys of a PartitionName line that set it."""
NODE_GROUPS: Mapping[str, tuple[str, ...]] = {
    RESOURCES: ("CoreSpecCount", "CpuSpecList", "Gres", "MemSpecLimit", "RestrictedCoresPerGPU"),
    DELAYS: ("SuspendTime",),
    ORDER: ("Feature", "Features", "Weight"),
    STATES: ("State",),
}
"""What the policy does not model -> the keys of a NodeName line that set it."""
OF_PARTITIONS = ("CpuBind", "Default", "Hidden", "Nodes", "TRESBillingWeights")
OF_NODES = (
    *("BcastAddr", "Boards", "CPUs", "CoresPerSocket", "CpuBind", "Extra", "InstanceId", "InstanceType", "NodeAddr"),
    *("NodeHostname", "Parameters", "Port", "Procs", "RealMemory", "Reason", "Sockets", "SocketsPerBoard"),
    *("TRESWeights", "ThreadsPerCore", "TmpDisk", "Topology"),
)
DOWN = ("Reason", "State")
LINES: Mapping[str, frozenset[str]] = {
    first.lower(): frozenset(key.lower() for key in keys)
    for first, keys in (
        ("PartitionName", (*OF_PARTITIONS, *(key for group in PARTITION_GROUPS.values() for key in group))),
        ("NodeName", (*OF_NODES, *(key for group in NODE_GROUPS.values() for key in group))),
        ("NodeSet", ("Feature", "Nodes")),
        ("SwitchName", ("LinkSpeed", "Nodes", "Switches")),  # of topology.conf
        ("DownNodes", DOWN),
        ("PowerAction", ("Location", "Program")),
        ("FrontendName", ("AllowGroups", "AllowUsers", "DenyGroups", "DenyUsers", *("FrontendAddr", "Port"), *DOWN)),
    )
}
"""First key of a line with several settings -> its other keys, in lower case."""
MODELED = {
    "schedulertype": ("sched/backfill", "sched/builtin"),
    "selecttype": ("select/linear",),
    "prioritytype": ("priority/basic",),
    "topologyplugin": ("topology/none", "topology/default", "topology/flat"),
}
"""Key of slurm.conf, in lower case -> its values that the policy models."""
MODELED_WITH_CLUSTER = {
    "schedulertype": MODELED["schedulertype"],
    "selecttype": ("select/cons_tres", "select/cons_res", "select/linear"),
    "prioritytype": ("priority/multifactor", "priority/basic"),
    "topologyplugin": (*MODELED["topologyplugin"], "topology/tree"),
    "preempttype": ("preempt/none", "preempt/partition_prio", "preempt/qos"),
}
"""The same for a file with a cluster (`slurm.machine`)."""
OF_CLUSTER = frozenset(
    """
    PriorityWeightAge PriorityWeightFairshare PriorityWeightJobSize PriorityWeightPartition PriorityMaxAge
    PriorityDecayHalfLife PriorityCalcPeriod PriorityFavorSmall FairShareDampeningFactor DefMemPerCPU DefMemPerNode
    GresTypes SelectTypeParameters KillWait PriorityTier PriorityJobFactor Priority MaxTime Gres Feature Features Weight
    PriorityWeightQOS PriorityWeightAssoc PriorityWeightTRES PriorityUsageResetPeriod PriorityFlags QOS
    AccountingStorageEnforce EnforcePartLimits
    DependencyParameters Licenses ResvOverRun PreemptType PreemptMode PreemptExemptTime GraceTime JobRequeue
    CompleteWait OverTimeLimit DefaultTime MaxNodes CoreSpecCount CpuSpecList MemSpecLimit
    """.lower().split()
)
"""Keys, in lower case, that a simulation of a cluster models. With Fair Tree, the dampening factor has no effect."""
SCHEDULER_OF_CLUSTER = frozenset(
    (
        *(
            "bf_licenses",
            "bf_max_job_array_resv",
            "bf_one_resv_per_job",
            "bf_max_job_part",
            "bf_max_job_user_part",
            "partition_job_depth",
        ),
        *("preempt_youngest_first", "preempt_reorder_count"),
    )
)
"""SchedulerParameters that a simulation of a cluster models, beside those of the policy."""
WITHOUT_EFFECT = frozenset(
    """
    AccountingStorageBackupHost AccountingStorageExternalHost AccountingStorageHost AccountingStorageLoc
    AccountingStorageParameters AccountingStoragePass AccountingStoragePort AccountingStorageTRES AccountingStorageType
    AccountingStorageUser AccountingStoreFlags AccountingStoreJobComment AcctGatherEnergyType AcctGatherFilesystemType
    AcctGatherInfinibandType AcctGatherInterconnectType AcctGatherNodeFreq AcctGatherProfileType AllowSpecResourcesUsage
    AuthAltParameters AuthAltTypes AuthInfo AuthType BackupAddr BackupController BatchStartTimeout BcastExclude
    BcastParameters BurstBufferParameters CacheGroups CertgenParameters CertgenType CertmgrParameters CertmgrType
    CheckpointType ChosLoc CliFilterParameters ClusterName CommunicationParameters ControlAddr ControlMachine
    CoreSpecPlugin CpuFreqDef CpuFreqGovernors CredType CryptoType DataParserParameters DebugFlags DefaultStorageHost
    DefaultStorageLoc DefaultStoragePass DefaultStoragePort DefaultStorageType DefaultStorageUser DisableRootJobs
    DynAllocPort EioTimeout EpilogMsgTime EpilogTimeout ExtSensorsFreq ExtSensorsType FastSchedule FirstJobId
    GetEnvTimeout GpuFreqDef GroupUpdateForce GroupUpdateTime HashPlugin HealthCheckInterval HealthCheckNodeState
    HealthCheckProgram HealthCheckTimeout HttpParserType InactiveLimit InteractiveStepOptions JobAcctGatherFrequency
    JobAcctGatherParams JobAcctGatherType JobCheckpointDir JobCompHost JobCompLoc JobCompParams JobCompPass
    JobCompPassScript JobCompPort JobCompType JobCompUser JobContainerType JobCredentialPrivateKey
    JobCredentialPublicCertificate JobFileAppend KeepAliveTime KillOnBadExit LaunchParameters LaunchType Layouts
    LicenseParameters LogTimeFormat MailDomain MailProg MaxArraySize MaxDBDMsgs MaxJobId MaxNodeCount MaxStepCount
    MaxTasksPerNode MemLimitEnforce MessageTimeout MetricsAuthUsers MetricsParameters MetricsType MinJobAge MpiDefault
    MpiParams MsgAggregationParams NamespaceType PlugStackConfig PluginDir PrEpParameters PrEpPlugins PrivateData
    ProctrackType PrologEpilogTimeout PrologTimeout PropagatePrioProcess PropagateResourceLimits
    PropagateResourceLimitsExcept RebootProgram ReconfigFlags ResumeFailProgram ResvEpilog ResvProlog ReturnToService
    RoutePlugin SallocDefaultCommand SbcastParameters SchedulerAuth SchedulerPort SchedulerRootFilter ScronParameters
    SlurmSchedLogFile SlurmSchedLogLevel SlurmUser SlurmctldAddr SlurmctldDebug SlurmctldHost
    SlurmctldHttpAuthParameters SlurmctldLogFile SlurmctldParameters SlurmctldPidFile SlurmctldPlugstack SlurmctldPort
    SlurmctldPrimaryOffProg SlurmctldPrimaryOnProg SlurmctldSyslogDebug SlurmctldTimeout SlurmdDebug
    SlurmdHttpAuthParameters SlurmdLogFile SlurmdParameters SlurmdPidFile SlurmdPort SlurmdSpoolDir SlurmdSyslogDebug
    SlurmdTimeout SlurmdUser SrunEpilog SrunPortRange SrunProlog StateSaveLocation SwitchParameters SwitchType
    TCPTimeout TLSParameters TLSType TaskEpilog TaskPlugin TaskPluginParam TaskProlog TmpFS TrackWCKey TreeWidth
    UnkillableStepProgram UnkillableStepTimeout UrlParserType UsePAM VSizeFactor WaitTime X11Parameters
    """.lower().split()
)
"""Keys, in lower case, that change no decision of the scheduler about a batch job."""
KNOWN = (
    WITHOUT_EFFECT
    | {"schedulerparameters", *MODELED, *LINES}
    | {key.lower() for keys in GROUPS.values() for key in keys}
)
"""All keys at the begin of a line, in lower case."""
OFF = frozenset(
    (
        *("0", "no", "none", "off", "(null)", "n/a", "infinite", "unlimited", "up", "unknown", "idle"),
        *("future", "exclusive", "node"),
        *("preempt/none", "mcs/none", "power/none", "burst_buffer/none"),
    )
)
"""Values, in lower case, with which a setting has no effect."""
