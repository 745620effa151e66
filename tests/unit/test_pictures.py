"""The documentation's pictures are what the program draws now."""

from __future__ import annotations

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
