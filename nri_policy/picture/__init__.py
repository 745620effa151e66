"""Pictures of who runs where: one scene, one layout, and renderers for terminal, SVG and HTML.

Everything that is shown comes from documents in the forms of `topology`, `pools` and `containers`
with `-o json`, so that a picture of a running daemon, of a simulation and of a machine that need
not exist are made in the same way.
"""
