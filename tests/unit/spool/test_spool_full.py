"""A disk that is really full: nothing of a call is accepted, and it heals by itself."""

import contextlib
import subprocess

import pytest
from structlog.testing import capture_logs

from spillway.core.errors import SpoolFullError
from spillway.spool import folder as disk


@pytest.fixture
def small(tmp_path):
    """A disk of a megabyte."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "spillway-test", path]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if mounted.returncode:
        pytest.skip(f"a disk of its own cannot be mounted here: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


def fill(path, *, leave: int) -> None:
    """All of the disk but so many bytes."""
    with (path / "ballast").open("wb", buffering=0) as out:
        with contextlib.suppress(OSError):
            while True:
                out.write(bytes(64 * 1024))
        out.truncate(out.tell() - leave)


def on_disk(path) -> list[tuple[str, bytes]]:
    return [(file.name, file.read_bytes()) for file in disk.entries(path)[0]]


@pytest.mark.parametrize("per_file", [2, 10_000])
async def test_a_full_disk_refuses_and_heals(small, opened, push, per_file, numbers_in):
    """What was accepted before stays, nothing of the refused call does, the next one is taken."""
    async with opened(small, events_per_file=per_file) as spool:
        await spool.append(push(1, 2, 3))
        fill(small, leave=8192)
        before, size = on_disk(small), spool.bytes
        for _ in range(3):
            with pytest.raises(SpoolFullError) as caught:
                await spool.append(push(*range(10, 110)))
        assert (caught.value.status, caught.value.code) == (507, "spool_full")
        assert "No space left" in caught.value.message
        assert on_disk(small) == before
        assert (spool.pending, spool.bytes, spool.refused) == (3, size, 300)
        await spool.append(push(4))
        (small / "ballast").unlink()
        await spool.append(push(*range(10, 110)))
    paths, _ = disk.entries(small)
    assert [n for path in paths for n in numbers_in(path)] == [1, 2, 3, 4, *range(10, 110)]


async def test_events_of_qos_0_wait_for_room(small, opened, push, numbers_in):
    """They were answered: they are kept in memory until the disk takes them."""
    async with opened(small, max_batch=1) as spool:
        fill(small, leave=0)
        spool.accept(push(1, 2))
        with capture_logs() as logs:
            while not logs:
                await spool._qos0_journal.rotate()
        assert (logs[0]["event"], spool.unwritten) == ("spool_qos0_waits", 2)
        (small / "ballast").unlink()
    assert (spool.unwritten, spool.lost) == (0, 0)
    [path], _ = disk.entries(small)
    assert numbers_in(path) == [1, 2]


async def test_a_spool_starts_on_a_full_disk(small, opened, push, make_lines, numbers_in):
    """It takes in what a crash left there, refuses, and takes again once there is room."""
    async with opened(small) as spool:
        await spool.append(push(1, 2))
        name = spool.folder.names.next("failover")
    (small / name).write_bytes(b"".join(make_lines(3, 4))[:-5])
    fill(small, leave=0)
    async with opened(small) as spool:
        assert [numbers_in(file.path) for file in spool.files] == [[1, 2], [3]]
        with pytest.raises(SpoolFullError):
            await spool.append(push(*range(10, 110)))
        await spool.discard(spool.files[0])
        (small / "ballast").unlink()
        await spool.append(push(5))
        assert spool.pending == 2
