"""Protocol: requests of the daemon and the commands to the tuner, one JSON line each way.

The daemon sends all wishes each time, so neither side can miss a change. A request without wishes
is a query. The tuner replies with the state of each item.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import Struct

from nri_policy.tuning.decision import ItemState
from nri_policy.tuning.items import Desired, Item, Kind, Wish, check

SOCKET = Path("/run/nri-policy/tuner.sock")
STATE_DIR = Path("/var/lib/nri-policy-tuner")  # no other process of the policy can write there
MAX_LINE = 4 << 20  # bytes
MAX_ITEMS = 32768
_PATIENCE = 5.0  # seconds
_NO_TUNER = (
    "no tuner runs (nothing answers at {}); start it: systemctl enable --now nri-policy-tuner,"
    " or as docs/tuning.md says"
)


class WishedItem(Struct, frozen=True, forbid_unknown_fields=True):
    """An item that must have a value."""

    item: Item
    value: str
    origin: tuple[str, ...] = ()


class TunerRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request; `wishes` replace all earlier wishes, None keeps them."""

    wishes: tuple[WishedItem, ...] | None = None
    repair: bool = False  # whether contested items are written again, with wishes only
    whole: bool = False  # whether all stays as it was if the kernel refuses a new value


class Tunable(Struct, frozen=True, kw_only=True):
    """The state of an item."""

    item: Item
    state: ItemState
    wished: str | None = None  # None: the original value is due again
    found: str | None = None  # None: it cannot be read
    original: str | None = None  # None: it was never written
    origin: tuple[str, ...] = ()
    why: str = ""


class Writes(Struct, frozen=True):
    """How many writes of one kind ended in one way since the tuner started."""

    kind: str
    result: str
    count: int


class Reply(Struct, frozen=True, kw_only=True):
    """The reply: the state of all items, or why the request is refused."""

    refused: str = ""
    not_taken: str = ""  # which value of a `whole` request the kernel refuses
    tunables: tuple[Tunable, ...] = ()
    writes: tuple[Writes, ...] = ()


class TunerError(Exception):
    """The tuner cannot be asked, or refuses a request."""


_requests = msgspec.json.Decoder(TunerRequest)
_replies = msgspec.json.Decoder(Reply)


def parse_request(line: bytes) -> TunerRequest:
    """Return the request in a line; raises ValueError for anything not on the closed list."""
    request = _requests.decode(line)
    wishes = request.wishes or ()
    if len(wishes) > MAX_ITEMS or len({each.item for each in wishes}) != len(wishes):
        raise ValueError(f"more than {MAX_ITEMS} items, or one twice")
    for each in wishes:
        if each.item.kind is Kind.IRQBALANCE:
            raise ValueError(f"only the tuner itself sets {each.item}")
        check(each.item, each.value)
    return request


def desired_of(request: TunerRequest) -> Desired | None:
    """Return a request's wishes by item; None: the request only asks."""
    if request.wishes is None:
        return None
    return {each.item: Wish(each.value, each.origin) for each in request.wishes}


def ask(
    path: Path, desired: Desired | None = None, *, repair: bool = False, whole: bool = False
) -> Reply:
    """Send *desired*, or only ask; return the tuner's reply. TunerError."""
    wishes = None if desired is None else tuple(_wished(desired.items()))
    line = msgspec.json.encode(TunerRequest(wishes=wishes, repair=repair, whole=whole)) + b"\n"
    try:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(str(path))
            connection.sendall(line)
            reply = _replies.decode(receive_line(connection))
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise TunerError(_NO_TUNER.format(path)) from error
    except PermissionError as error:
        raise TunerError(f"only user 0 may ask the tuner (at {path})") from error
    except OSError as error:
        raise TunerError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise TunerError(f"{path}: {error}") from error
    if reply.refused:
        raise TunerError(f"{path}: {reply.refused}")
    return reply


def _wished(items: Iterable[tuple[Item, Wish]]) -> Iterable[WishedItem]:
    return (WishedItem(item, wish.value, wish.origin) for item, wish in items)


def receive_line(connection: socket.socket) -> bytes:
    """Return what arrives up to a line's end; ValueError if it is too long or not complete."""
    data = bytearray()
    while not data.endswith(b"\n"):
        chunk = connection.recv(1 << 16)
        data += chunk
        if not chunk or len(data) > MAX_LINE:
            raise ValueError(f"no complete line of at most {MAX_LINE} bytes")
    return bytes(data)
