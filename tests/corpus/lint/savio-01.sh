#!/bin/bash
# Job name:
#SBATCH --job-name=make_jobs
#
# Account:
#SBATCH --account=fc_projectname
#
# Partition:
#SBATCH --partition=savio3_htc
#
# Wall clock limit:
#SBATCH --time=00:05:00
#
## Command(s) to run:
for n in 1 2 3; do
    cat > "case_$n.sh" <<EOF
#!/bin/bash
#SBATCH --account=fc_projectname
#SBATCH --time=72:00:00
#SBATCH --no-requeue
#SBATCH --signal=B:USR1@60
python run.py $n
EOF
    echo "case_$n.sh written, look at it before you submit it"
done
