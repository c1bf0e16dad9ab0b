"""The open connections: how many in all, how many from each address, which of them are idle, and which do not
read their answers.

When all places are taken, a newcomer gets that of the connection that has been idle longest; one whose
request is being answered is never given up for it. The total size of answers that nobody reads is limited.
"""

import ipaddress
import sys
from dataclasses import dataclass, field
from typing import Protocol

RESERVED_FILES = 200
"""Descriptors kept for everything that is not a connection: the model, libraries, decoders, the log."""


class Member(Protocol):
    """What the crowd knows about a connection."""

    address: str

    @property
    def unread(self) -> int:
        """Bytes of answers that wait for the client to read."""
        ...

    def give_way(self) -> None:
        """Close, without an answer."""

    def cut(self) -> None:
        """Close at once; what the client has not read is dropped."""


@dataclass
class Neighbours:
    """The connections from one address."""

    count: int = 0
    waiting: dict[Member, None] = field(default_factory=dict)
    """Those without a request under way, the one that has waited longest first."""


class Crowd:
    """Counts connections and makes room. Event loop only."""

    def __init__(self, most: int, most_each: int, most_unread: int) -> None:
        self.most, self.most_each, self.most_unread = most, most_each, most_unread
        self.count = 0
        self.stuck: dict[Member, None] = {}
        """Those with answers that their clients do not read, the one that has waited longest first."""
        self.addresses: dict[str, Neighbours] = {}

    def enter(self, member: Member) -> bool:
        """Count a connection in; return whether there is room, if need be by closing an idle one."""
        own = self.addresses.setdefault(member.address, Neighbours())
        crowded = None
        if own.count >= self.most_each:
            crowded = own
        elif self.count >= self.most:
            crowded = max(self.addresses.values(), key=lambda each: len(each.waiting))
        own.count, self.count = own.count + 1, self.count + 1
        if crowded is None:
            return True
        longest = next(iter(crowded.waiting), None)
        if longest is None:
            return False
        del crowded.waiting[longest]
        longest.give_way()
        return True

    def leave(self, member: Member) -> None:
        """Count a connection out."""
        own = self.addresses[member.address]
        own.waiting.pop(member, None)
        self.stuck.pop(member, None)
        own.count, self.count = own.count - 1, self.count - 1
        if not own.count:
            del self.addresses[member.address]

    def waits(self, member: Member) -> None:
        """Note that a connection has no request under way."""
        self.addresses[member.address].waiting[member] = None

    def works(self, member: Member) -> None:
        """Note that a connection's request is being answered."""
        self.addresses[member.address].waiting.pop(member, None)

    def stops_reading(self, member: Member) -> None:
        """Note that a client has more to read than the system buffers for it; if that is too much in all,
        close those that have not read for longest."""
        self.stuck[member] = None
        held = sum(each.unread for each in self.stuck)
        for each in list(self.stuck):
            if held <= self.most_unread or each is member:
                break
            held -= each.unread
            del self.stuck[each]
            each.cut()

    def reads(self, member: Member) -> None:
        """Note that a client has read."""
        self.stuck.pop(member, None)


def neighbourhood(host: str) -> str:
    """Return the address that connections are counted under: one customer has a whole IPv6 network (/64)."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))


def room_for(connections: int) -> int:
    """Raise the limit of open files if need be; return how many of the wanted connections it allows."""
    if sys.platform == "win32":
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return connections if soft == resource.RLIM_INFINITY else max(8, min(connections, soft - RESERVED_FILES))
