"""The parser of the command line: errors with a code and a guess, help by task, examples under every verb."""

import argparse
import difflib
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from adloco_p2p.cli.examples import EXAMPLES, FIRST
from adloco_p2p.commands.console import remark
from adloco_p2p.error_codes import ERROR_CODES

HELP_WIDTH = 100
"""The largest width of the page that lists the verbs."""
VERB_WIDTH = 14
"""Columns of a verb on that page."""

Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"


def error_words(code: str, problems: Sequence[str], *, workdir: Path | None = None) -> str:
    """Return every problem with its code, then the cause and the remedy of the code, for this working directory if it is known.
    A problem may quote what others sent."""
    from adloco_p2p.views.units import printable

    entry = ERROR_CODES[code]
    lines = [f"adloco-peer: {code}: {printable(problem)}" for problem in problems]
    return "\n".join([*lines, f"  cause:  {entry.cause}", f"  remedy: {entry.remedy_in(workdir)}"])


class _Help(argparse.RawDescriptionHelpFormatter):
    """argparse's help, which breaks no word: argparse itself breaks `held-out` at its hyphen, and a long word anywhere."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        from adloco_p2p.views.wrapping import wrapped

        return wrapped(text, width, hanging=0).split("\n")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from adloco_p2p.views.wrapping import wrapped

        return super()._fill_text(wrapped(text, width), width, indent)


class Parser(argparse.ArgumentParser):
    """A parser whose errors carry a code, as all others do, and suggest what was probably meant."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, **settings)
        self.verbs: Mapping[str, Parser] = {}
        self._tasks: dict[str, list[str]] = {}
        self._given: list[str] = []

    def add_task(self, title: str, verbs: Verbs, *adders: Callable[[Verbs], None]) -> None:
        """Add verbs that the help page lists together, under this title."""
        before = set(verbs.choices)
        for add in adders:
            add(verbs)
        self._tasks[title] = [name for name in verbs.choices if name not in before]

    def format_help(self) -> str:
        """Return, for the program, what it is, the verbs by task and where to begin; for a verb, argparse's own help."""
        if not self._tasks:
            return super().format_help()
        parts = [f"usage: {self.prog} VERB ...", _wrapped(self.description or "")]
        for title, names in self._tasks.items():
            parts.append("\n".join([f"{title}:", *(_entry(name, self.verbs[name]) for name in names)]))
        options = [f"{self.prog} VERB --help   the options of a verb, with examples", f"{self.prog} --version"]
        for title, lines in (("more", options), ("where to begin", [_beginning(line) for line in FIRST])):
            parts.append("\n".join([f"{title}:", *(f"  {line}" for line in lines)]))
        return "\n\n".join(parts) + "\n"

    def format_usage(self) -> str:
        """Return a short usage where there are verbs, because all of their names fill a screen."""
        return f"usage: {self.prog} VERB ...\n" if self._tasks else super().format_usage()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Keep the words for a possible error, and parse them."""
        self._given = list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        verb = next((word for word in self._given if not word.startswith("-")), None)
        if verb is not None and verb in self.verbs:
            self.verbs[verb].error(message)  # the same words mean other things after another verb
        misspelt = self._unknown(verb)
        if misspelt is None:
            self.print_usage(sys.stderr)
        remark(error_words("E200", [misspelt or message + self._meant(message)]))
        self.exit(2)

    def _unknown(self, verb: str | None) -> str | None:
        """Describe a misspelt verb or option, if there is one; argparse would report what is missing instead."""
        if self.verbs and verb is not None:
            near = ["--help"] if verb == "help" else difflib.get_close_matches(verb, self.verbs, n=1)
            return f"{verb}: no such verb" + (f"; did you mean {near[0]}?" if near else f"; there are {', '.join(self.verbs)}")
        options = set(re.findall(r"--[a-z-]+", self.format_help()))
        for option in (word.partition("=")[0] for word in self._given if word.startswith("--") and word != "--"):
            if not any(known.startswith(option) for known in options):
                if (bare := option[2:].upper()) in {action.metavar for action in self._actions if not action.option_strings}:
                    return f"{option}: no such option of {self.prog}; give {bare} alone"
                longer = sorted(known for known in options if known.endswith(option[1:]))
                names = [known[2:] for known in options]  # the dashes alone would make short ones alike
                near = longer or [f"--{name}" for name in difflib.get_close_matches(option[2:], names, n=1)]
                return f"{option}: no such option of {self.prog}" + (f"; did you mean {near[0]}?" if near else "")
        return None

    def _meant(self, message: str) -> str:
        """Return a hint where a link or a working directory is given without its option."""
        alone = [word for before, word in pairwise(["", *self._given]) if not f"{before}{word}".startswith("-")]
        links = [word for word in alone if word.startswith(("adloco://", "/ip4/", "/ip6/", "/dns"))]
        if links and "--initial-peers" in self.format_help():
            return f"; did you mean --initial-peers {shlex.quote(links[0])}?"
        directories = [word for word in alone if Path(word).is_dir()] if "--workdir" in message else []
        return f"; did you mean --workdir {shlex.quote(directories[0])}?" if directories else ""


def _entry(name: str, verb: Parser) -> str:
    """Return the entry of one verb on the page that lists all."""
    return _wrapped(f"  {name:<{VERB_WIDTH}}{verb.description}", indent=VERB_WIDTH + 2)


def _beginning(line: str) -> str:
    """Return a first command with its purpose, which has a line of its own where the terminal is narrow."""
    command, _, purpose = line.partition("    ")
    return line if len(line) + 2 < shutil.get_terminal_size().columns else f"{command}\n      {purpose.lstrip()}"


def _wrapped(text: str, *, indent: int = 0) -> str:
    """Wrap the text to this terminal, with the second and later lines indented."""
    from adloco_p2p.views.wrapping import wrapped

    return text[:indent] + wrapped(text[indent:], min(HELP_WIDTH, shutil.get_terminal_size().columns - 1), hanging=indent)


def add_verb(verbs: Verbs, name: str, words: str, *, of: str = "") -> Parser:
    """Add a verb with its purpose, and its examples below its options. `of`: the verb that comes before this one."""
    key = f"{of} {name}".lstrip()
    examples = "\n".join(["examples:", *(f"  {line}" for line in EXAMPLES[key])])
    return verbs.add_parser(name, help=words, description=words, epilog=examples)
