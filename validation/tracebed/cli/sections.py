"""Commands whose `--help` has sections: the common options first, then families of options under their titles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click


class Sectioned(click.Command):
    """A command whose help has sections.

    Args:
        sections: title of a section -> names of the parameters of its options. The other options come first.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Sequence[str]], **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, a section for each family."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        titled = {name for names in self.sections.values() for name in names}
        common = [name for name in records if name not in titled]
        for title, names in {"Options": common, **self.sections}.items():
            with formatter.section(title):
                formatter.write_dl([records[name] for name in names])
