"""How `make docs` builds the documentation site."""

from clusterenv import __version__

project = "ClusterEnv"
author = "The ClusterEnv developers"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["pictures/*.py"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
html_extra_path = ["llms.txt"]
html_title = f"ClusterEnv {__version__}"
html_theme_options = {"navigation_with_keys": True}

# The order of the source is the order in which one reads it.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# `ClusterEnv(env, num_envs=64, …)` with a parameter on each line.
maximum_signature_line_length = 88
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True


# napoleon would take the beginning of `[T, n]: the version of the policy that acted` for a type.
DESCRIBED_IN_SENTENCES = ("attribute", "data", "property")
docstrings = {}


def keep(app, what, name, obj, options, lines):
    if what in DESCRIBED_IN_SENTENCES:
        docstrings[name] = list(lines)


def restore(app, what, name, obj, options, lines):
    if what in DESCRIBED_IN_SENTENCES:
        lines[:] = docstrings.pop(name)


def setup(app):
    before_napoleon, after_napoleon = 400, 600
    app.connect("autodoc-process-docstring", keep, priority=before_napoleon)
    app.connect("autodoc-process-docstring", restore, priority=after_napoleon)
