"""What the benchmarks share for reporting: the machine, tables, and the result files.

Results go to ``benchmarks/results/<benchmark>/<cores>cores.md``, ``.png`` and ``.jsonl.gz``, which
has the raw numbers (``records.py`` reads them). A new run replaces the last one; git has the older.
They name the kind of machine, never the machine: no host names, no paths.
"""

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from records import SUFFIX, Record, write_record

RESULTS = Path(__file__).parent / "results"
PACKAGES = (
    "clusterenv",
    "gymnasium",
    "numpy",
    "pyzmq",
    "stable-baselines3",
    "torch",
    "box2d",
    "ale-py",
    "opencv-python-headless",
)


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def memory_gb(entry: str = "MemTotal") -> float:
    """An entry of /proc/meminfo, in GiB."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    kilobytes = next(line.split()[1] for line in lines if line.startswith(f"{entry}:"))
    return int(kilobytes) / 2**20


def machine() -> dict[str, str]:
    """The machine, the software and the moment, as a reader needs them to judge the numbers."""
    return {
        "date": date.today().isoformat(),
        "commit": _commit(),
        "CPU": f"{_cpu_model()}, {cores()} cores",
        "memory": f"{memory_gb():.0f} GiB",
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
    }


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    def git(*arguments: str) -> str:
        command = ("git", "-C", str(Path(__file__).parent), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", "../src", ".", ":!results")
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "none"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table with aligned columns, which reads as plain text as well."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    lines.insert(1, ["-" * width for width in widths])
    cells = (
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    )
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def facts(entries: dict[str, Any]) -> str:
    """A bullet list of facts."""
    return "\n".join(f"- {name}: {value}" for name, value in entries.items())


def publish(
    benchmark: str,
    sections: dict[str, str],
    numbers: Record,
    figure: Any | None,
    folder: Path = RESULTS,
    label: str = "",
    stem: str = "",
) -> None:
    """Print the sections and save them with the numbers and the picture.

    They replace the last record of this benchmark on this kind of machine. ``stem`` is for what
    ran elsewhere; ``label`` is put after it, for a record with other settings beside the usual one.
    """
    text = f"# {benchmark}\n\n" + "\n\n".join(f"## {t}\n\n{body}" for t, body in sections.items())
    stem = "-".join(filter(None, (stem or f"{cores()}cores", label)))
    target = folder / benchmark
    target.mkdir(parents=True, exist_ok=True)
    if figure is not None:
        figure.savefig(target / f"{stem}.png", dpi=80)
        text += f"\n\n![{benchmark}]({stem}.png)"
    (target / f"{stem}.md").write_text(text + "\n")
    write_record(target / f"{stem}{SUFFIX}", numbers)
    print(text)
    print(f"\nsaved in results/{benchmark}: {stem}")
