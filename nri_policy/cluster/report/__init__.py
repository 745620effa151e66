"""The documents that the commands of the cluster side print.

Owns their fields, which stay as they are once published. It reads the engine and changes nothing.
It must not know how a document is printed: the command line does.
"""
