"""Protobuf modules generated from proto/: `make proto`."""
