"""The tests in `inside` run in the guest, where this file is not."""

collect_ignore = ["inside"]
