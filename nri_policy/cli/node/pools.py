"""`nri-policy pools`: the running daemon's pools and what is granted on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from msgspec.structs import replace
from rich.text import Text

from nri_policy.cli.daemon_option import daemon_client, socket_option
from nri_policy.cli.node.current_scene import read_current_scene
from nri_policy.cli.node.occupants import occupants
from nri_policy.cli.options import picture_form_option
from nri_policy.cli.output import print_document, print_drawing, print_page
from nri_policy.cli.terminal.breakable_text import cpu_list
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.cli.terminal.watching import repeat, watch_option
from nri_policy.foundation.cpuset import CPUSet
from nri_policy.foundation.units import format_cpu
from nri_policy.foundation.wording import natural
from nri_policy.picture import svg
from nri_policy.picture.page import containers, page, picture_parts, section, table
from nri_policy.picture.scene import Scene
from nri_policy.picture.terminal import Drawing
from nri_policy.report import HugePagesReport, OccupiedPoolReport

_HEADS = ("pool", "CPUs", "exclusive", "shared", "available", "mems", "containers")
_HUGE_PAGES = "huge pages available"


@click.command
@watch_option
@socket_option
@picture_form_option
def command(watch: bool, control_socket: Path, form: str) -> None:
    """Show the node's pools: what runs there, and what is available."""
    repeat(lambda: _show(control_socket, form), watch=watch)


def _show(control_socket: Path, form: str) -> None:
    with daemon_client(control_socket) as client:
        pools = client.pools()
        now = None if form in {"json", "yaml"} else read_current_scene(client)
    if now is None:
        print_document(pools, form)
    else:
        _picture(now.scene(), pools, form)


def _picture(scene: Scene, pools: Sequence[OccupiedPoolReport], form: str) -> None:
    match form:
        case "svg":
            print_page(svg.document([svg.Strip(heading="", scene=scene)]))
        case "html":
            picture = section("Who runs where", *picture_parts(scene), containers(scene))
            print_page(page("Pools", picture, section("Pools", table(_heads(pools), _rows(pools)))))
        case _:
            marked = replace(scene, occupants=tuple(o for o in scene.occupants if o.owner))
            print_drawing(Drawing(scene))
            if marked.occupants:
                print_drawing("", occupants(marked))
            print_drawing("", _table(pools))


def _table(pools: Sequence[OccupiedPoolReport]) -> Columns:
    table = Columns(
        *_heads(pools),
        right=("shared", "available", "containers"),
        whole=("pool", _HUGE_PAGES),  # their lines would break
        dispensable=("mems", "containers", "exclusive", "CPUs"),
    )
    for name, cpus, exclusive, granted, available, mems, count, *pages in _rows(pools):
        lists = (cpu_list(CPUSet.parse(cpus)), cpu_list(CPUSet.parse(exclusive)))
        nodes = cpu_list(CPUSet.parse(mems))
        table.add_row(Text(name), *lists, granted, available, nodes, count, *pages)
    return table


def _heads(pools: Sequence[OccupiedPoolReport]) -> tuple[str, ...]:
    """Return the headings; huge pages are shown where the node has any."""
    return (*_HEADS, _HUGE_PAGES) if pools[0].hugepages else _HEADS


def _rows(pools: Sequence[OccupiedPoolReport]) -> Iterator[tuple[str, ...]]:
    (top,) = (pool for pool in pools if pool.parent is None)
    for pool, name in _with_guides(pools, top, "", ""):
        yield (
            name,
            str(pool.cpus),
            str(pool.exclusive),
            format_cpu(pool.shared_milli_granted),
            format_cpu(pool.shared_milli_allocatable),
            str(CPUSet.union(pool.memory.values())),
            str(len(pool.containers)),
            *([", ".join(map(_available, pool.hugepages))] if pool.hugepages else ()),
        )


def _available(pages: HugePagesReport) -> str:
    return f"{pages.free} of {pages.count} × {pages.size}"


def _with_guides(
    pools: Sequence[OccupiedPoolReport],
    pool: OccupiedPoolReport,
    first: str,
    rest: str,
    above: str = "",
) -> Iterator[tuple[OccupiedPoolReport, str]]:
    """Yield *pool* and all below it, parents first, each with its name behind lines to it."""
    yield pool, first + pool.name.removeprefix(above)
    below = [child for child in pools if child.parent == pool.id]
    children = sorted(below, key=lambda child: natural(child.name))
    for child in children:
        last = child is children[-1]
        yield from _with_guides(
            pools,
            child,
            rest + ("└─ " if last else "├─ "),
            rest + ("   " if last else "│  "),
            f"{pool.name}/",
        )
