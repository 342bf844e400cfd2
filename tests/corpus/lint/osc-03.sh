#!/bin/bash
#SBATCH --job-name=pic_local
#SBATCH --time=96:00:00
#SBATCH --nodes=1 --ntasks-per-node=40
#SBATCH --account=PROJECT
#SBATCH --signal=B:TERM@600

# pic writes ck_<step>.h5 under another name and renames it; it goes on from the newest one
SRC=$SLURM_SUBMIT_DIR
cp pic plasma.in "$TMPDIR"
rsync -a --include='ck_*.h5' --exclude='*' "$SRC/" "$TMPDIR/"
cd "$TMPDIR" || exit 1

save() { rsync -a --include='ck_*.h5' --exclude='*' "$TMPDIR/" "$SRC/"; }
stop() { kill "$copier"; kill -TERM "$pic"; wait "$pic"; save; exit 143; }
trap stop TERM
(while sleep 1800; do save; done) &
copier=$!
./pic plasma.in > "$SRC/pic.$SLURM_JOB_ID.log" &
pic=$!
wait "$pic"
kill "$copier"
save
