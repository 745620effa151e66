"""Copies of objects."""

from __future__ import annotations

from nri_policy.foundation.copies import copy_with


class Books:
    """A list, and a number."""

    def __init__(self) -> None:
        self.pages, self.number = ["one"], 1


def test_a_copy_shares_all_but_what_is_changed() -> None:
    books = Books()
    made = copy_with(books, number=2, name="two")
    assert type(made) is Books
    assert made.pages is books.pages
    assert vars(made) == {"pages": ["one"], "number": 2, "name": "two"}
    assert vars(books) == {"pages": ["one"], "number": 1}
