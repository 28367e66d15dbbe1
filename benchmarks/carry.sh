#!/bin/sh
# Runs a benchmark on a machine without a network, which has Python, NumPy, torch and JAX.
#
#     benchmarks/carry.sh pack 3.12                             # here: build/carry/packages.tar.xz
#     benchmarks/carry.sh run python3 benchmarks/sockets.py     # there, with that file in place
#
# Everything else that benchmarks and examples need to run is carried along, for the version of Python
# that is there, in some 50 MB: without pictures (matplotlib) and without Stable-Baselines3.
set -eu
cd "$(dirname "$0")/.."
folder=build/carry
packages='gymnasium farama-notifications typing_extensions pyzmq msgspec cloudpickle psutil
    Box2D ale-py envpool envpool-assets dm-env dm-tree absl-py attrs wrapt optree opencv-python-headless zstandard
    tyro docstring-parser typeguard rich pygments markdown-it-py mdurl
    tensorboard protobuf grpcio werkzeug markupsafe markdown six packaging'
# EnvPool's families of envs that no benchmark uses, and what only draws.
families='gfootball vizdoom jumanji minigrid procgen highway pgx craftax marlgrid mujoco toy_text'
left_out='tensorboard/webfiles.zip zstandard/_cffi*.so grpc/_cython pygments/lexers/_*_builtins.py'

pack() {
    rm -rf "$folder"
    mkdir -p "$folder/wheels" "$folder/site"
    # shellcheck disable=SC2086  # a list of words
    ${PYTHON:-python3} -m pip download --quiet --no-deps --only-binary :all: --python-version "$1" \
        --platform manylinux_2_28_x86_64 --platform manylinux2014_x86_64 \
        --constraint constraints.txt --dest "$folder/wheels" $packages
    for wheel in "$folder"/wheels/*.whl; do
        ${PYTHON:-python3} -m zipfile -e "$wheel" "$folder/site"
    done
    for part in $left_out; do
        # shellcheck disable=SC2086  # a pattern
        rm -rf "${folder:?}/site"/$part
    done
    for family in $families; do
        rm -rf "$folder/site/envpool/$family" "$folder/site/envpool_assets/$family"
        sed -i "/^import envpool.$family[. ]/d" "$folder/site/envpool/entry.py"
    done
    tar -C "$folder" -cf - site | xz -T0 -6 >"$folder/packages.tar.xz"
    rm -rf "$folder/wheels" "$folder/site"
    du -h "$folder/packages.tar.xz"
}

run() {
    if [ ! -e "$folder/site" ]; then
        mkdir -p "$folder/unpacking"
        tar -C "$folder/unpacking" -xJf "$folder/packages.tar.xz"
        mv "$folder/unpacking/site" "$folder/site"
    fi
    PYTHONPATH=$PWD/src:$PWD/$folder/site:$PWD/examples:$PWD/benchmarks:$PWD exec "$@"
}

case ${1:-} in
pack | run) "$@" ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
