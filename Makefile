# make run     set up, then train on the built-in sample        make setup   set up alone
#     TORCH=cpu, with the first of these: PyTorch's build without CUDA, which is smaller by 4 GB on Linux
# make test    every test but the long ones                     make test-fast   a minute of them: no Spark, no subprocess
# make test-long   the long matrices: every loss of a process by every exchange; TIMES=10 repeats them
# make test-matrix   the Spark, cluster and fault tests against every version of Spark; docs/spark-versions.md has the table
# make faults  every case of a hostile world, the long ones too; renews the table in docs/reliability.md
# make security   files that somebody else made: every byte flipped, every loader fuzzed for minutes; EXAMPLES=2000 of each
# make bench   the quick benchmarks, as tables; WRITE=docs/benchmarks.md renews those there, NANOGPT=DIR and TEXT=FILE
#     add nanoGPT from a checkout of yours
# make audit   licences, secrets in tracked files, known vulnerabilities of the pins (asks pypi.org)
# make lint    style and types       make format   put the style right       make docs   renew the tables in docs/
# make golden  hashes of a matrix of trainings; COMPARE=before.txt compares them with earlier ones
PYTHON ?= python3
VENV   := .venv
MLFLOW := .venv-mlflow
AUDIT  := .venv-audit
HADOOP := tests/hadoop/lib
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt
# One torch thread in each process of the tests, or torch crawls.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: run test test-fast test-long test-matrix faults security bench audit golden docs lint format setup clean

run: $(VENV)/.installed
	$(BIN)/sparklm train $(ARGS)

# Three processes, each with a Spark session of its own: on two cores, as tests mostly wait. A file stays in one
# process, and files begin in the order of their names: those with clusters early, the many small ones last.
test: $(VENV)/.installed-dev $(MLFLOW)/.installed $(HADOOP)/.installed
	$(PYTEST) -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

test-fast: $(VENV)/.installed-dev
	$(PYTEST) -n 2 -m 'not long and not spark and not process and not matrix' $(ARGS)

test-long: $(VENV)/.installed-dev $(HADOOP)/.installed
	for time in $$(seq $(or $(TIMES),1)); do $(BIN)/python -m pytest -m 'long or spark' tests/faults tests/cluster tests/submit tests/unit/training/test_memory.py tests/spark/test_connect.py tests/spark/test_ml.py tests/spark/test_notebook.py tests/spark/test_broken_setups.py tests/unit/test_redaction.py tests/hadoop tests/servers/test_s3.py || exit 1; done

test-matrix: $(VENV)/.installed-dev
	$(BIN)/python -m tests.spark_matrix $(ARGS)

faults: $(VENV)/.installed-dev $(MLFLOW)/.installed $(HADOOP)/.installed
	$(PYTEST) -n 2 --dist loadfile -m '' tests/hostile --reliability docs/reliability.md $(ARGS)

security: $(VENV)/.installed-dev
	SPARKLM_FUZZ_EXAMPLES=$(or $(EXAMPLES),500) $(PYTEST) -n 2 -m '' tests/hostile/test_zips.py tests/hostile/test_run_folders.py tests/hostile/test_config_files.py tests/hostile/test_every_byte.py tests/hostile/test_fuzz.py $(ARGS)
	$(BIN)/python -m tests.hostile.guided all $(or $(SECONDS_EACH),20)

# Alone on the machine, or the figures mean little.
bench: BENCH = $(BIN)/python benchmarks/$(1).py $(2) $(if $(WRITE),--write $(WRITE))
bench: $(VENV)/.installed-dev
	$(call BENCH,steps)
	$(call BENCH,start)
	$(call BENCH,busy)
	if command -v mvn >/dev/null; then $(call BENCH,dl4j); else echo "no Maven: not compared with Deeplearning4j"; fi
	$(if $(NANOGPT),$(call BENCH,nanogpt,$(TEXT) --nanogpt $(NANOGPT)))

audit: $(VENV)/.installed-dev $(AUDIT)/.installed
	$(BIN)/python -m tests.audit $(ARGS)

golden: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.golden $(if $(COMPARE),--compare $(COMPARE))

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/tables.py

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(VENV)/.installed

# Installing is repeated only when what is to be installed has changed. PyTorch's own index gives torch alone: its
# dependencies there are older than our pins. Its version there, such as 2.13.0+cpu, is to pip the 2.13.0 of the pins.
$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sparklm needs Python 3.11 or newer; say which with: make PYTHON=python3.12")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(TORCH),$(PIP) --no-deps --index-url https://download.pytorch.org/whl/$(TORCH) torch)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) -e '.[lint,test]'
	touch $@

# The tests' MLflow server: it does not go together with our own pins. It needs no torch.
$(MLFLOW)/.installed: tests/servers/mlflow-requirements.txt
	test -x $(MLFLOW)/bin/python || $(PYTHON) -m venv $(MLFLOW)
	$(MLFLOW)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

# Tools that look at packages and files, and go with no pins of ours.
$(AUDIT)/.installed: Makefile
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install --quiet --disable-pip-version-check 'pip-audit>=2.9,<3' 'detect-secrets>=1.5,<2'
	touch $@

# The tests' HDFS and YARN. Without Maven there is none, and its tests say so and are skipped.
$(HADOOP)/.installed: tests/hadoop/pom.xml
	if command -v mvn >/dev/null; then mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$(HADOOP) && touch $@; fi

clean:
	rm -rf $(VENV) $(MLFLOW) $(AUDIT) .spark $(HADOOP) build dist src/*.egg-info .mypy_cache .ruff_cache .hypothesis
