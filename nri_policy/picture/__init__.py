"""Pictures of who runs where: one scene, one layout, and renderers for terminal, SVG and HTML.

Everything that is shown comes from documents in the forms of `topology`, `pools` and `containers`
with `-o json`, so that a picture of a running daemon, of a simulation and of a machine that need
not exist are made in the same way.

Others import from these modules:

| module | what it has |
|---|---|
| `decision` | the pool tree with one decision, in SVG |
| `machine_page` | what a page says of a machine beside its picture |
| `mark` | the letter and the colour by which pictures tell containers apart |
| `markup` | elements of SVG and HTML, in a form that is well-formed XML as well as HTML |
| `occupant` | containers and what they hold, and what happened to them between two pictures |
| `page` | a report in one file, with pictures, tables and nothing from outside |
| `racks` | a block for each rack, a cell for each host, filled as far as it is used |
| `racks_page` | pages about a cluster: groups, hosts, what is in use, steps |
| `scene` | who runs where on a machine at one moment, as every kind of picture shows it |
| `svg` | scenes as strips below each other, with the containers of each |
| `terminal` | a column a core, letters for what CPUs are for |
"""
