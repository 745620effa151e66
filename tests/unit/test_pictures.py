"""The documentation's pictures are what the program draws now."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from tests.support.architecture_picture import BOXES, STEPS, USES
from tests.support.docs_pictures import IMAGES, PROJECT, documents


def test_the_pictures_are_those_that_the_program_makes() -> None:
    made = documents()
    assert {*IMAGES.iterdir()} <= made.keys()
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name}: `make pictures` draws it anew"


def test_every_picture_is_shown_somewhere() -> None:
    pages = [PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")]
    texts = [page.read_text() for page in pages]
    for path in IMAGES.iterdir():
        assert any(f"images/{path.name})" in text for text in texts), path


def test_the_readmes_moving_picture_shows_one_of_nine_steps_at_a_time_without_a_script() -> None:
    """And where no motion is wanted, the last one."""
    text = (IMAGES / "demo.svg").read_text()
    assert len(text) < 160_000
    assert "<script" not in text
    style, _, frames = text.rpartition("</style>")
    assert [*re.findall(r'class="frame (f\d)"', frames)] == [f"f{n}" for n in range(1, 10)]
    still, moving = style.split("@media (prefers-reduced-motion: no-preference) {")
    assert re.findall(r"\.(f\w+) \{ visibility: (\w+)", still) == [
        ("frame", "hidden"),
        ("f9", "visible"),
    ]
    moments = re.findall(
        r"(\d+)% \{ visibility: visible; \}(?: (\d+)% \{ visibility: hidden)?", moving
    )
    assert moments == [(str(n), str(n + 10) if n < 80 else "") for n in range(0, 90, 10)]


def test_every_box_of_the_architecture_has_an_arrow() -> None:
    ends = [end for _, *arrow in STEPS for end in arrow] + [end for arrow in USES for end in arrow]
    for box in BOXES:
        right, bottom = box.x + box.width, box.y + box.height
        touched = [x for x, y in ends if box.x <= x <= right and box.y <= y <= bottom]
        assert touched, box.title


def test_every_picture_says_in_words_what_it_shows() -> None:
    for path in sorted((PROJECT / "docs").rglob("*.svg")):
        svg = ET.parse(path).getroot()
        assert svg.get("aria-label") or svg.find("{*}title") is not None, path.name
