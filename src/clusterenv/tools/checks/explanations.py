"""What a failure of a host or worker means, and what to do about it. Pure."""

from __future__ import annotations

from clusterenv.errors import StartupError
from clusterenv.tools.checks.findings import Finding, ok, problem, warning
from clusterenv.wire.versions import disagreements

# What to install for a module whose package has another name.
_PACKAGES = {
    "Box2D": "gymnasium[box2d]",
    "ale_py": "gymnasium[atari]",
    "cv2": "opencv-python",
    "mujoco": "gymnasium[mujoco]",
    "mujoco_py": "gymnasium[mujoco]",
    "pygame": "gymnasium[classic-control]",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
_REFUSALS = {
    "cannot submit a job for a host: ": "\n",
    "would wait for ever": ": ",
    "no room for ": "; ",
}
"""Words of an engine that started nothing, and what separates them from what to do."""


def explain_startup(error: Exception) -> Finding:
    """Why no worker started."""
    text = str(error)
    if isinstance(error, StartupError) and error.refused:
        return problem(
            f"versions: the head and its hosts do not fit together: {error.refused}",
            "install the same versions on both sides (pip install 'NAME==VERSION' there), or let "
            "the launcher's python= name an environment that has them (RayLauncher: runtime_env=)",
        )
    if "No module named clusterenv" in text or "No module named 'clusterenv'" in text:
        return problem(
            "host: its Python has no clusterenv",
            "pip install clusterenv there, or let the launcher's python= name one that has it",
        )
    if isinstance(error, StartupError) and error.unreached:
        address = error.unreached.removeprefix("tcp://")
        return problem(
            f"route: hosts were started, but do not get through to {address}: a firewall, or an "
            f"address that means another machine there ({_first_line(text)})",
            f"on a host's machine try: nc -vz {' '.join(address.rsplit(':', 1))}; allow that port, "
            "or choose others with network=Network(interface=…, advertise_host=…, port=…)",
        )
    what, to_do = _refusal_in(text)
    return problem(f"host: {' '.join(what.split())}", to_do)


def _refusal_in(text: str) -> tuple[str, str]:
    """What went wrong, and what to do: a refusal says so itself, and has no log."""
    for words, separator in _REFUSALS.items():
        _, _, rest = text.partition(words)
        _, _, advice = rest.partition(separator)
        if advice:
            return text.removesuffix(f"{separator}{advice}"), advice
    return text, "fix what its log says; no env has been built yet"


def explain_env(env: str, where: str, tried: dict[str, object]) -> Finding:
    """Whether the env works on a worker."""
    if "error" not in tried:
        build_s, step_s = float(str(tried["build_s"])), float(str(tried["step_s"]))
        took = f"built in {build_s:.2g} s, {step_s * 1e6:.3g} µs per step"
        return ok(f"env: {env} works on {where}: {took}")
    missing, error = str(tried["missing"]), str(tried["error"]).replace("\n", " ")
    if missing:
        return problem(
            f"env: {env} needs the package {missing!r}, which {where} does not have ({error})",
            f"there: pip install '{pip_name(missing)}'; or let the launcher's python= name an "
            "environment that has it",
        )
    last = str(tried["traceback"]).strip().splitlines()[-3:]
    return problem(
        f"env: {env} fails on {where}: {error} [{' '.join(line.strip() for line in last)}]",
        "make it work in one process first: gymnasium.make(…).reset()",
    )


def explain_loss(env: str, error: str) -> Finding:
    """A worker that ended or hung while it was examined."""
    what = " ".join(error.split())
    if env:
        return problem(
            f"env: {env} ends or hangs its worker: {what}",
            "its native code crashes, or it waits for something (a display, a licence, a download) "
            "that is not there; run it alone on that machine",
        )
    return problem(f"worker: {what}", "see why its engine ended it: memory, time limit, preemption")


def pip_name(module: str) -> str:
    """The package to install for a module."""
    top = module.partition(".")[0]
    return _PACKAGES.get(top, top)


def compare_versions(head: dict[str, str], worker: dict[str, str], where: str) -> Finding:
    """Versions that differ without preventing the two from working together."""
    differ = [
        f"{name} {worker[name]} ({head[name]} here)" for name in head if worker[name] != head[name]
    ]
    if not differ:
        return ok(f"versions: {where} runs the same")
    serious = disagreements(head, worker)
    if serious:
        return problem(f"versions: {'; '.join(serious)}", "install the same versions on both sides")
    return warning(
        f"versions: {where} runs {', '.join(differ)}",
        "it works, but numbers may differ: install the same versions on both sides",
    )


def judge_clock(skew_s: float, round_trip_s: float, where: str) -> Finding:
    """Whether the clocks agree, as far as a round trip can tell."""
    error_s = round_trip_s / 2
    what = f"clock: {where} is {skew_s * 1e3:+.3g} ms off (± {error_s * 1e3:.2g} ms)"
    if abs(skew_s) - error_s < 1.0:
        return ok(what)
    return warning(what, "logs will not line up, and tls and Slurm may refuse: run chrony or ntpd")


def judge_line(round_trip_s: float, down: float, up: float, where: str) -> Finding:
    """How fast the line to a worker is; ``down`` and ``up`` in bytes per second."""
    what = (
        f"line: {where}: round trip {round_trip_s * 1e6:.3g} µs, {down / 1e6:.3g} MB/s to it, "
        f"{up / 1e6:.3g} MB/s from it"
    )
    if round_trip_s > 5e-3:
        return warning(what, "step() pays a round trip each time: use rollout(policy) or stream()")
    if min(down, up) < 10e6:
        return warning(
            what,
            "use AdaptiveSync and encoding='bf16' for weights, network=Network(interface=…) for a "
            "faster net",
        )
    return ok(what)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
