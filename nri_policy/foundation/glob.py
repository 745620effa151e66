r"""Shell globs with the rules of Go's path/filepath.Match, which users of the peer rely on.

`*` is any text without `/`, `?` any character but `/`, `[a-z]` and `[^a-z]` one character of (not
of) the set, and `\` takes the next character as it stands. The whole text must match. Unlike
fnmatch: `*` stops at `/`, negation is `^`, and a malformed pattern is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Self

from nri_policy.foundation.wording import quoted

MAX_LENGTH = 1024  # characters of a pattern

_TOKEN = re.compile(
    r"(?P<star>\*+)|(?P<any>\?)|\\(?P<escaped>.)|(?P<plain>[^*?\[\\])"
    r"|\[(?P<negated>\^?)(?P<members>(?:\\.|[^\]\\-])(?:\\.|[^\]\\])*)\]",
    re.DOTALL,
)
_RANGE = re.compile(r"(\\.|[^-\\])(?:-(\\.|[^-\\]))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Glob:
    """A well-formed pattern. Make one by `parse`."""

    pattern: str
    _regex: re.Pattern[str] = field(repr=False, compare=False)

    @classmethod
    def parse(cls, pattern: str) -> Self:
        """Return the glob that *pattern* writes; raises ValueError if it is malformed."""
        if not isinstance(pattern, str) or len(pattern) > MAX_LENGTH:
            raise ValueError(f"{quoted(pattern)} is not a glob of at most {MAX_LENGTH} characters")
        regex, position, stars = "", 0, 0
        while position < len(pattern):
            token = _TOKEN.match(pattern, position)
            if token is None:
                raise ValueError(
                    f"{quoted(pattern)} is not a glob: {quoted(pattern[position:])} is not complete"
                )
            if token["star"]:
                # Each star and what follows it up to the next one match at the earliest place and
                # never again elsewhere (an atomic group): no pattern can backtrack at length.
                regex += ")" * bool(stars) + "(?>[^/]*?"
                stars += 1
            else:
                regex += _character(pattern, token)
            position = token.end()
        if stars:  # what follows the last star must also end the text
            head, _, tail = regex.rpartition("(?>[^/]*?")
            regex = f"{head}(?:[^/]*?{tail})"
        return cls(pattern, re.compile(regex, re.DOTALL))

    def matches(self, text: str) -> bool:
        """Return whether the whole of *text* matches."""
        return self._regex.fullmatch(text) is not None


def _character(pattern: str, token: re.Match[str]) -> str:
    """Return the regular expression for a token that stands for one character."""
    if token["any"]:
        return "[^/]"
    members = token["members"]
    if members is None:
        return re.escape(token["escaped"] or token["plain"])
    ranges, position = "", 0
    while position < len(members):
        part = _RANGE.match(members, position)
        if part is None:
            raise ValueError(f"{quoted(pattern)} is not a glob: bad set {quoted(token[0])}")
        low, high = (re.escape(end[-1]) for end in (part[1], part[2] or part[1]))
        if low[-1] > high[-1]:
            raise ValueError(f"{quoted(pattern)} is not a glob: {quoted(part[0])} runs backwards")
        ranges += f"{low}-{high}"
        position = part.end()
    return f"[{token['negated']}{ranges}]"
