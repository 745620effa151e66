"""The errors of queries to the kubelet."""


class KubeletError(Exception):
    """The kubelet did not answer; `code` is gRPC's, as a word."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason
