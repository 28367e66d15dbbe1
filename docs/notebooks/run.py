"""Runs the notebooks in this folder in a real kernel and stores what they show: `make notebooks`.

`python docs/notebooks/run.py --out FOLDER NAME …` leaves the stored ones alone.
"""

import argparse
import os
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent


def run(file, out):
    """Run one notebook and store it, with its outputs, in the folder ``out``."""
    notebook = nbformat.read(file, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            kernel_name="python3",
            timeout=100,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},  # where it works, and may leave files
        ).execute()
    # The version of this machine's Python would be a change in each commit.
    notebook.metadata.pop("language_info", None)
    (out / file.name).write_text(nbformat.writes(notebook) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="without .ipynb; by default all")
    parser.add_argument("--out", type=Path, default=HERE, help="where the results go")
    arguments = parser.parse_args()
    # A backend that somebody chose for scripts would keep pictures out of the notebooks.
    os.environ.pop("MPLBACKEND", None)
    for file in sorted(HERE.glob("*.ipynb")):
        if not arguments.names or file.stem in arguments.names:
            run(file, arguments.out)


if __name__ == "__main__":
    main()
