"""Sphinx builds the site from the Markdown pages and from the docstrings: `tox -e docs`."""

import re
import sys
import types
from importlib.metadata import version as installed

import click
from sphinx.application import Sphinx

from tracebed.cli import tracebed
from tracebed.cli.setup_options import table_of_settings

project = "tracebed"
author = "the tracebed authors"
copyright = "the tracebed authors, Apache-2.0"
version = release = installed("tracebed")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
exclude_patterns = ["_build"]
root_doc = "index"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # the repository has notebooks without outputs
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 600

smartquotes = False  # "--option" is to keep its hyphens
default_role = "code"  # docstrings put names into single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
nitpicky = False

html_theme = "furo"
html_title = "tracebed"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["dark.css"]
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"


def commands() -> types.ModuleType:
    """Return a module with the commands by name, so that a page can have one of them, as `commands:simulate`.

    A group gives its commands their common options when it returns them, by the names on the way to them.
    """
    module, root = types.ModuleType("commands"), click.Context(tracebed, info_name="tracebed")
    for name in tracebed.list_commands(root):
        command = tracebed.get_command(root, name)
        setattr(module, name, command)
        if isinstance(command, click.Group):
            group = click.Context(command, root, name)
            for part in command.list_commands(group):
                command.get_command(group, part)
    return module


sys.modules["commands"] = commands()


def plain_text(app: Sphinx, context: object, lines: list[str]) -> None:
    """Make reStructuredText of a help text: names such as `extra_...` are no links, examples are literal blocks."""
    found = []
    for line, before in zip(lines, ["", *lines], strict=False):
        text = re.sub(r"(?<=\w)_(?!\w)", r"\\_", line)
        if re.match(r"\| Examples?:$", line):
            found += ["Example::", ""]
        elif re.match(r"\|  +\S", line) and (before.startswith("|  ") or re.match(r"\| Examples?:$", before)):
            found.append(line.removeprefix("| "))
        else:
            found.append(text)
    lines[:] = found


def settings_of_a_setup(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the mark of the table of settings by the table, which is made from the fields of a setup."""
    source[0] = source[0].replace("<!-- settings -->", table_of_settings())


def literal_blocks(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Make literal blocks of a docstring's indented code, which has one colon before it, as in Markdown."""
    found: list[str] = []
    above = ""
    for line in lines:
        if line.startswith("    ") and not above.startswith(" ") and found and not found[-1]:
            found += ["::", ""]
        above = line or above
        found.append(line)
    lines[:] = found


def setup(app: Sphinx) -> None:
    """Have help texts and docstrings made reStructuredText before they become part of the reference."""
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", plain_text)
    app.connect("source-read", settings_of_a_setup)
    app.connect("autodoc-process-docstring", literal_blocks, priority=100)  # before napoleon
