#!/bin/bash
#SBATCH --ntasks=1
#SBATCH --time=24:00:00
#SBATCH --mem=16gb
#SBATCH --partition=gpu_4
#SBATCH --gres=gpu:1
#SBATCH --job-name=tmpdir

rsync -av $(ws_find data)/coco.tar $TMPDIR/
tar -C $TMPDIR -xf $TMPDIR/coco.tar
module load devel/cuda/12.0
source ~/venv/bin/activate
python detect.py --data $TMPDIR/coco --work-dir $TMPDIR/work
rsync -av $TMPDIR/work $(ws_find results)/
