#!/bin/sh
# Builds .venv-adapters in the repository's root, with the libraries whose tests `make test` skips:
# rl_games wants an older psutil than the other tests have, Tianshou an older filelock, and its
# numba alone is a download of 60 MB; W&B and MLflow are 180 MB when installed. Does nothing where
# the folder is newer than what it is made of.
set -eu
cd "$(dirname "$0")/../.."
venv=.venv-adapters
newest=$(ls -t tests/adapters/install.sh constraints.txt pyproject.toml "$venv/installed" 2>/dev/null | head -n 1)
if [ "$newest" = "$venv/installed" ]; then
    exit
fi
test -x "$venv/bin/python" || "${PYTHON:-python3}" -m venv "$venv"
echo '*' >"$venv/.gitignore"
# First and pinned: a plain "torch" may bring gigabytes of CUDA, and what follows accepts this.
"$venv/bin/pip" install --quiet --constraint constraints.txt torch
"$venv/bin/pip" install --quiet --constraint constraints.txt --editable '.[dm-env,minari,mlflow,tensorboard,wandb]' \
    rl_games==1.6.5 tianshou==2.0.1 torchrl==0.14.1 psutil pytest pytest-timeout hypothesis
touch "$venv/installed"
