#!/bin/bash
# A Ray cluster for Loopwright in one Slurm job: the first node is the head and runs the driver. Never run by us: read it.
#   sbatch deploy/slurm.sh examples/arithmetic_ray.yaml trainer.run_dir=/shared/runs/arithmetic
# The environment with Loopwright and the config's files must be on a disk that all nodes share.
#SBATCH --job-name=loopwright
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
# Slurm tells the job 120 s before it ends. The driver then makes a checkpoint, and the same command goes on from there.
#SBATCH --signal=B:TERM@120
set -euo pipefail

config=$1
shift
port=6379
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$head" hostname --ip-address | awk '{print $1}')

# All nodes of the cluster need the same token, and so does the driver.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(openssl rand -hex 32)
export RAY_AUTH_TOKEN

srun --nodes=1 --ntasks=1 -w "$head" --overlap \
    ray start --head --node-ip-address="$address" --port=$port --num-cpus="$SLURM_CPUS_PER_TASK" --include-dashboard=false --block &
sleep 20
for node in "${nodes[@]:1}"; do
    srun --nodes=1 --ntasks=1 -w "$node" --overlap \
        ray start --address="$address:$port" --num-cpus="$SLURM_CPUS_PER_TASK" --block &
done
sleep 20

srun --nodes=1 --ntasks=1 -w "$head" --overlap \
    loopwright train "$config" cluster.address="$address:$port" "$@" &
driver=$!
trap 'kill -TERM $driver' TERM
wait $driver || wait $driver
