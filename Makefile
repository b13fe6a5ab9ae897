# make check: fresh machine -> .venv -> the check of a real model.   make test: the whole suite.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRAS ?= dev,target,train,quantize,notebooks

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# One thread: forked passes must not meet a thread pool, and two cores are enough.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help venv check test test-all lint format bench bench-peers bench-recipes catalogue truth compat zoo faults gpu notebooks docs doctor clean

help:  ## show this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

venv: $(STAMP)  ## make .venv; made anew when pyproject.toml or constraints.txt change

# torch first and by itself: a range asked for by another package would take whatever build is newest.
$(STAMP): pyproject.toml constraints.txt
	rm -f $@
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

check: $(STAMP)  ## check Qwen3-4B with SDPA: no GPU, no weights
	$(BIN)/cftdiag check --model Qwen3-4B --attn sdpa

test: $(STAMP)  ## run the tests in processes side by side; PYTEST_ARGS="tests/unit -x" runs some
	$(BIN)/python -m tests.split $(PYTEST_ARGS)

test-all: $(STAMP)  ## run every test, those that take minutes, too
	$(BIN)/python -m tests.split --everything $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff, mypy, ASCII in code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	! git grep -nIP '[^\x00-\x7F]' -- '*.py' '*.toml' '*.j2' Makefile

format: $(STAMP)  ## format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## the check against torch._dynamo.explain, what the monitor costs, the speed of depth codegen
	$(BIN)/python -m tests.bench.check_vs_explain $(BENCH_ARGS)
	$(BIN)/python -m tests.bench.monitor_cost
	$(BIN)/python -m tests.bench.target_speed

bench-peers: $(STAMP)  ## other trainers and ours on the same model, rows and order, in turn; PEERS_ARGS="--docs docs/benchmarks/DATE-peers.md --environments DIR"
	$(BIN)/python -m tests.bench.peers $(PEERS_ARGS)

bench-recipes: $(STAMP)  ## each recipe of the trainer eager and under every compile scope; RECIPES_ARGS="--docs docs/benchmarks/DATE-recipes.md"
	$(BIN)/python -m tests.bench.recipes $(RECIPES_ARGS)

catalogue: $(STAMP)  ## check every model of the catalogue under three attentions; writes docs/viability.md, goes on where it stopped
	$(BIN)/python -m cftdiag.check.viability $(CATALOGUE_ARGS)

truth: $(STAMP)  ## hold predictions of --target cpu against real runs with Inductor and g++: an hour
	$(BIN)/python -m tests.truth $(TRUTH_ARGS)

compat: $(STAMP)  ## doctor, corpus, eight architectures and an H200 lowering under other releases: COMPAT_ARGS="--torch 2.14.1"
	$(BIN)/python -m tests.compat --docs docs/compatibility.md $(COMPAT_ARGS)

SEED ?= 0
faults: $(STAMP)  ## 200 faults at random places of real models, judged by torch's own log: SEED=n, FAULTS_ARGS="--only I"
	$(BIN)/python -m tests.faults --seed $(SEED) $(FAULTS_ARGS)

zoo: $(STAMP)  ## hold checks of every model class of transformers against real runs: hours, goes on where it stopped; writes docs/zoo.md
	$(BIN)/python -m tests.zoo --docs docs/zoo.md $(ZOO_ARGS)

# A GPU machine has its own torch and perhaps no network: PYTHON=python3 runs with that one, and nothing is installed.
GPU_PYTHON := $(if $(filter file,$(origin PYTHON)),$(or $(wildcard $(BIN)/python),$(PYTHON)),$(PYTHON))
gpu:  ## on a machine with a GPU: hold predictions for it against it, kernels, registers, recompiles
	$(GPU_PYTHON) -m tests.gpu

notebooks: $(STAMP)  ## run the notebooks again and keep what they print and draw
	PYTHONPATH=$(CURDIR) $(BIN)/python -m tests.notebooks

docs: $(STAMP)  ## write the pages of the causes, the reference of the JSON and the table of proved remedies
	$(BIN)/python -m cftdiag.diagnose.pages docs/causes
	$(BIN)/python -m tests.json_reference docs/json.md
	$(BIN)/python -m tests.cases.proved docs/proved-remedies.md

doctor: $(STAMP)  ## what works on this machine
	$(BIN)/cftdiag doctor

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
