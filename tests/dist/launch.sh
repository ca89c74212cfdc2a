#!/bin/sh
# Runs a program as several ranks of this machine, where there is neither mpirun nor torchrun. Ends
# when all ranks have, with the exit code of the first of them that failed.
#
#     launch.sh RANKS PROGRAM [ARGUMENT...]
[ $# -ge 2 ] || { sed -n '2,/^\[/s/^# \{0,1\}//p' "$0"; exit 2; }
# with a port of its own, which is kept for as long as the ranks run
[ -n "${MASTER_PORT:-}${MC_MASTER_PORT:-}" ] || exec python3 "$(dirname "$0")/kept_port.py" "$0" "$@"
export WORLD_SIZE="$1" LOCAL_WORLD_SIZE="$1" MASTER_ADDR=127.0.0.1
export MASTER_PORT="${MASTER_PORT:-29500}" # which MC_MASTER_PORT overrides
shift
rank=0 pids= code=0
while [ $rank -lt "$WORLD_SIZE" ]; do
    RANK=$rank LOCAL_RANK=$rank "$@" &
    pids="$pids $!"
    rank=$((rank + 1))
done
for pid in $pids; do
    wait "$pid" || { ended=$?; [ $code -ne 0 ] || code=$ended; }
done
exit $code
