def read_usual(
    value: object,
) -> (
    tuple[str, dict[str, str], tuple[tuple[str, str], ...], tuple[()], bool, bool | None] | None
): ...
