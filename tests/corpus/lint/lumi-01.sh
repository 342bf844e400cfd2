#!/bin/bash -l
#SBATCH --job-name=examplejob   # Job name
#SBATCH --output=examplejob.o%j # Name of stdout output file
#SBATCH --error=examplejob.e%j  # Name of stderr error file
#SBATCH --partition=dev-g       # partition name
#SBATCH --nodes=1               # Total number of nodes
#SBATCH --ntasks-per-node=8     # 8 MPI ranks per node
#SBATCH --gpus-per-node=8       # Allocate one gpu per MPI rank
#SBATCH --time=00:30:00         # Run time (d-hh:mm:ss)
#SBATCH --account=project_name  # Project for billing

# one GPU for each rank of a node
cat > one_gpu.$SLURM_JOB_ID <<'EOF'
#!/bin/sh
ROCR_VISIBLE_DEVICES=$SLURM_LOCALID exec "$@"
EOF
chmod u+x one_gpu.$SLURM_JOB_ID

CPU_BIND="mask_cpu:7e000000000000,7e00000000000000,7e0000,7e000000,7e,7e00,7e00000000,7e0000000000"
export MPICH_GPU_SUPPORT_ENABLED=1

srun --cpu-bind=${CPU_BIND} ./one_gpu.$SLURM_JOB_ID ./hello_jobstep
rm -f one_gpu.$SLURM_JOB_ID
