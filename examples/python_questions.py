"""Conversations about Python's standard library, made from its docstrings: a small instruction data set without a download.

    python examples/python_questions.py questions.jsonl

Every line holds `messages`: a question about one public function or class, and the beginning of its docstring as the answer.
The text is that of the Python that runs this, and differs a little between versions: peers of one run use one file.
"""

import argparse
import importlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path

MODULES = (  # noqa: SIM905 - words fill fewer lines
    "abc argparse array ast asyncio base64 bdb binascii bisect bz2 calendar cmath cmd code codecs codeop collections "
    "collections.abc compileall concurrent.futures configparser contextlib contextvars copy copyreg csv ctypes "
    "dataclasses datetime decimal difflib dis doctest email.message email.parser email.utils enum errno filecmp fileinput "
    "fnmatch fractions ftplib functools gc getopt getpass gettext glob graphlib gzip hashlib heapq hmac html html.parser "
    "http.client http.cookiejar http.cookies http.server imaplib importlib importlib.metadata importlib.resources inspect "
    "io ipaddress itertools json keyword linecache locale logging logging.handlers lzma mailbox math mimetypes mmap "
    "modulefinder multiprocessing netrc numbers operator optparse os os.path pathlib pdb pickle pickletools pkgutil "
    "platform plistlib poplib pprint profile pstats py_compile pyclbr pydoc queue quopri random re reprlib rlcompleter "
    "runpy sched secrets select selectors shelve shlex shutil signal site smtplib socket socketserver sqlite3 ssl stat "
    "statistics string stringprep struct subprocess symtable sys sysconfig tarfile tempfile textwrap threading time "
    "timeit token tokenize trace traceback tracemalloc types typing unicodedata unittest unittest.mock urllib.parse "
    "urllib.request urllib.robotparser uuid venv warnings wave weakref webbrowser wsgiref.util xml.dom.minidom "
    "xml.etree.ElementTree xml.sax.saxutils xmlrpc.client zipapp zipfile zipimport zlib zoneinfo"
).split()
MAX_CHARACTERS = 500
MIN_CHARACTERS = 40


def questions() -> Iterator[tuple[str, str]]:
    """Question and answer, in the order of the modules and names; each docstring once."""
    seen: set[str] = set()
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        for name, thing in sorted(vars(module).items()):
            if name.startswith("_") or not (inspect.isroutine(thing) or inspect.isclass(thing)):
                continue
            yield from _about(f"{module_name}.{name}", thing, seen)
            if inspect.isclass(thing):
                for inner, method in sorted(vars(thing).items()):
                    if not inner.startswith("_") and inspect.isroutine(method):
                        yield from _about(f"{module_name}.{name}.{inner}", method, seen)


def _about(name: str, thing: object, seen: set[str]) -> Iterator[tuple[str, str]]:
    answer = (inspect.getdoc(thing) or "").strip()
    if len(answer) >= MIN_CHARACTERS and answer.isascii() and answer not in seen:
        seen.add(answer)
        cut = answer[:MAX_CHARACTERS]
        yield f"What does {name} do in Python?", cut if len(answer) <= MAX_CHARACTERS else cut.rpartition("\n")[0] or cut


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="file to write, such as questions.jsonl")
    output: Path = parser.parse_args().output
    lines = []
    for question, answer in questions():
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"messages": messages}))
    output.write_text("\n".join(lines) + "\n", encoding="ascii")
    print(f"{output}: {len(lines)} conversations")


if __name__ == "__main__":
    main()
