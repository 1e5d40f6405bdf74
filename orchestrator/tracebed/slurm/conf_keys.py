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
    PREEMPTION: ("PreemptExemptTime", "PreemptMode", "PreemptParameters", "PreemptType"),
    LIMITS: (
        *("AccountingStorageEnforce", "DefCpuPerGPU", "DefMemPerCPU", "DefMemPerGPU", "DefMemPerNode", "Licenses"),
        *("EnforcePartLimits", "MaxJobCount", "MaxMemPerCPU", "MaxMemPerNode"),
    ),
    RESOURCES: (
        *("BurstBufferType", "GresTypes", "MCSParameters", "MCSPlugin", "NodeFeaturesPlugins", "PowerParameters"),
        *("PowerPlugin", "SelectTypeParameters", "TopologyParam"),
    ),
    DELAYS: (
        *("CompleteWait", "Epilog", "EpilogSlurmctld", "KillWait", "OverTimeLimit", "PrEpPlugins", "Prolog"),
        *("PrologFlags", "PrologSlurmctld", "ResumeProgram", "ResumeRate", "ResumeTimeout", "ResvOverRun"),
        *("SuspendExcNodes", "SuspendExcParts", "SuspendExcStates", "SuspendProgram", "SuspendRate"),
        *("SlurmctldParameters", "SuspendTime", "SuspendTimeout"),
    ),
    CHANGES: (
        *("CliFilterPlugins", "DependencyParameters", "JobRequeue", "JobSubmitPlugins"),
        *("MaxBatchRequeue", "RequeueExit", "RequeueExitHold"),
    ),
    ACCESS: ("DisableRootJobs",),
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
    RESOURCES: ("CoreSpecCount", "CpuSpecList", "Gres", "MemSpecLimit", "RestrictedCoresPerGPU", "Topology"),
    DELAYS: ("SuspendTime",),
    ORDER: ("Feature", "Features", "Weight"),
    STATES: ("State",),
}
"""What the policy does not model -> the keys of a NodeName line that set it."""
OF_PARTITIONS = ("CpuBind", "Default", "Hidden", "Nodes", "TRESBillingWeights")
OF_NODES = (
    *("BcastAddr", "Boards", "CPUs", "CoresPerSocket", "CpuBind", "Extra", "InstanceId", "InstanceType", "NodeAddr"),
    *("NodeHostname", "Parameters", "Port", "Procs", "RealMemory", "Reason", "Sockets", "SocketsPerBoard"),
    *("TRESWeights", "ThreadsPerCore", "TmpDisk"),
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
    PreemptParameters CompleteWait OverTimeLimit DefaultTime MaxNodes CoreSpecCount CpuSpecList MemSpecLimit LLN
    """.lower().split()
)
"""Keys, in lower case, that a simulation of a cluster models. With Fair Tree, the dampening factor has no effect."""
SCHEDULER_OF_CLUSTER = frozenset(
    (
        *("bf_licenses", "bf_max_job_array_resv", "bf_max_job_part", "bf_max_job_user_part", "bf_one_resv_per_job"),
        *("partition_job_depth", "preempt_reorder_count", "preempt_youngest_first"),
    )
)
"""SchedulerParameters that a simulation of a cluster models, beside those of the policy."""
SCHEDULER_WITHOUT_EFFECT = frozenset(
    """
    allow_zero_lic bb_array_stage_cnt bf_continue bf_max_time bf_yield_interval
    bf_yield_rpc_cnt bf_yield_sleep build_queue_timeout correspond_after_task_cnt defer defer_batch delay_boot
    disable_hetjob_steps disable_job_shrink enable_hetjob_steps enable_job_state_cache enable_user_top
    extra_constraints ignore_constraint_validation ignore_numa ignore_prefer_validation max_array_tasks max_rpc_cnt
    max_sched_time max_script_size max_submit_line_size max_switch_wait no_backup_scheduling no_env_cache
    nohold_on_prolog_fail permit_job_expansion requeue_on_resume_failure requeue_setup_env_fail salloc_wait_nodes
    sbatch_wait_nodes spec_cores_first step_retry_count step_retry_time whole_hetjob
    """.lower().split()
)
"""SchedulerParameters that change no decision about batch jobs, in passes that take no time: limits of submissions,
steps, and options that no job of a workload has (--licenses=NAME:0, --extra, --switches)."""
SCHEDULER_OF_WHOLE_NODES = frozenset(
    (
        *("bf_busy_nodes", "bf_max_job_array_resv", "bf_one_resv_per_job", "bf_running_job_reserve"),
        *("bf_window_linear", "bf_hetjob_immediate", "bf_hetjob_prio"),
    )
)
"""SchedulerParameters without effect if jobs have one component, and whole nodes of one partition."""
ITEMS: Mapping[str, frozenset[str]] = {
    key.lower(): frozenset(items.lower().split())
    for key, items in (
        ("TopologyParam", "TopoOptional RoutePart RouteTree TopoMaxSizeUnroll NoCtldInAddrAny NoInAddrAny"),
        ("JobSubmitPlugins", "logging job_submit/logging"),
        ("CliFilterPlugins", "syslog cli_filter/syslog"),
        ("PrEpPlugins", "prep/script"),
        ("JobRequeue", "1"),
        ("MinNodes", "1"),
        (
            "SlurmctldParameters",
            """
            allow_user_triggers cloud_dns cloud_reg_addrs conmgr_connect_timeout conmgr_max_connections
            conmgr_quiesce_timeout conmgr_read_timeout conmgr_threads conmgr_use_poll conmgr_wait_write_delay
            conmgr_write_timeout disable_triggers enable_async_reply enable_configless enable_stepmgr
            idle_on_node_suspend max_dbd_msg_action no_quick_restart node_reg_mem_percent power_save_interval
            power_save_min_interval preempt_send_user_signal reboot_from_controller reconfig_on_restart rl_bucket_size
            rl_enable rl_log_freq rl_refill_period rl_refill_rate rl_table_size user_resv_delete
            validate_nodeaddr_threads
            """,
        ),
    )
}
"""Key -> items of its value, in lower case, that change no decision. Any other item does."""
ITEMS_OF_CLUSTER: Mapping[str, frozenset[str]] = {
    "dependencyparameters": frozenset(("kill_invalid_depend", "disable_remote_singleton", "max_depend_depth")),
    "preemptmode": frozenset(("off", "cancel", "requeue", "suspend", "gang")),
    "preemptparameters": frozenset(("youngest_first", "reorder_count")),
    "selecttypeparameters": frozenset(
        """
        CR_CPU CR_CPU_Memory CR_Core CR_Core_Memory CR_Socket CR_Socket_Memory CR_Memory CR_LLN
        CR_CORE_DEFAULT_DIST_BLOCK CR_ONE_TASK_PER_CORE OTHER_CONS_RES OTHER_CONS_TRES LL_SHARED_GRES
        MULTIPLE_SHARING_GRES_PJ ENFORCE_BINDING_GRES ONE_TASK_PER_SHARING_GRES
        """.lower().split()
    ),
    "accountingstorageenforce": frozenset(("all", "associations", "limits", "nojobs", "nosteps", "qos", "safe")),
}
"""The same for the items that a simulation of a cluster models. The CPUs of a log are those that a job got with
CR_ONE_TASK_PER_CORE."""
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
    DefaultStorageLoc DefaultStoragePass DefaultStoragePort DefaultStorageType DefaultStorageUser DynAllocPort
    EioTimeout EpilogMsgTime EpilogTimeout ExtSensorsFreq ExtSensorsType FastSchedule FederationParameters FirstJobId
    GetEnvTimeout GpuFreqDef GroupUpdateForce GroupUpdateTime HashPlugin HealthCheckInterval HealthCheckNodeState
    HealthCheckProgram HealthCheckTimeout HttpParserType InactiveLimit InteractiveStepOptions JobAcctGatherFrequency
    JobAcctGatherParams JobAcctGatherType JobCheckpointDir JobCompHost JobCompLoc JobCompParams JobCompPass
    JobCompPassScript JobCompPort JobCompType JobCompUser JobContainerType JobCredentialPrivateKey
    JobCredentialPublicCertificate JobFileAppend KeepAliveTime KillOnBadExit LaunchParameters LaunchType Layouts
    LicenseParameters LogTimeFormat MailDomain MailProg MaxArraySize MaxDBDMsgs MaxJobId MaxNodeCount MaxStepCount
    MaxTasksPerNode MemLimitEnforce MessageTimeout MetricsAuthUsers MetricsParameters MetricsType MinJobAge MpiDefault
    MpiParams MsgAggregationParams NamespaceType PlugStackConfig PluginDir PrEpParameters PrivateData ProctrackType
    PrologEpilogTimeout PrologTimeout PropagatePrioProcess PropagateResourceLimits PropagateResourceLimitsExcept
    RebootProgram ReconfigFlags ResumeFailProgram ResvEpilog ResvProlog ReturnToService RoutePlugin SallocDefaultCommand
    SbcastParameters SchedulerAuth SchedulerPort SchedulerRootFilter SchedulerTimeSlice ScronParameters
    SlurmSchedLogFile SlurmSchedLogLevel SlurmUser SlurmctldAddr SlurmctldDebug SlurmctldHost
    SlurmctldHttpAuthParameters SlurmctldLogFile SlurmctldPidFile SlurmctldPlugstack SlurmctldPort
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
