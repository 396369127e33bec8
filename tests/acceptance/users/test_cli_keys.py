"""`spillway key`: who may come in, decided in the database."""

import hashlib
import re

import psycopg
import pytest

from spillway.broker.keys import REMEMBERED_S
from spillway.cli.key import KEPT_S

KEY = re.compile(r"sw_[A-Za-z0-9_-]{32,}\n")


@pytest.fixture
def guarded(stand, database_url, terminal_of):
    """A broker that asks everybody for a key: (terminal, database url)."""
    broker = stand("--database-url", database_url, require_api_key=True, num_shards=1)
    yield terminal_of(broker.url), database_url
    broker.stop()


def test_a_key_opens_the_door(guarded):
    """No key and a wrong key are refused with the way out; a made one is good at once."""
    cli, url = guarded
    refused = cli("queue list", exits=4)
    assert "unauthorized" in refused.err
    assert "spillway key create" in refused.err
    cli("--api-key sw_wrong queue list", exits=4)
    made = cli("key create ci --database-url", url)
    assert KEY.fullmatch(made.out)
    assert "not shown again" in made.err
    cli("push orders 1", SPILLWAY_API_KEY=made.out.strip())
    assert cli("--api-key", made.out.strip(), "queue", "list", "--json").lines[0]["tail"] == 1


def test_a_key_is_of_one_org(guarded):
    """The org is made with its first key; another org is not for it."""
    cli, url = guarded
    made = cli("--org acme key create ci --json --database-url", url).json
    assert (made["org"], made["name"]) == ("acme", "ci")
    key = made["key"]
    cli("--api-key", key, "push", "orders", "1")
    assert cli("--api-key", key, "queue", "list", "--json").lines[0]["org"] == "acme"
    stranger = cli("--api-key", key, "--org", "other", "queue", "list", exits=4)
    assert "forbidden" in stranger.err
    assert "drop --org" in stranger.err


def test_only_the_digest_is_kept(cli, database_url):
    """Neither the list nor the table knows the key."""
    key = cli("key create ci --database-url", database_url).out.strip()
    (row,) = cli("key list --json --database-url", database_url).lines
    assert row["digest"] == hashlib.sha256(key.encode()).hexdigest()
    assert set(row) == {"org", "name", "digest", "created_at", "revoked_at"}
    table = cli("key list --database-url", database_url).out
    assert row["digest"][:12] in table
    with psycopg.connect(database_url) as conn:
        stored = conn.execute("SELECT k::text FROM spillway.api_key k").fetchall()
    assert key not in str(stored)


def test_a_live_name_is_taken_and_a_revoked_one_is_free(cli, database_url):
    """So that the audit's actor names one key."""
    where = ("--database-url", database_url)
    cli("key create ci", *where)
    taken = cli("key create ci", *where, exits=4)
    assert "key_exists" in taken.err
    assert "spillway key revoke" in taken.err
    assert cli("key revoke ci --json", *where).json["revoked"] is True
    assert "key_not_found" in cli("key revoke ci", *where, exits=4).err
    cli("key create ci", *where)
    assert len(cli("key list --json", *where).lines) == 1
    assert len(cli("key list --json --revoked", *where).lines) == 2
    assert cli("--org acme key list --json", *where).lines == []


def test_the_help_knows_the_broker(cli):
    """What `key revoke` promises is what the broker does."""
    assert KEPT_S >= REMEMBERED_S
    assert f"{KEPT_S} more seconds" in " ".join(cli("key revoke --help").out.split())


@pytest.mark.parametrize("line", ["key create 'a b'", "--org 'a b' key create ci"])
def test_names_are_checked_first(cli, database_url, line):
    """A name that no request could carry is refused; nothing is stored."""
    assert "'a b'" in cli(line, "--database-url", database_url, exits=2).err
    assert cli("key list --json --database-url", database_url).lines == []


def test_the_folder_of_a_broker_is_enough(cli, broker):
    """--data finds the embedded PostgreSQL of a broker that runs."""
    cli("--org folder key create ci --data", str(broker.data))
    (row,) = cli("--org folder key list --json --data", str(broker.data)).lines
    assert row["org"] == "folder"
    assert "--database-url" in cli("key create ci", exits=2).err
