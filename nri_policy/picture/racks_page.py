"""Pages about a cluster: its groups, its hosts, what is in use, and the steps of a simulation."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct

from nri_policy.foundation.wording import counted
from nri_policy.picture.markup import Element, Verbatim
from nri_policy.picture.page import (
    PLAY,
    frame,
    page,
    player,
    problem,
    render_list,
    section,
    step,
    table,
)
from nri_policy.picture.racks import Legend, Map, Path, anchor, figure
from nri_policy.picture.timeline import Timeline, draw_timeline

_MOST_LINKS = 4
_MOST_GROUPS = _MOST_HOSTS = 20  # in a table that is open
_MOST_FOLDED = 200  # hosts in one that is not


class GroupLine(Struct, frozen=True, kw_only=True):
    """A group, as a line of a table."""

    name: str
    state: str
    domains: Mapping[Path, int]  # pods
    elsewhere: int = 0  # pods on hosts that the picture lacks
    message: str
    change: str = ""


class Moment(Struct, frozen=True, kw_only=True):
    """A step of a simulation, and the cluster after it."""

    heading: str
    problems: Sequence[str]
    groups: Sequence[GroupLine]
    cluster: Map | None  # None: it is not drawn
    touched: Collection[Path] = frozenset()  # hosts of any moment


class Parts(Struct, frozen=True, kw_only=True):
    """The parts of a page besides its steps; empty ones are left out."""

    problems: Sequence[str] = ()
    groups: Sequence[GroupLine] = ()
    cluster: Map | None = None
    totals: Sequence[Sequence[str]] = ()  # resource, in use, of, share
    figures: tuple[Sequence[str], Sequence[Sequence[str]]] | None = None  # heads and rows
    timeline: Timeline = ()
    moment: str = ""  # when groups, hosts and totals were so, for the headings
    notes: Sequence[str] = ()


def cluster_page(title: str, legend: Legend, parts: Parts, moments: Sequence[Moment] = ()) -> str:
    """Return a page; of several *moments* it shows one at a time where scripts run."""
    content: list[Element] = [Verbatim("style", "racks.css"), *map(problem, parts.problems)]
    if moments:
        content.append(player(len(moments)))
        content += [_moment(each, at, legend) for at, each in enumerate(moments, start=1)]
    content += _sections(parts, legend)
    return page(title, *content, script=PLAY if moments else None)


def _moment(moment: Moment, number: int, legend: Legend) -> Element:
    prefix = f"s{number}-"
    content = [problem(each) for each in moment.problems]
    if moment.groups:
        content.append(_groups(moment.groups, legend, prefix))
    if moment.cluster is not None:
        content.append(figure(moment.cluster, legend, prefix, moment.touched))
        content += _hosts(moment.cluster, 0)
    return step(moment.heading, number, *content)


def _sections(parts: Parts, legend: Legend) -> Iterator[Element]:
    if parts.figures is not None:
        yield section("Waits", table(*parts.figures))
    if parts.timeline and parts.timeline[-1][0]:
        yield section("Course of time", draw_timeline(parts.timeline))
    if parts.groups:
        shown, others = parts.groups[:_MOST_GROUPS], parts.groups[_MOST_GROUPS:]
        tables = [_groups(shown, legend, "")]
        if others:
            more = f"{counted(len(others), 'group')} more"
            tables.append(_folded(more, _groups(others, legend, "")))
        yield section(f"Groups {parts.moment}".rstrip(), *tables)
    if parts.cluster is not None:
        hosts = _hosts(parts.cluster, _MOST_HOSTS)
        yield section(f"Hosts {parts.moment}".rstrip(), figure(parts.cluster, legend), *hosts)
    if parts.totals:
        heads = ["resource", "in use", "of", "share"]
        yield section(f"In use {parts.moment}".rstrip(), table(heads, parts.totals))
    if parts.notes:
        yield section("Notes", render_list(parts.notes))


def _hosts(cluster: Map, most: int) -> Iterator[Element]:
    """Yield tables of the hosts that the picture is about, *most* of them open: by name.

    A phone and a print have no pointer that would show the titles of cells.
    """
    heads = ["host", "fullest", "pods", "state"]
    rows = [
        [
            " / ".join(each.path),
            each.fullest,
            ", ".join(
                f"{name.removeprefix('default/')} {pods}" for name, pods in each.pods.items()
            ),
            "not ready" if each.failed else "changed" if each.changed else "",
        ]
        for each in cluster.hosts()
        if each.is_touched
    ]
    if rows[:most]:
        yield table(heads, rows[:most])
    if others := rows[most : most + _MOST_FOLDED]:
        left = len(rows) - most
        text = f"{counted(left, 'host')} {'more' if most else 'by name'}"
        if left > len(others):
            text = f"{text}, the first {len(others)}"
        yield _folded(text, table(heads, others))


def _folded(summary: str, content: Element) -> Element:
    """Return content that a click on its summary shows."""
    return Element("details", Element("summary", summary), content)


def _groups(lines: Sequence[GroupLine], legend: Legend, prefix: str) -> Element:
    """Return a table of groups, without empty columns."""
    heads = ["", "group", "state", "pods", "where"]
    texts = {
        "changed": [line.change for line in lines],
        "message": [line.message for line in lines],
    }
    more = {head: column for head, column in texts.items() if any(column)}
    rows = []
    for at, line in enumerate(lines):
        swatch = Element("rect", width=14, height=14)
        mark = Element("g", swatch, class_=legend.get(line.name, "used"))
        cells = [
            Element("td", Element("svg", mark, width=14, height=16), style="white-space: normal"),
            Element("td", line.name.removeprefix("default/"), class_="list"),
            Element("td", line.state, data_head="state"),
            Element("td", str(sum(line.domains.values()) + line.elsewhere or ""), data_head="pods"),
            Element("td", *_links(line, prefix), data_head="where"),
            *(Element("td", column[at], data_head=head) for head, column in more.items()),
        ]
        rows.append(Element("tr", *cells, class_="changed" if line.change else None))
    return frame([*heads, *more], rows)


def _links(line: GroupLine, prefix: str) -> Iterator[Element | str]:
    """Yield where pods are, each place a link to it in the picture of this width."""
    if line.elsewhere:
        yield f"{line.elsewhere} on hosts outside the tree"
    for number, (path, pods) in enumerate(line.domains.items()):
        if number == _MOST_LINKS:
            yield f", and {counted(len(line.domains) - number, 'other')}"
            return
        if number or line.elsewhere:
            yield ", "
        text = f"{' / '.join(path)} ({pods})"
        yield Element("a", text, href=f"#{prefix}{anchor(path)}", class_="broad")
        yield Element("a", text, href=f"#n-{prefix}{anchor(path)}", class_="narrow")
