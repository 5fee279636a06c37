#!/usr/bin/env bash
# Figures of speed, with the command that measures them. Run by `make bench`.
set -euo pipefail
python tests/bench/bench_synth.py conf/data/toolsrl_paper.yaml
python tests/bench/bench_judge.py
python tests/bench/bench_memory.py
# With vLLM where it is installed; BASE is a model that `vtcli sft +recipe=tiny_codev` made, for the part with the real sandbox.
vllm=.venv-vllm/bin/python
[ -x "$vllm" ] || vllm=python
"$vllm" tests/bench/bench_streaming.py ${BASE:+--model "$BASE"}
