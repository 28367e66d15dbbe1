"""The programs that the engines and the web page's test need, from Debian's packages if need be."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.engines.harness.waiting import EngineError, locked, run

LOCK = Path("/var/lib/clusterenv-engines/packages.lock")
INSTALL_S = 300.0
PACKAGES = {
    "chromium": "chromium",
    "ip": "iproute2",
    "munged": "munge",
    "nft": "nftables",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
}
"""The package of each program."""
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
POLICY = Path("/usr/sbin/policy-rc.d")
NOTHING_STARTS = "#!/bin/sh\n# written by clusterenv's tests\nexit 101\n"


@cache
def why_not_here() -> str:
    """Why real engines cannot run on this machine; empty where they can."""
    if os.geteuid() != 0:
        return "real engines need root (network namespaces, sshd, slurmd)"
    try:
        run(["unshare", "--net", "--uts", "--mount", "true"])
    except (EngineError, OSError) as error:
        return f"real engines need namespaces: {error}"
    return ""


def find(program: str) -> str:
    """The full path of a program that `install` has seen to."""
    path = shutil.which(program, path=SEARCH_PATH)
    if path is None:
        raise EngineError(f"{program} is not installed")
    return path


def install(*programs: str) -> None:
    """Install the packages of those programs that are not there."""
    with locked(LOCK, INSTALL_S):
        missing = [PACKAGES[name] for name in programs if not shutil.which(name, path=SEARCH_PATH)]
        if missing:
            with _nothing_starts():
                _apt_install(missing)


def _apt_install(packages: list[str]) -> None:
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=300"]
    wanted = [*apt, "install", "-y", "--no-install-recommends", *packages]
    try:
        run(wanted, env=env, timeout_s=INSTALL_S)
    except EngineError:
        run([*apt, "update"], env=env, timeout_s=INSTALL_S)
        run(wanted, env=env, timeout_s=INSTALL_S)


@contextmanager
def _nothing_starts() -> Iterator[None]:
    """Meanwhile the packages' own scripts start no service."""
    if not POLICY.exists():
        POLICY.write_text(NOTHING_STARTS)
        POLICY.chmod(0o755)
    try:
        yield
    finally:
        if POLICY.read_text() == NOTHING_STARTS:
            POLICY.unlink()
