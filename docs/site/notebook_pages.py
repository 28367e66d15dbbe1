"""Shows notebooks, with the outputs that are stored in them, as pages of the site.

Sphinx runs nothing: `make notebooks` stores outputs, and a test runs every notebook.
"""

import json
from pathlib import Path

from myst_parser.parsers.sphinx_ import MystParser


class NotebookParser(MystParser):
    """Turns a notebook into Markdown, and lets MyST parse that."""

    supported = ("notebook",)

    def parse(self, inputstring, document):
        name = Path(document["source"]).name
        super().parse(as_markdown(json.loads(inputstring), name), document)


def as_markdown(notebook, name):
    """The page: the cells in their order, below the title a link to the notebook itself."""
    title, *cells = notebook["cells"]
    heading, _, rest = text_of(title["source"]).partition("\n")
    link = f"{{download}}`Download this notebook <{name}>`"
    return "\n\n".join([heading, link, rest.strip(), *map(cell_as_markdown, cells)])


def cell_as_markdown(cell):
    source = text_of(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    outputs = map(output_as_markdown, cell["outputs"])
    return "\n\n".join([f"```python\n{source}\n```", *outputs])


def output_as_markdown(output):
    """A picture as a picture, and everything else as text."""
    shown = output.get("data", {})
    if "image/png" in shown:
        data = text_of(shown["image/png"]).replace("\n", "")
        # A picture with a background of its own is readable on a dark page.
        image = f'<img class="output" alt="output" src="data:image/png;base64,{data}">'
        return f"```{{raw}} html\n{image}\n```"
    text = text_of(output["text"] if "text" in output else shown["text/plain"])
    return f":::{{code-block}} text\n:class: output\n\n{text.rstrip()}\n:::"


def text_of(lines):
    return lines if isinstance(lines, str) else "".join(lines)


def setup(app):
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True}
