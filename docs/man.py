"""Man pages, from the help of the command line: `python docs/man.py FOLDER` writes adloco-peer.1 and one page per verb.

man FOLDER/adloco-peer-join.1       or put them into a directory `man1` of MANPATH
"""

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from adloco_p2p.cli import make_parser
from adloco_p2p.cli.parser import Parser

COLUMNS = 80


def pages(parser: Parser) -> Iterator[tuple[str, str]]:
    """(name of the file, its text) of a command and of all verbs below it."""
    name = parser.prog.replace(" ", "-")
    words = (parser.description or f"see {parser.prog} --help").split("\n\n")[0]
    yield f"{name}.1", page(name, words, parser.format_help())
    for verb in parser.verbs.values():
        yield from pages(verb)


def page(name: str, about: str, text: str) -> str:
    """The help as it is laid out, between the head that `man` and `apropos` look for and the place of the guides."""
    head = [f'.TH "{name.upper()}" 1', ".SH NAME", f"{escaped(name)} \\- {escaped(' '.join(about.split()))}"]
    body = [".SH DESCRIPTION", ".nf", *map(escaped, text.rstrip().splitlines()), ".fi"]
    foot = [".SH SEE ALSO", ".BR adloco-peer (1)"]
    return "\n".join([*head, *body, *foot]) + "\n"


def escaped(line: str) -> str:
    """As roff prints it: no command at the beginning, no escapes, hyphens that can be copied."""
    plain = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder: Path = parser.parse_args().folder
    os.environ["COLUMNS"] = str(COLUMNS)  # argparse lays the help out for it
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages(make_parser()):
        (folder / name).write_text(text, encoding="ascii")
    sys.stdout.write(f"{folder}: {len([*folder.glob('*.1')])} pages\n")


if __name__ == "__main__":
    main()
