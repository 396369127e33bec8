"""The only reader of the environment: every setting, its default, its limits, its meaning."""

from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from spillway.core.errors import SettingsError

MIB = 1024 * 1024


def _buffer(default: object, name: str, **limits: Any) -> Any:  # noqa: ANN401 (as pydantic's Field)
    """A setting of the spool: it is known by its bare name too."""
    names = AliasChoices(f"SPILLWAY_FILE_BUFFER_{name}", f"FILE_BUFFER_{name}")
    return Field(default, validation_alias=names, **limits)


class Settings(BaseSettings):
    """What a broker is told: by flags, else by SPILLWAY_… variables, else these defaults."""

    model_config = SettingsConfigDict(
        env_prefix="SPILLWAY_",
        extra="ignore",
        frozen=True,
        allow_inf_nan=False,
        hide_input_in_errors=True,
        populate_by_name=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(6632, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    address: str | None = Field(
        None,
        description="URL under which other brokers reach this one; by default http://HOST:PORT, "
        "with the name of this machine where it listens on all addresses.",
    )
    data: Path = Field(Path("spillway-data"), description="Folder of the embedded PostgreSQL.")
    database_url: SecretStr | None = Field(
        None, description="PostgreSQL to use (14 or newer); without it an embedded one is started."
    )
    num_shards: int = Field(
        4, ge=1, le=1024, description="Shards of a new cluster; fixed when the cluster is made."
    )
    shard_lease_s: float = Field(
        10.0, gt=0, le=300, description="How long a shard stays with a broker that falls silent."
    )
    commit_timeout_s: float = Field(
        2.0, gt=0, le=300, description="A commit that takes longer is taken as failed."
    )
    auto_create_queues: bool = Field(
        default=True, description="Whether a push to an unknown queue makes it."
    )
    queues_per_org_max: int = Field(
        10_000, ge=1, description="How many queues an org may have (over the whole cluster)."
    )
    groups_per_queue_max: int = Field(
        1_000, ge=1, description="How many consumer groups a queue may have."
    )
    require_api_key: bool = Field(default=False, description="Refuse requests without an API key.")
    message_bytes_max: int = Field(MIB, ge=1, le=64 * MIB, description="Largest payload.")
    request_bytes_max: int = Field(
        16 * MIB,
        ge=1024,
        le=256 * MIB,
        description="Largest request body; a lease hands out no more bytes of payload than this.",
    )
    items_max: int = Field(
        10_000, ge=1, le=100_000, description="Most items, or receipts, in one request."
    )
    body_timeout_s: float = Field(
        30.0, gt=0, le=3600, description="A request of which nothing came for so long is given up."
    )
    connections_max: int = Field(
        10_000, ge=1, description="Most connections of callers; keep it below `ulimit -n`."
    )
    key_bytes_max: int = Field(1024, ge=1, le=8192, description="Longest ordering key.")
    headers_bytes_max: int = Field(
        16 * 1024, ge=0, le=MIB, description="Largest headers of a message."
    )
    transaction_id_bytes_max: int = Field(
        256, ge=16, le=1024, description="Longest transaction id."
    )
    draft_messages_max: int = Field(
        200_000, ge=1000, description="Messages that may wait for a commit before 503 overloaded."
    )
    draft_bytes_max: int = Field(
        128 * MIB, ge=MIB, description="Bytes that may wait for a commit before 503 overloaded."
    )
    checkpoint_interval_s: float = Field(
        60.0, gt=0, le=3600, description="How often moved control logs are checkpointed."
    )
    checkpoint_events_min: int = Field(
        64, ge=1, description="Fewer new events than this are not worth a checkpoint."
    )
    prune_interval_s: float = Field(
        60.0, gt=0, le=3600, description="How often settled messages past retention are removed."
    )
    lane_idle_s: float = Field(
        300.0, gt=0, description="A lane nobody uses for this long leaves memory."
    )
    lanes_in_memory_max: int = Field(
        50_000,
        ge=1,
        description="When there are more, the lanes that were used longest ago leave memory.",
    )
    drain_timeout_s: float = Field(
        10.0, gt=0, le=300, description="How long a stop waits for requests under way."
    )
    file_buffer_dir: Path | None = _buffer(
        None, "DIR", description="Folder of the spool; without it `spool` in the data folder."
    )
    file_buffer_flush_ms: int = _buffer(
        100, "FLUSH_MS", ge=1, le=60_000, description="How soon pushes of qos 0 are written."
    )
    file_buffer_max_batch: int = _buffer(
        1000,
        "MAX_BATCH",
        ge=1,
        le=10_000,
        description="Events replayed together; so many of qos 0 are written at once.",
    )
    file_buffer_events_per_file: int = _buffer(
        10_000, "EVENTS_PER_FILE", ge=1, le=1_000_000, description="Most events in a file."
    )
    file_buffer_retry_interval: float = _buffer(
        5.0,
        "RETRY_INTERVAL",
        gt=0,
        le=3600,
        description="Seconds between attempts with failed events and lanes that are held.",
    )
    file_buffer_startup_recovery_timeout: float = _buffer(
        3600.0,
        "STARTUP_RECOVERY_TIMEOUT",
        gt=0,
        description="Seconds after which files that were found at the start raise an alarm.",
    )
    file_buffer_bytes_max: int = _buffer(
        10 * 1024 * MIB, "BYTES_MAX", ge=MIB, description="Most bytes in the spool, then 507."
    )
    file_buffer_age_max_s: float = _buffer(
        7 * 86_400.0, "AGE_MAX_S", gt=0, description="Oldest event in the spool, then 507."
    )
    log_level: str = Field("info", pattern="^(debug|info|warning|error)$", description="Log level.")

    @model_validator(mode="after")
    def _check_sizes(self) -> "Settings":
        if self.message_bytes_max > self.request_bytes_max:
            raise ValueError(
                "message_bytes_max must not exceed request_bytes_max: "
                f"{self.message_bytes_max} > {self.request_bytes_max}"
            )
        return self


def load(**given: object) -> Settings:
    """Settings from flags (None means: not given) and the environment."""
    try:
        return Settings(**{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
    except ValidationError as exc:
        first = exc.errors()[0]
        raise SettingsError(_complaint(first["loc"], first["msg"], first.get("input"))) from exc


def _complaint(where: tuple[int | str, ...], message: str, given: object) -> str:
    if not where:
        # The input is all settings together, secrets too; the message names those that matter.
        return f"settings: {message}"
    name = ".".join(map(str, where))
    return f"{name}: {message} (given: {given!r})"
