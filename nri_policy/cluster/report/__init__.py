"""The documents that the commands of the cluster side print.

Owns the fields of these documents: published fields keep their names. It reads the engine and
changes nothing. It must not know how a document is printed: the command line does.
"""
