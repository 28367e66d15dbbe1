"""How `make docs` builds the documentation site."""

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from clusterenv import __version__

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "ClusterEnv"
author = "The ClusterEnv developers"
copyright = author
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "notebook_pages"]
source_suffix = {".md": "markdown", ".ipynb": "notebook"}
exclude_patterns = ["pictures/*.py", "site"]

# The inventories of other projects are on the network, and the site must also build without one.
# A docs host, or `CLUSTERENV_DOCS_ONLINE=1 make docs`, gets links to their pages.
if os.environ.get("CLUSTERENV_DOCS_ONLINE") == "1":
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "gymnasium": ("https://gymnasium.farama.org", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
    }

# For `make docs-links`. The first is an example of an address, and arXiv turns robots away.
linkcheck_ignore = [r"http://127\.0\.0\.1", r"https://arxiv\.org/"]
linkcheck_timeout = 20

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]

html_theme = "furo"
pygments_dark_style = "github-dark"  # furo's own underlines names as if they were links
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_extra_path = ["llms.txt"]
html_title = f"ClusterEnv {__version__}"
html_theme_options = {"navigation_with_keys": True}

# The order of the source is the order in which one reads it.
autodoc_member_order = "bysource"
# Defaults as in the source: `sys.executable`, not the path of the Python that builds the site.
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# `ClusterEnv(env, num_envs=64, …)` with a parameter on each line.
maximum_signature_line_length = 88
# What some adapters and logs import, and a machine that builds the site need not have.
OPTIONAL = ("dm_env", "minari", "mlflow", "rl_games", "tensordict", "tianshou", "torchrl", "wandb")
autodoc_mock_imports = [name for name in OPTIONAL if find_spec(name) is None]
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


def shorten(app, what, name, obj, options, signature, returns):
    """Signatures without what says nothing to a reader."""
    if signature == "(*args, **kwargs)":  # a protocol's: nobody makes one
        signature = ""
    return signature and shortened(signature), returns and shortened(returns)


NDARRAY = re.compile(r"ndarray\[[^\[\]]*(?:\[[^\[\]]*\])?, ~?[\w.]*dtype\[[^\[\]]*\]\]")
OF_ANY = re.compile(r"(?<=\w)\[~?(?:typing\.)?Any(?:, ~?(?:typing\.)?Any)*\]")


def shortened(text):
    """`ndarray` for `ndarray[Any, dtype[float64]]`, `Env` for `Env[Any, Any]`; valid defaults."""
    return OF_ANY.sub("", NDARRAY.sub("ndarray", text)).replace("<factory>", "{}")


def setup(app):
    before_napoleon, after_napoleon = 400, 600
    app.connect("autodoc-process-docstring", keep, priority=before_napoleon)
    app.connect("autodoc-process-docstring", restore, priority=after_napoleon)
    app.connect("autodoc-process-signature", shorten)
