# `make test` and `make check` create .venv and install everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup check format test test-full test-kubernetes demo bench bench-rollout experiments chaos pictures clean

setup: $(VENV)/installed

# torch comes first and pinned: a range would pull gigabytes of CUDA packages.
$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/installed-bench: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	touch $@

check: setup  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup  ## everything that CI runs
	$(BIN)/python -m pytest --numprocesses 2 --dist loadgroup

test-full: setup  ## the whole parity matrix instead of the pairwise one
	$(BIN)/python -m pytest -m full_matrix

# The first time it builds Kubernetes, which takes a quarter of an hour; it is kept in ~/.cache.
test-kubernetes: setup  ## the Kubernetes launcher on a real control plane; needs root and Debian
	tests/kubernetes/build.sh
	$(BIN)/python -m pytest tests/kubernetes -v --durations 0

demo: setup  ## PPO solves LunarLander-v3; pictures and a summary go to runs/demo
	$(BIN)/python examples/demo.py

bench: $(VENV)/installed-bench  ## compare with peers; run it alone on the machine
	$(BIN)/python benchmarks/step_throughput.py
	$(BIN)/python benchmarks/open_close.py
	$(BIN)/python benchmarks/profile_step.py

bench-rollout: $(VENV)/installed-bench  ## policies on workers, against RLlib and TorchRL
	benchmarks/peers/install.sh
	$(BIN)/python benchmarks/rollout_throughput.py
	$(BIN)/python benchmarks/publish_latency.py

chaos: setup  ## PPO on Slurm for 10 minutes, a worker killed every few seconds; needs root
	PYTHONPATH=.:examples $(BIN)/python benchmarks/chaos.py

# Hours on two cores. Runs that are there already are not run again.
experiments: $(VENV)/installed-bench  ## sync rules compared over seeds; what the divergence estimate is worth
	PYTHONPATH=examples:benchmarks $(BIN)/python experiments/estimator.py
	PYTHONPATH=examples:benchmarks $(BIN)/python experiments/image_cost.py
	PYTHONPATH=examples:benchmarks $(BIN)/python experiments/off_policy.py
	PYTHONPATH=examples:benchmarks $(BIN)/python experiments/run.py

pictures: setup  ## of top and bench, for the README
	$(BIN)/python docs/pictures/draw.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
