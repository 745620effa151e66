"""The table that goes with a picture: what each container holds, with its mark."""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from nri_policy.cli.node.holdings import DISPENSABLE, HEADINGS
from nri_policy.cli.terminal.breakable_text import cpu_list, path
from nri_policy.cli.terminal.fitting import Columns
from nri_policy.picture.scene import Scene
from nri_policy.picture.terminal import letter


def occupants(scene: Scene, used: Mapping[str, float] | None = None) -> Columns:
    """Return the table of all that hold something, those that changed in bold.

    *used* are the CPUs in use, by container.
    """
    changed = ["changed"] if scene.changes else []
    in_use = ["used"] if used else []
    classes = ["classes"] if any(each.classes for each in scene.occupants) else []
    table = Columns(
        "",
        *HEADINGS,
        *classes,
        *in_use,
        *changed,
        right=in_use,
        dispensable=DISPENSABLE,
    )
    for each in scene.occupants:
        table.add_row(
            letter(scene.marks, each.owner) if each.owner else Text(),
            path(each.short),
            Text(each.qos),
            Text(each.amount),
            cpu_list(each.exclusive),
            cpu_list(each.cpus),
            cpu_list(each.mems),
            path(each.place),
            *([Text(each.classes)] if classes else []),
            *([Text(f"{used[each.name]:.1f}" if each.name in used else "-")] if used else []),
            *([Text(each.change)] if changed else []),
            style="bold" if each.change else "",
        )
    return table
