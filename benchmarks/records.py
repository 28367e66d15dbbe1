"""The raw numbers of a benchmark: a dictionary, kept as compressed JSON lines.

The first line has every entry that is no list. Each element of a list then has a line of its own,
``{"name of the list": element}``. The same record always makes the same bytes.
"""

import gzip
import json
from pathlib import Path
from typing import Any

SUFFIX = ".jsonl.gz"
Record = dict[str, Any]


def write_record(file: Path, record: Record) -> None:
    """Save ``record``; what was in ``file`` is replaced."""
    lists = {name: value for name, value in record.items() if isinstance(value, list) and value}
    first = {name: value for name, value in record.items() if name not in lists}
    lines = [first, *({name: element} for name, value in lists.items() for element in value)]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_record(file: Path) -> Record:
    """What :func:`write_record` saved."""
    first, *others = map(json.loads, gzip.decompress(file.read_bytes()).splitlines())
    record: Record = first
    for line in others:
        ((name, element),) = line.items()
        record.setdefault(name, []).append(element)
    return record
