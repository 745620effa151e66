"""What would happen: why a group fits or not, what would make it fit, which moves make room.

Owns questions of people and their answers, all found in forks of an engine: nothing here changes a
cluster. It must not know the groups that the service tracks, nor how an answer is shown: `service`
and the command line ask, and print.
"""
