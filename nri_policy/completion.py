"""The program's door: words for a shell come from a table, all else from the commands.

Importing the commands to complete a word takes longer than a person waits after a tab. The table,
`completion.json`, is written by `make man`; where it has no answer (names that only the daemon
knows, quotes), the commands are asked. The forms of words in and out are click's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

_VARIABLE = "_NRI_POLICY_COMPLETE"
_PLUGIN = "kubectl nri-policy"
_SHELLS = ("bash", "zsh", "fish")
_PATHS = {"file", "dir"}  # kinds whose values the shell itself completes

Item = tuple[str, str, str]  # type, value, help


def main() -> None:
    """Run the program."""
    shell, _, verb = os.environ.get(_VARIABLE, "").partition("_")
    if shell in _SHELLS and verb == "complete":
        found = complete(*_words(shell))
        if found is not None:
            sys.stdout.write("".join(f"{_line(shell, *each)}\n" for each in found))
            return
    from nri_policy.cli import main as program  # noqa: PLC0415 - what this module is there to avoid

    program()


def kubectl() -> None:
    """Say what may follow `kubectl nri-policy`, as kubectl asks the program of this name."""
    *words, incomplete = sys.argv[1:] or [""]
    found = complete(words, incomplete, _PLUGIN) or []
    paths = any(type_ in _PATHS for type_, *_ in found)
    for type_, value, says in found:
        if type_ not in _PATHS:
            sys.stdout.write(f"{value}\t{says}\n" if says else f"{value}\n")
    sys.stdout.write(":0\n" if paths else ":4\n")  # cobra's: files may follow, or none


def complete(words: Sequence[str], incomplete: str, program: str = "") -> list[Item] | None:
    """Return what may follow the *words* of a command line; None if the table does not say.

    The *program* is one of the table: nri-policy, without a name, or the plugin of kubectl.
    """
    if any(char in word for word in (*words, incomplete) for char in "'\"\\="):
        return None
    table: dict[str, Any] = json.loads(files(__package__).joinpath("completion.json").read_text())
    path, value_of = program, None
    for word in words:
        known = table[path]
        if value_of is not None:
            value_of = None
        elif word in known["options"]:
            _, kind = known["options"][word]
            value_of = None if kind == "flag" else kind
        elif (inner := f"{path} {word}".strip()) in table:
            path = inner
    known = table[path]
    if value_of is not None:
        return _values(value_of, incomplete)
    if incomplete.startswith("-"):
        options = known["options"].items()
        return [("plain", name, says) for name, (says, _) in options if name.startswith(incomplete)]
    if known["commands"]:
        commands = known["commands"].items()
        return [("plain", name, says) for name, says in commands if name.startswith(incomplete)]
    return _values(known["argument"], incomplete)


def _values(kind: Any, incomplete: str) -> list[Item] | None:
    """Return the values of a kind: a list of them, paths, or names that the daemon has."""
    if isinstance(kind, list):
        return [("plain", each, "") for each in kind if each.startswith(incomplete)]
    return [(kind, incomplete, "")] if kind in _PATHS else None


def _words(shell: str) -> tuple[list[str], str]:
    """Return the words before the one that is completed, and that one."""
    words = os.environ.get("COMP_WORDS", "").split()
    at = os.environ.get("COMP_CWORD", "")
    if shell == "fish":
        before = words[1:-1] if at and words[-1:] == [at] else words[1:]
        return before, at
    number = int(at)
    return words[1:number], words[number] if number < len(words) else ""


def _line(shell: str, type_: str, value: str, says: str) -> str:
    if shell == "zsh":
        escaped = value.replace(":", r"\:") if says else value
        return f"{type_}\n{escaped}\n{says or '_'}"
    if shell == "fish" and says:
        return f"{type_},{value}\t{says}"
    return f"{type_},{value}"
