#!/bin/sh
# Builds the virtual environments of the peers, .venv-rllib and .venv-torchrl, in the repository's
# root: both, or those that are named. Does nothing where they are there already; remove the folder
# to build one again.
#
#     benchmarks/peers/install.sh
#     benchmarks/peers/install.sh rllib
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}

install() { # name, then the packages
    venv=.venv-$1
    shift
    if [ -e "$venv/installed" ]; then
        return
    fi
    "$python" -m venv "$venv"
    echo '*' >"$venv/.gitignore"
    # First and pinned: a plain "torch" may bring gigabytes of CUDA, and what follows accepts this.
    "$venv/bin/pip" install --quiet torch==2.13.0
    "$venv/bin/pip" install --quiet "$@"
    touch "$venv/installed"
}

# Box2D by name: the extra [box2d] of older Gymnasium versions builds it from source.
install_peer() {
    case $1 in
    rllib) install rllib 'ray[rllib]==2.60.0' \
        Box2D==2.3.10 pygame ale-py opencv-python-headless ;;
    torchrl) install torchrl torchrl==0.14.0 gymnasium==1.4.0 \
        Box2D==2.3.10 pygame ale-py opencv-python-headless ;;
    *)
        echo "no peer is called $1: the peers are rllib and torchrl" >&2
        exit 2
        ;;
    esac
}

if [ $# -eq 0 ]; then
    set -- rllib torchrl
fi
for peer in "$@"; do
    install_peer "$peer"
done
