#!/usr/bin/env bash
# Figures of speed, with the command that measures them. Run by `make bench`.
set -euo pipefail
python tests/bench_synth.py conf/data/toolsrl_paper.yaml
python tests/bench_judge.py
