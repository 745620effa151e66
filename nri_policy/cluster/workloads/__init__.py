"""What people run, read into groups: pods, Jobs, JobSets and other owners, Kueue's Workloads.

Owns which group a pod belongs to, how many pods of which templates a workload has, and the kinds of
other projects. It must not know which nodes there are, nor whether a group fits: it reads objects,
and `engine` places what it made of them.
"""
