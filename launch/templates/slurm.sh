#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node={ranks}
{options}# This many seconds before its time limit the run is asked to end. It saves, and the job goes back into the queue. The job
# also goes back into the queue when a node fails.
#SBATCH --signal=B:USR1@{notice}
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={name}-%j.log
{more}
{setup}{supervisor} &
supervisor=$!
trap 'kill -USR1 $supervisor' USR1 TERM
# A signal ends the wait, but not the supervisor.
code=255
while [ $code -gt 128 ]; do
    wait $supervisor
    code=$?
done
# 75: the run was asked to end before its last step.
[ $code = 75 ] && scontrol requeue "$SLURM_JOB_ID"
exit $code
