#!/usr/bin/env Rscript
#SBATCH --job-name=rscript
#SBATCH --partition=day
#SBATCH --time=00:30:00
#SBATCH --mem=8G
#SBATCH --output=rscript_%j.out

library(parallel)
x <- unlist(mclapply(1:200, function(i) mean(rnorm(1e5)), mc.cores = 2))
saveRDS(x, paste0("x_", Sys.getenv("SLURM_JOB_ID"), ".rds"))
