"""The documents that the commands of the cluster side print."""
