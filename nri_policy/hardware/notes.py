"""Notes: what is missing or odd in the description of the hardware, as texts.

Each text appears once, with all CPUs that it applies to. The number of texts has a
limit, so odd input cannot fill the memory.
"""

from __future__ import annotations

from nri_policy.foundation.cpuset import CPUSet

_MOST = 200  # distinct notes
_QUOTED = 60  # characters of foreign text


def quote(text: str) -> str:
    """Return *text* quoted on one line, shortened where it is long."""
    return repr(text if len(text) <= _QUOTED else text[: _QUOTED - 3] + "...")


class Notes:
    """Collects notes while a machine is read; `texts` is the outcome."""

    __slots__ = ("_cpus", "_dropped")

    def __init__(self) -> None:
        self._cpus: dict[str, list[int]] = {}
        self._dropped = 0

    def add(self, text: str, cpu: int | None = None) -> None:
        """Add *text*, on *cpu* if given."""
        cpus = self._cpus.get(text)
        if cpus is None:
            if len(self._cpus) == _MOST:
                self._dropped += 1
                return
            cpus = self._cpus[text] = []
        if cpu is not None:
            cpus.append(cpu)

    def texts(self) -> tuple[str, ...]:
        """Return the texts, the first added first."""
        texts = [
            f"{text} (CPUs {CPUSet(cpus)})" if cpus else text for text, cpus in self._cpus.items()
        ]
        if self._dropped:
            texts.append(f"{self._dropped} more notes left out")
        return tuple(texts)
