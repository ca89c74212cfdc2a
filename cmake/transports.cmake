# What communicators (core/dist) stand on, where it is enabled: MPI for CPU ranks, NCCL for GPUs.
if(MC_HAVE_MPI)
    file(GLOB mpi_sources CONFIGURE_DEPENDS core/dist/comm_mpi*.c)
    target_sources(mc_objects PRIVATE ${mpi_sources})
endif()
if(MC_HAVE_NCCL)
    target_sources(mc_objects PRIVATE core/dist/comm_nccl.c)
endif()
