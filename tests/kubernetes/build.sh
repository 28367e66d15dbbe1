#!/bin/sh
# Builds a Kubernetes control plane from Debian's source package, once. Prints where it is.
set -eu
HOME_OF_IT=${CLUSTERENV_KUBERNETES:-$HOME/.cache/clusterenv/kubernetes}
PROGRAMS="kube-apiserver kube-controller-manager kube-scheduler kubectl"
if [ -e "$HOME_OF_IT/built" ]; then
    echo "$HOME_OF_IT/bin"
    exit
fi
mkdir -p "$HOME_OF_IT/lists/partial" "$HOME_OF_IT/source" "$HOME_OF_IT/bin"
cd "$HOME_OF_IT/source"
{
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends \
        dpkg-dev golang-go make rsync etcd-server openssl ||
        { apt-get -q update && apt-get -q install -y --no-install-recommends \
            dpkg-dev golang-go make rsync etcd-server openssl; }
    # A list of its own: the machine's need not have sources.
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]" \
        "http://deb.debian.org/debian bookworm main" >../sources.list
    set -- -q -o Dir::Etc::SourceList="$HOME_OF_IT/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$HOME_OF_IT/lists" -o APT::Sandbox::User=root
    apt-get "$@" update
    rm -rf tree
    apt-get "$@" source --download-only kubernetes
    dpkg-source -x kubernetes_*.dsc tree
    cd tree
    targets=""
    for program in $PROGRAMS; do targets="$targets cmd/$program"; done
    GO111MODULE=off CGO_ENABLED=0 nice make WHAT="$targets"
    for program in $PROGRAMS; do cp "_output/bin/$program" "$HOME_OF_IT/bin"; done
} >"$HOME_OF_IT/build.log" 2>&1 || { tail -n 30 "$HOME_OF_IT/build.log" >&2; exit 1; }
cd "$HOME_OF_IT"
rm -rf source lists
touch built
echo "$HOME_OF_IT/bin"
