# On a fresh machine, `make demo`, `make demo-glue` and `make test` also install everything.
# Needs Python 3.11, 3.12 or 3.13 and a C++ compiler (fairseq compiles for about 2 minutes).

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.bench-installed
BENCHMARKS := layer assignment step decode evaluate translate epoch scaling glue adapters prepare
KERNELS := $(wildcard fairseq_mtmoe/moe/assignment/kernels/*.cpp fairseq_mtmoe/moe/assignment/kernels/*.h)
RUNS ?= runs
# A file's tests run in one process, which builds their shared fixtures once. Files run in order, the longest first.
# One process more than cores, because many tests wait for processes that they start
WORKERS ?= 3
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: docs help install wheelhouse demo demo-distributed demo-glue test test-all check test-kill test-fuzz lint coverage bench bench-check gpu-check clean

help:  ## print this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

install: $(INSTALLED)  ## install everything into .venv; with WHEELHOUSE=folder without a network

IS_OURS = $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	{ echo '`PYTHON` must be Python 3.11, 3.12 or 3.13, but is $(PYTHON) instead.' >&2; exit 1; }

wheelhouse:  ## collect all wheels for a machine without a network and PYTHON; with TORCH=1 also torch
	@$(IS_OURS)
	$(PYTHON) -m venv build/wheelhouse
	build/wheelhouse/bin/python -m pip install -q -c constraints.txt pip setuptools wheel packaging numpy cython
	build/wheelhouse/bin/python tools/wheelhouse.py $(if $(TORCH),--torch) $(or $(WHEELHOUSE),wheelhouse)

ifdef WHEELHOUSE
$(INSTALLED): setup.py constraints.txt $(KERNELS)
	@$(IS_OURS)
	$(PYTHON) tools/offline.py $(WHEELHOUSE) $(VENV)
	@touch $@
	@echo 'Installed. Run `source $(BIN)/activate` for mtmoe and the fairseq commands, and `mtmoe doctor` to check them.'
else
# fairseq's build needs torch and numpy, so torch comes first. fairseq requires torchaudio, which has no CPU build and
# which nothing here uses, so fairseq is installed without its dependencies, beside our pinned list of them. seqeval has
# no wheel, and without setuptools_scm it builds itself as version 0.0.0.
$(INSTALLED): setup.py constraints.txt $(KERNELS)
	@$(IS_OURS)
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt pip setuptools setuptools_scm wheel
	@echo 'Installing torch, then fairseq, which compiles for about 2 minutes …'
	$(PIP) install -q -c constraints.txt torch numpy cython
	$(PIP) install -q -c constraints.txt bitarray cffi hydra-core omegaconf packaging regex sacrebleu scikit-learn tqdm
	$(PIP) install -q --no-deps --no-build-isolation fairseq-fixed==0.12.3.1
	$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[cluster,corpora,datasets,demo,docs,identify,nlu,serve,test]'
	@touch $@
	@echo 'Installed. Run `source $(BIN)/activate` for mtmoe and the fairseq commands.'
endif

demo: $(INSTALLED)  ## train and evaluate a translator into five languages, with a layer of each language's own
	PATH="$(CURDIR)/$(BIN):$$PATH" RUNS="$(RUNS)" OMP_WAIT_POLICY=PASSIVE bash examples/translation/catalogs/demo.sh

demo-distributed: $(INSTALLED)  ## train in 2 CPU processes, kill one, resume in 1, evaluate: under 5 minutes
	PATH="$(CURDIR)/$(BIN):$$PATH" RUNS="$(RUNS)" OMP_WAIT_POLICY=PASSIVE bash examples/translation/distributed/demo.sh

demo-glue: $(INSTALLED)  ## train MT-TaG on four tasks of real text, and a new task with a reused gate: 6 minutes on a core
	PATH="$(CURDIR)/$(BIN):$$PATH" RUNS="$(RUNS)" OMP_WAIT_POLICY=PASSIVE bash examples/glue/demo/demo.sh

lint: $(INSTALLED)  ## check style, types, English and the size of the code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/mypy
	$(BIN)/python tools/prose.py
	$(BIN)/python tools/size.py

# torch's waiting threads spin, which costs more than they gain on a busy machine with few cores
test: lint  ## lint, and test each behaviour once: about 9 minutes on 2 cores
	$(PYTEST) -m 'not scheduled'

test-all: lint  ## run all tests, also scheduled ones, with more seeds, sizes and kills
	$(PYTEST)

check: lint  ## lint, and run the unit tests: 3 minutes on 2 cores
	$(PYTEST) -m 'not scheduled' tests/unit

test-kill: $(INSTALLED)  ## kill small runs at 40 moments and resume them: 8 minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/scheduled/test_kills.py

test-fuzz: $(INSTALLED)  ## feed damaged files to all readers, FUZZ_TRIES=300 each, from FUZZ_SEED=0
	FUZZ_TRIES=$(or $(FUZZ_TRIES),300) OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/scheduled/test_damaged_files.py

docs: $(INSTALLED)  ## build the site; open docs/site/index.html in a browser
	$(BIN)/python -m sphinx -q -W --keep-going -d build/doctrees docs docs/site

coverage: $(INSTALLED)  ## run the tests with branch coverage
	$(PYTEST) --cov --cov-report=term-missing:skip-covered

# Packages that only benchmarks need
$(BENCH_INSTALLED): $(INSTALLED)
	$(PIP) install -q -c constraints.txt --no-build-isolation -e '.[bench]'
	@touch $@

bench: $(BENCH_INSTALLED)  ## run every benchmark beside its peers, into benchmarks/results: an hour on an idle machine
	set -e; for name in $(BENCHMARKS); do $(BIN)/python benchmarks/bench_$$name.py --write; done

bench-check: $(BENCH_INSTALLED)  ## run benchmarks at small sizes; fail if a figure misses its floor by more than 20%
	failed=; for name in $(BENCHMARKS); do \
		$(BIN)/python benchmarks/bench_$$name.py --check || failed="$$failed $$name"; done; \
		test -z "$$failed" || { echo "Missed or failed:$$failed" >&2; exit 1; }

# Needs only a Python with torch, no installation. `PART=layer` runs one part or several, and repeats it.
GPU_PYTHON ?= $(or $(wildcard $(BIN)/python),$(shell command -v python3))

gpu-check:  ## on a GPU: run all checks that need one, into benchmarks/results/gpu.md (PART=…)
	@PYTHONPATH="$(CURDIR)/benchmarks:$$PYTHONPATH" $(GPU_PYTHON) -m gpu_check --folder "$(RUNS)/gpu_check" $(PART)

clean:  ## remove .venv, build files and the demos' runs
	rm -rf $(VENV) $(RUNS)/catalogs $(RUNS)/base $(RUNS)/distributed $(RUNS)/glue build fairseq_mtmoe/moe/assignment/kernels/*.so *.egg-info .pytest_cache .mypy_cache .ruff_cache
