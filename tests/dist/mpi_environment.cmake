# What tests that start ranks run mpirun in: as root too, more ranks than cores, none of them bound to
# a core, one thread in each. Open MPI 4 reads OMPI_MCA_, Open MPI 5 starts ranks by PRRTE, which reads
# PRTE_MCA_; other MPIs read neither. Ranks of one machine need no TCP between them, of which Open MPI 5
# says on every rank's stderr when two interfaces don't reach each other.
set(mpi_environment
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none
    OMPI_MCA_btl=^tcp
    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive)
