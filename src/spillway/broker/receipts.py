"""Receipts: what names a lease and a version, as text that only the broker reads."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Receipts:
    """Receipts of one request that belong to one lease."""

    lane_id: int
    lease_id: int
    epoch: int
    group: str
    versions: list[int] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    """Where they stood in the request."""


def prefix(lane_id: int, lease_id: int, epoch: int, group: str) -> str:
    """What all receipts of a lease begin with; the version follows."""
    return f"{lane_id}~{lease_id}~{epoch}~{group}~"


def sort(receipts: list[str]) -> tuple[list[Receipts], list[int]]:
    """Receipts by lease, and where something stood that is no receipt."""
    by_prefix: dict[str, Receipts | None] = {}
    strange: list[int] = []
    for index, receipt in enumerate(receipts):
        before, _, version = receipt.rpartition("~")
        lease = by_prefix.get(before)
        if lease is None and before not in by_prefix:
            lease = by_prefix[before] = _parse(before)
        if lease is None or not _is_number(version):
            strange.append(index)
            continue
        lease.versions.append(int(version))
        lease.indexes.append(index)
    return [lease for lease in by_prefix.values() if lease is not None and lease.versions], strange


def _parse(before: str) -> Receipts | None:
    parts = before.split("~", 3)
    if len(parts) != 4 or not all(map(_is_number, parts[:3])):
        return None
    lane_id, lease_id, epoch = map(int, parts[:3])
    return Receipts(lane_id, lease_id, epoch, parts[3])


def _is_number(text: str) -> bool:
    """A positive int64 in plain digits."""
    return text.isascii() and text.isdigit() and 0 < len(text) < 19 and text[0] != "0"
