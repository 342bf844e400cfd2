#!/bin/bash
#SBATCH -J mpi_test
#Output and error (also --output, --error):
#SBATCH -o ./%x.%j.out
#SBATCH -e ./%x.%j.err
#Initial working directory:
#SBATCH -D ./
#Notification and type
#SBATCH --mail-type=END
# Wall clock limit:
#SBATCH --time=00:20:00
#SBATCH --no-requeue
#Setup of execution environment
#SBATCH --export=NONE
#SBATCH --get-user-env
#SBATCH --account=projectID
#SBATCH --partition=test
#Number of nodes and MPI tasks per node:
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=48

#Important
module load slurm_setup

#Run the program:
mpiexec -n $SLURM_NTASKS ./myprog
