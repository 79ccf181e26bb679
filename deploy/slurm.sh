#!/bin/bash
# Several ranks under SLURM, on one node or on several:
#   sbatch deploy/slurm.sh MODEL_DIRECTORY
#   sbatch --nodes=2 deploy/slurm.sh MODEL_DIRECTORY --placement pipeline=2,expert
# MODEL_DIRECTORY is the same path on every node. Answers come from the first node, port 8000.
#SBATCH --job-name=dsv4
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=8
set -euo pipefail

# The first node has rank 0. Where its own table of hosts calls it 127.0.1.1, name its address here (docs/troubleshooting.md).
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
# SLURM's names for what dsv4 reads as RANK, WORLD_SIZE and LOCAL_RANK.
exec srun --kill-on-bad-exit=1 bash -c '
  RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID \
    exec dsv4 serve --host 0.0.0.0 --port 8000 --threads "$SLURM_CPUS_PER_TASK" -m "$@"' dsv4 "$@"
