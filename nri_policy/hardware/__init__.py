"""What the machine is: sysfs and procfs read into a frozen Machine.

Others import from these modules:

| module | what it has |
|---|---|
| `capture_writer` | a capture of a machine, for a bug report or to be simulated elsewhere |
| `capture` | the sysfs and procfs of another machine, packed as `.tar.xz`, unpacked to be read |
| `devices` | what they are and which CPUs and NUMA nodes they are near to |
| `discovery` | from a root folder to the Machine that it describes |
| `disks` | the block devices of a host that I/O can be limited on, with all the paths they have |
| `hotplug` | tells when the machine has become another than it was |
| `interrupts` | the interrupts of devices, with the CPUs that may handle each |
| `locality` | which CPUs and NUMA nodes a device file, a network interface or a mount is near to |
| `machine` | the frozen description of a node, as everything above `hardware` sees it |
| `notes` | what was missing or odd about the hardware's description, for people |
| `numa` | their CPUs, memory, distances and what HMAT tells of them |
| `power` | the frequencies and idle states that the CPUs can be set to |
| `resctrl` | the shares of caches and memory bandwidth that the kernel can set |
| `synthetic_devices` | devices of machines that do not exist |
| `synthetic_spec` | the notation for machines that do not exist |
| `synthetic` | a specification written out as a sysfs and procfs tree |
| `sysfs` | bounded, total reading of files below a root folder |
"""
