# Three commands do everything on a fresh machine: `make demo`, `make demo-glue` and `make test`.
# Needed: Python 3.11, 3.12 or 3.13 and a C++ compiler (fairseq builds extensions, about 2 minutes).

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.bench-installed
BENCHMARKS := layer launches assignment step decode evaluate translate epoch scaling glue conditional uncertainty adapters prepare report
KERNELS := $(wildcard fairseq_mtmoe/moe/assignment/kernels/*.cpp fairseq_mtmoe/moe/assignment/kernels/*.h)
# Unit tests that train or build models: a minute or more each.
SLOW_UNITS := analysis/report backbones benchmarks checkpoints cli data/corpora data/mixtures data/sampling/test_candidates.py \
	evaluation models moe/test_compile.py sparsify tasks test_known_warnings.py test_warm_start.py tools training
RUNS ?= runs
# A file's tests run in one process, which makes what they share once. Files come in their order, the longest first.
# One process more than cores: many tests wait for processes that they start.
WORKERS ?= 3
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: docs reference help install wheelhouse demo demo-distributed demo-glue test test-all check test-kill test-fuzz lint coverage bench bench-check gpu-check clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

install: $(INSTALLED)  ## set everything up in .venv; with WHEELHOUSE=folder, without a network

IS_OURS = $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	{ echo '`PYTHON` must be Python 3.11, 3.12 or 3.13, but is $(PYTHON) instead.' >&2; exit 1; }

wheelhouse:  ## every wheel that a machine without a network needs, for PYTHON; torch too with TORCH=1
	@$(IS_OURS)
	$(PYTHON) -m venv build/wheelhouse
	build/wheelhouse/bin/python -m pip install -q -c constraints.txt pip setuptools wheel packaging numpy cython
	build/wheelhouse/bin/python tools/wheelhouse.py $(if $(TORCH),--torch) $(or $(WHEELHOUSE),wheelhouse)

ifdef WHEELHOUSE
$(INSTALLED): setup.py constraints.txt $(KERNELS)
	@$(IS_OURS)
	$(PYTHON) tools/offline.py $(WHEELHOUSE) $(VENV)
	@touch $@
	@echo 'Installed; `source $(BIN)/activate` gives you mtmoe and the fairseq commands, `mtmoe doctor` a look at it all.'
else
# fairseq needs torch and numpy when it is built, and asks for a torchaudio that has no CPU build and that nothing here
# uses: hence torch first, then fairseq without its dependencies beside our pinned list of them. seqeval has no wheel, and
# without setuptools_scm beside it builds itself as version 0.0.0.
$(INSTALLED): setup.py constraints.txt $(KERNELS)
	@$(IS_OURS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt pip setuptools setuptools_scm wheel
	@echo 'Installing torch, then fairseq, which compiles for about 2 minutes …'
	$(PIP) install -q -c constraints.txt torch numpy cython
	$(PIP) install -q -c constraints.txt bitarray cffi hydra-core omegaconf packaging regex sacrebleu scikit-learn tqdm
	$(PIP) install -q --no-deps --no-build-isolation fairseq-fixed==0.12.3.1
	$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[cluster,corpora,demo,docs,identify,nlu,serve,test]'
	@touch $@
	@echo 'Installed; `source $(BIN)/activate` gives you mtmoe and the fairseq commands.'
endif

demo: $(INSTALLED)  ## train, sparsify and evaluate a sparse multilingual translator on real text
	PATH="$(CURDIR)/$(BIN):$$PATH" RUNS="$(RUNS)" OMP_WAIT_POLICY=PASSIVE bash examples/translation/catalogs/demo.sh

demo-distributed: $(INSTALLED)  ## train in 2 CPU processes, kill one, go on in 1, evaluate: under 5 minutes
	PATH="$(CURDIR)/$(BIN):$$PATH" RUNS="$(RUNS)" OMP_WAIT_POLICY=PASSIVE bash examples/translation/distributed/demo.sh

demo-glue: $(INSTALLED)  ## train MT-TaG on four tasks of real text, and a new task with a reused gate: 6 minutes of a core
	PATH="$(CURDIR)/$(BIN):$$PATH" RUNS="$(RUNS)" OMP_WAIT_POLICY=PASSIVE bash examples/glue/demo/demo.sh

lint: $(INSTALLED)  ## style, types and English
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/prose.py

# torch's threads spin while they wait: on a busy machine with few cores that costs more than they gain.
test: lint  ## style, types and each behaviour once (12 to 20 minutes on 2 cores)
	$(PYTEST) -m 'not rare'

test-all: lint  ## the same, and what takes long and is seldom wrong alone: more seeds, sizes and kills
	$(PYTEST)

check: lint  ## style, types and the quick tests, for while you change something (2 minutes on 2 cores)
	$(PYTEST) -m 'not slow and not rare' $(SLOW_UNITS:%=--ignore=tests/unit/%) tests/unit

test-kill: $(INSTALLED)  ## kill small runs at 40 moments and resume them: a table in benchmarks/results/kills.md
	PYTHONPATH=benchmarks OMP_NUM_THREADS=1 $(BIN)/python -m tests.kill.report --write

test-fuzz: $(INSTALLED)  ## new odd files for each reader: FUZZ_MINUTES=10 in all, from FUZZ_SEED= (any)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz

reference: $(INSTALLED)  ## write down the options that are registered, after a change of one
	$(BIN)/python tools/reference.py

docs: $(INSTALLED)  ## the site, into docs/site: docs/site/index.html opens in a browser, from the disk
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs docs/site

coverage: $(INSTALLED)  ## the tests again, with the branches that they reach
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

# What the benchmarks need besides.
$(BENCH_INSTALLED): $(INSTALLED)
	$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[bench]'
	@touch $@

bench: $(BENCH_INSTALLED)  ## every benchmark beside its peers, into benchmarks/results; needs an idle machine
	set -e; for name in $(BENCHMARKS); do \
		$(BIN)/python benchmarks/bench_$$name.py --write $$(test $$name != epoch || echo --large); done

bench-check: $(BENCH_INSTALLED)  ## small sizes: fails if a figure misses its floor by more than 20%
	failed=; for name in $(BENCHMARKS); do \
		$(BIN)/python benchmarks/bench_$$name.py --check || failed="$$failed $$name"; done; \
		test -z "$$failed" || { echo "Missed or failed:$$failed" >&2; exit 1; }

# Needs no set-up: any Python with torch will do. `PART=layer` runs one part (or several), and repeats it.
GPU_PYTHON ?= $(or $(wildcard $(BIN)/python),$(shell command -v python3))

gpu-check:  ## on a GPU: everything that only a GPU can show, into benchmarks/results/gpu.md (25 minutes; PART=…)
	@PYTHONPATH="$(CURDIR)/benchmarks:$$PYTHONPATH" $(GPU_PYTHON) -m gpu_check --folder "$(RUNS)/gpu_check" $(PART)

clean:  ## remove the set-up and the demo's runs
	rm -rf $(VENV) $(RUNS)/catalogs $(RUNS)/distributed $(RUNS)/glue build fairseq_mtmoe/moe/assignment/kernels/*.so *.egg-info .pytest_cache .mypy_cache .ruff_cache
