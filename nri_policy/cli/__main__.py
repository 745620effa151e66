"""`python -m nri_policy.cli`, where the installed program is not at hand."""

from __future__ import annotations

from nri_policy.cli import main

main(prog_name="nri-policy")
