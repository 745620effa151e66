"""Pictures of containers on their CPUs: one scene, one layout, renderers for terminal, SVG, HTML.

Everything shown is from documents in the forms of `topology`, `pools` and `containers` with
`-o json`. So pictures of a daemon, of a simulation and of a hypothetical machine are made alike. It
must not know the engine or a node.

Others import from these modules:

| module | what it has |
|---|---|
| `decision` | the pool tree with one decision, in SVG |
| `machine_page` | the tables of a machine on a page |
| `mark` | the letter and the colour of each container |
| `markup` | elements of SVG and HTML, well-formed as XML and as HTML |
| `occupant` | containers with their CPUs, and their changes between two pictures |
| `page` | a report in one file, with pictures and tables, without outside resources |
| `racks` | a block for each rack, a cell for each host, filled by its use |
| `racks_page` | pages about a cluster: groups, hosts, use, steps |
| `scene` | the containers of a machine at one moment, for all kinds of pictures |
| `svg` | scenes as strips below each other, with the containers of each |
| `terminal` | one column per core, with letters for the use of CPUs |
"""
