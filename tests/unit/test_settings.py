"""Settings: documented, read from the environment, checked once, and never shown when secret."""

import traceback
from pathlib import Path

import pytest

from spillway.core.errors import SettingsError
from spillway.settings import MIB, Settings, load

SECRET = "postgresql://app:hunter2@db/spillway"


@pytest.fixture(autouse=True)
def _no_settings_around(monkeypatch):
    """Whatever the shell of the developer says, these tests see the defaults."""
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SPILLWAY_{name.upper()}", raising=False)


def complaint(**given: object) -> str:
    with pytest.raises(SettingsError) as raised:
        load(**given)
    return raised.value.message


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name):
    """A sentence each: it is what `serve --help` and the reference show."""
    description = Settings.model_fields[name].description
    assert description
    assert description[0].isupper()
    assert description.endswith(".")


def test_every_setting_has_a_default():
    """A broker starts without being told anything."""
    settings = load()
    assert (settings.host, settings.port, settings.database_url) == ("127.0.0.1", 6632, None)
    assert (settings.num_shards, settings.require_api_key) == (4, False)


def test_the_environment_is_read_under_its_prefix(monkeypatch):
    """SPILLWAY_PORT is ours, PORT is not."""
    monkeypatch.setenv("SPILLWAY_PORT", "7000")
    monkeypatch.setenv("NUM_SHARDS", "9")
    monkeypatch.setenv("SPILLWAY_AUTO_CREATE_QUEUES", "false")
    settings = load()
    assert (settings.port, settings.num_shards, settings.auto_create_queues) == (7000, 4, False)


def test_a_flag_wins_over_the_environment(monkeypatch):
    """A flag that was not given leaves the word to the environment."""
    monkeypatch.setenv("SPILLWAY_PORT", "7000")
    assert (load(port=8000).port, load(port=None).port) == (8000, 7000)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "port",
            "x",
            "port: Input should be a valid integer, unable to parse string as an integer",
        ),
        ("port", "65536", "port: Input should be less than or equal to 65535"),
        ("num_shards", "0", "num_shards: Input should be greater than or equal to 1"),
        ("shard_lease_s", "0", "shard_lease_s: Input should be greater than 0"),
        ("lane_idle_s", "inf", "lane_idle_s: Input should be a finite number"),
        ("drain_timeout_s", "nan", "drain_timeout_s: Input should be a finite number"),
        (
            "log_level",
            "loud",
            "log_level: String should match pattern '^(debug|info|warning|error)$'",
        ),
    ],
)
def test_a_bad_value_is_named_with_its_setting(monkeypatch, name, value, message):
    """From the environment or a flag: which setting, what is wrong, what was given."""
    assert complaint(**{name: value}) == f"{message} (given: {value!r})"
    monkeypatch.setenv(f"SPILLWAY_{name.upper()}", value)
    assert complaint() == f"{message} (given: {value!r})"


def test_settings_that_contradict_each_other_are_named():
    """A message that no request could carry is a mistake, and both numbers are said."""
    assert complaint(message_bytes_max=5_000, request_bytes_max=2_000) == (
        "settings: Value error, message_bytes_max must not exceed request_bytes_max: 5000 > 2000"
    )
    assert load(message_bytes_max=2_000, request_bytes_max=2_000).message_bytes_max == 2_000


@pytest.mark.parametrize(
    "wrong", [{"port": "x"}, {"message_bytes_max": 5_000, "request_bytes_max": 2_000}]
)
def test_an_error_never_shows_a_secret(monkeypatch, wrong):
    """Neither the message nor the traceback behind it, whichever setting is wrong."""
    monkeypatch.setenv("SPILLWAY_DATABASE_URL", SECRET)
    with pytest.raises(SettingsError) as raised:
        load(**wrong)
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))


def test_settings_never_show_a_secret():
    """However they are printed; only whoever asks for the secret gets it."""
    settings = load(database_url=SECRET)
    shown = [repr(settings), str(settings), settings.model_dump_json(), f"{settings.model_dump()}"]
    assert [text for text in shown if "hunter2" in text] == []
    assert settings.database_url.get_secret_value() == SECRET


def test_settings_do_not_change():
    """They are read once, at the start."""
    with pytest.raises(ValueError, match="frozen"):
        load().port = 1


@pytest.mark.parametrize("name", [name for name in Settings.model_fields if "buffer" in name])
def test_the_guide_gives_the_bounds_of_a_setting_of_the_spool(name):
    """The least and the greatest, as they are checked."""
    guide = (Path(__file__).parents[2] / "docs/guides/spool.md").read_text()
    row = next(line for line in guide.splitlines() if line.startswith(f"| `{name.upper()}`"))
    told = row.split("|")[3].replace(",", "").replace("1 MiB", str(MIB)).split()
    for bound in Settings.model_fields[name].metadata:
        values = (getattr(bound, kind, None) for kind in ("gt", "ge", "le"))
        assert {f"{value}" for value in values if value is not None} <= set(told), row
