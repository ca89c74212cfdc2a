#!/bin/sh
# Runs a program as several ranks under Slurm: one of its own for this host, set up in a folder of
# its own by whoever runs this, and gone afterwards. Its exit code is srun's; 77 where Slurm is not
# installed (Debian: slurmctld, slurmd, slurm-client).
#
#     slurm.sh RANKS PROGRAM [ARGUMENT...]
set -u
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
PATH=$PATH:/usr/sbin
for tool in slurmctld slurmd srun; do
    command -v "$tool" >/dev/null || { echo "SKIPPED: there is no $tool"; exit 77; }
done
# ports of the daemons and of the job, from the system and kept while this runs
[ -n "${TEST_SLURMCTLD_PORT:-}" ] || exec python3 "$(dirname "$0")/kept_port.py" TEST_SLURMCTLD_PORT= \
    TEST_SLURMD_PORT= MC_MASTER_PORT= "$0" "$@"
ranks=$1
shift
folder=$(mktemp -d) || exit 2
host=$(hostname -s)

end()
{
    for daemon in slurmd slurmctld; do
        [ ! -s "$folder/$daemon.pid" ] || kill "$(cat "$folder/$daemon.pid")"
    done
    wait
    rm -rf "$folder"
}
trap end EXIT

mkdir "$folder/state" "$folder/spool"
cat >"$folder/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$TEST_SLURMCTLD_PORT
SlurmdPort=$TEST_SLURMD_PORT
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
NodeName=$host NodeAddr=127.0.0.1 CPUs=1
PartitionName=all Nodes=$host Default=YES
END
export SLURM_CONF="$folder/slurm.conf"
slurmctld -D -c >/dev/null 2>&1 &
slurmd -D -c >/dev/null 2>&1 &

# srun waits for the node; what it says where that does not come would be no help
tries=0
until sinfo -h -o %T 2>/dev/null | grep -q idle; do
    tries=$((tries + 1))
    if [ $tries -gt 300 ]; then
        echo "Slurm did not start:"
        tail -n 5 "$folder/slurmctld.log" "$folder/slurmd.log"
        exit 1
    fi
    sleep 0.2
done
srun --overcommit --ntasks "$ranks" --mpi=pmix "$@"
