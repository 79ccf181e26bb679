#!/bin/bash
# Several ranks of one node under SLURM: sbatch deploy/slurm.sh MODEL_DIRECTORY
#SBATCH --job-name=dsv4
#SBATCH --nodes=1
#SBATCH --ntasks=4
#SBATCH --cpus-per-task=8
set -euo pipefail

# SLURM's names for what dsv4 reads as RANK, WORLD_SIZE and LOCAL_RANK.
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
exec srun --kill-on-bad-exit=1 bash -c '
  RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID \
    exec dsv4 serve -m "$1" --host 0.0.0.0 --port 8000 --threads "$SLURM_CPUS_PER_TASK" --placement expert' dsv4 "$1"
