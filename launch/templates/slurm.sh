#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={ranks}
{options}
# Asked to end this many seconds before its time is over, the run saves, and the job goes back into the queue. So it does
# where a node goes down.
#SBATCH --signal=B:USR1@{notice}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.log

{supervisor} &
supervisor=$!
trap 'kill -USR1 $supervisor' USR1 TERM
# A signal ends the wait, not the supervisor.
code=255
while [ $code -gt 128 ]; do
    wait $supervisor
    code=$?
done
# Asked to end before its last step.
[ $code = 75 ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
