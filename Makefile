# `make test` and `make check` create .venv and install everything they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup check format test test-adapters test-full test-simulation test-kubernetes demo bench bench-engines bench-rollout bench-scale bench-sockets bench-images bench-overlap bench-solve fuzz-codec bench-before-after compare-rollouts experiments chaos chaos-kills docs docs-links notebooks pictures dist test-dist clean

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
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-adapters:  ## rl_games, Tianshou, W&B and MLflow, in an environment of their own
	tests/adapters/install.sh
	.venv-adapters/bin/python -m pytest tests/adapters tests/unit/test_logging.py tests/integration/learning/test_logging.py

test-full: setup  ## the whole parity matrix, and all contract tests on four hosts
	$(BIN)/python -m pytest -m full_matrix

test-simulation: setup  ## a million random schedules of what head and hosts decide; an hour on two cores
	$(BIN)/python -m tests.simulation --count 1000000

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

bench-scale: setup  ## what hosts, fragments, steps and pulls cost one head; unequal hosts
	$(BIN)/python benchmarks/scale.py --hosts 1 16 64 256 640
	$(BIN)/python benchmarks/scale.py --hosts 64 --slots 16 --label 16slots
	$(BIN)/python benchmarks/uneven_workers.py

bench-sockets: $(VENV)/installed-bench  ## hosts behind encrypted tcp beside shared memory, in turns
	$(BIN)/python benchmarks/sockets.py

bench-images: $(VENV)/installed-bench  ## images from two hosts over a slow link; needs root
	$(BIN)/python benchmarks/image_bytes.py

bench-overlap: $(VENV)/installed-bench  ## rollouts ahead of the learner, beside bare loops
	$(BIN)/python benchmarks/overlap.py

bench-engines: $(VENV)/installed-bench  ## EnvPool, ALE and JAX alone and behind ClusterEnv, in turns
	$(BIN)/python benchmarks/engine_throughput.py

bench-solve: $(VENV)/installed-bench  ## how long until CartPole and LunarLander are solved, beside peers; hours
	benchmarks/peers/install.sh rllib
	$(BIN)/python benchmarks/time_to_solve.py --add

bench-rollout: $(VENV)/installed-bench  ## policies on workers, against RLlib and TorchRL
	benchmarks/peers/install.sh
	$(BIN)/python benchmarks/rollout_throughput.py
	$(BIN)/python benchmarks/publish_latency.py

bench-before-after: $(VENV)/installed-bench  ## is it as fast as it was? an older commit and this tree in turns
	$(BIN)/python benchmarks/before_and_after.py

compare-rollouts: setup  ## does it give what it gave? rollouts of an older commit and of this tree, bit by bit
	$(BIN)/python benchmarks/same_rollouts.py

chaos: setup  ## PPO on Slurm for 10 minutes, a worker killed every few seconds; needs root
	PYTHONPATH=.:examples $(BIN)/python benchmarks/chaos.py

chaos-kills: setup  ## 5,000 workers and hosts killed at any moment of any call, every row checked; an hour on a core
	$(BIN)/python benchmarks/kills.py

fuzz-codec: setup  ## a million damaged frames of coded observations; some minutes on a core
	$(BIN)/python benchmarks/codec_fuzz.py

# What has been run is not run again: runs/experiments remembers. 305 training runs, one per core,
# take half an hour on 16 cores and some four hours on two; `sync_runs.py --time-limit-s` does a part.
EXPERIMENT := PYTHONPATH=examples:benchmarks $(BIN)/python
runs/experiments/%.done: experiments/%.py | $(VENV)/installed-bench
	$(EXPERIMENT) $<
	mkdir -p $(@D) && touch $@

experiments: $(patsubst %,runs/experiments/%.done,estimator image_task off_policy stream_cost budget ahead)  ## sync rules compared over seeds; what the divergence estimate is worth
	$(EXPERIMENT) experiments/sync_runs.py
	$(EXPERIMENT) experiments/sync_report.py

docs: setup  ## the documentation site, in build/docs; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/docs

docs-links: setup  ## follow the links that leave the site; needs a network
	$(BIN)/python -m sphinx -b linkcheck --quiet docs build/docs-links

notebooks: setup  ## run the notebooks of docs/notebooks and store what they show
	$(BIN)/python docs/notebooks/run.py

pictures: setup  ## of top and bench, for the README
	$(BIN)/python docs/pictures/draw.py

$(VENV)-dist/installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet build twine
	touch $@

dist: $(VENV)-dist/installed  ## the wheel and the source archive, in dist
	rm -rf dist
	$(<D)/bin/python -m build --outdir dist .
	$(<D)/bin/python -m twine check --strict dist/*

test-dist: dist  ## install it on every Python that is here, and try it; PYTHONS="…" names more
	$(VENV)-dist/bin/python -m tests.integration.packaging.every_python dist $(PYTHONS)

clean:
	rm -rf $(VENV) $(VENV)-adapters $(VENV)-dist build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
