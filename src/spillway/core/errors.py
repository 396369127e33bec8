"""Every error of Spillway: what, which value, which limit, and the next step.

`code` is the interface (stable, documented); the text is free to improve. `status` is the HTTP
answer and `transient` is what retry policies read. One class per cause, one base for all.
"""

from typing import ClassVar


class SpillwayError(Exception):
    """Something went wrong inside Spillway."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    transient: ClassVar[bool] = False
    hint: str = "this is a bug: please report it with the broker's log lines around it"

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        self.message = message or (type(self).__doc__ or "").strip().splitlines()[0]
        if hint is not None:
            self.hint = hint
        super().__init__(self.message)


class InvariantError(SpillwayError):
    """A rule that the code relies on does not hold."""

    code = "invariant"


def invariant(condition: bool, why: str) -> None:  # noqa: FBT001 (reads as `invariant(x > 0, "...")`)
    """Stop at once when the program contradicts itself; unlike `assert` it survives `-O`."""
    if not condition:
        raise InvariantError(why)


class BadRequestError(SpillwayError):
    """The request cannot be understood."""

    code = "bad_request"
    status = 400
    hint = "compare the request with /openapi.json"


class InvalidItemError(BadRequestError):
    """The item breaks a rule or a limit."""

    code = "invalid_item"
    hint = "mend the item and push it again; each item of a request is judged for itself"


class InvalidNameError(BadRequestError):
    """The name is outside the allowed pattern."""

    code = "invalid_name"
    hint = "queue and group names match [A-Za-z0-9][A-Za-z0-9._-]{0,127}"


class UnknownOptionError(BadRequestError):
    """The option is unknown or not available."""

    code = "unknown_option"
    hint = "options are listed in docs/reference/http.md and /openapi.json"


class SelectionRequiredError(BadRequestError):
    """A bulk change without a filter was refused."""

    code = "selection_required"
    hint = 'name the messages, give a filter, or say "all": true'


class UnauthorizedError(SpillwayError):
    """The API key is missing or unknown."""

    code = "unauthorized"
    status = 401
    hint = "send `Authorization: Bearer KEY`; `spillway key create` makes one"


class ForbiddenError(SpillwayError):
    """The API key belongs to another org."""

    code = "forbidden"
    status = 403
    hint = "drop X-Spillway-Org or use a key of that org"


class QueueNotFoundError(SpillwayError):
    """There is no such queue."""

    code = "queue_not_found"
    status = 404
    hint = "create it with PUT /v1/queues/{queue}, or push to it if auto-create is on"


class GroupNotFoundError(SpillwayError):
    """There is no such consumer group."""

    code = "group_not_found"
    status = 404
    hint = "a group is made by its first lease or by PUT /v1/queues/{queue}/groups/{group}"


class MessageNotFoundError(SpillwayError):
    """There is no such message."""

    code = "message_not_found"
    status = 404
    hint = "it may be pruned (see the queue's retention_ms) or was never written"


class NotFoundError(SpillwayError):
    """There is nothing at this address."""

    code = "not_found"
    status = 404
    hint = "the addresses are listed in /openapi.json"


class MethodNotAllowedError(SpillwayError):
    """The address exists, but not for this method."""

    code = "method_not_allowed"
    status = 405
    hint = "the Allow header names the methods"


class StaleReceiptError(SpillwayError):
    """The lease behind this receipt is over."""

    code = "stale_receipt"
    status = 409
    hint = "the message was or will be delivered again; raise visibility_ms or extend in time"


class InvalidReceiptError(SpillwayError):
    """This is no receipt of Spillway."""

    code = "invalid_receipt"
    status = 400
    hint = "send the receipt of a leased message as it came, whole and unchanged"


class TransactionConflictError(SpillwayError):
    """This transaction id was already used with another payload."""

    code = "transaction_conflict"
    status = 409
    hint = "a retry must carry the same payload; a new message needs a new transaction id"


class GroupConflictError(SpillwayError):
    """The group exists with another start or kind."""

    code = "group_conflict"
    status = 409
    hint = "use seek to move an existing group"


class RequestTooLargeError(SpillwayError):
    """The request body is over the limit."""

    code = "request_too_large"
    status = 413
    hint = "send smaller batches; the limit is the setting request_bytes_max"


class BodyTimeoutError(SpillwayError):
    """The rest of the request did not come."""

    code = "body_timeout"
    status = 408
    transient = True
    hint = "send the whole body; the limit is the setting body_timeout_s"


class UnsupportedMediaTypeError(SpillwayError):
    """The content type is not supported."""

    code = "unsupported_media_type"
    status = 415
    hint = "use application/json or application/msgpack"


class QuotaExceededError(SpillwayError):
    """The org is at its cap of queues, or the queue at its cap of groups."""

    code = "quota_exceeded"
    status = 429
    hint = "delete queues that are no longer used or raise the setting queues_per_org_max"


class QueueFullError(SpillwayError):
    """A lane of the queue is as deep as it may be."""

    code = "queue_full"
    status = 429
    transient = True
    hint = "add consumers, or raise the queue's max_depth"


class OverloadedError(SpillwayError):
    """The broker has as much work waiting as it may hold."""

    code = "overloaded"
    status = 503
    transient = True
    hint = "try again after Retry-After; send larger batches on fewer connections"


class DatabaseUnavailableError(SpillwayError):
    """PostgreSQL does not answer."""

    code = "database_unavailable"
    status = 503
    transient = True
    hint = "try again after Retry-After; `spillway doctor` tells what is wrong"


class NotOwnerError(SpillwayError):
    """Another broker owns this shard."""

    code = "not_owner"
    status = 503
    transient = True
    hint = "try again after Retry-After; GET /v1/topology names the owner"


class ShardReloadingError(SpillwayError):
    """A commit before this one was refused; this one was not tried."""

    code = "shard_reloading"
    status = 503
    transient = True
    hint = "try again after Retry-After; nothing of it is stored"


class CommitRefusedError(ShardReloadingError):
    """PostgreSQL refused the commit, for this or for something else in it."""

    code = "commit_refused"


class ShuttingDownError(SpillwayError):
    """The broker is shutting down."""

    code = "shutting_down"
    status = 503
    transient = True
    hint = "try again on another broker or after the restart"


class DatabaseVersionError(SpillwayError):
    """The PostgreSQL server is too old."""

    code = "database_version"
    hint = "Spillway needs PostgreSQL 14 or newer"


class DatabasePermissionError(SpillwayError):
    """The PostgreSQL role may not do what Spillway needs."""

    code = "database_permission"
    hint = "grant CREATE on the database, or run `spillway schema apply` once as its owner"


class DatabaseSchemaError(SpillwayError):
    """The tables of Spillway are not there, or not as they should be."""

    code = "database_schema"
    hint = "apply the schema: `spillway schema apply`"


class EmbeddedPostgresError(SpillwayError):
    """The embedded PostgreSQL does not start."""

    code = "embedded_postgres"
    hint = "the last lines of postgres.log in the data folder tell why"


class SettingsError(SpillwayError):
    """A setting is wrong."""

    code = "settings"
    hint = "settings are listed in docs/reference/settings.md"


class SpoolFullError(SpillwayError):
    """The spool has no room."""

    code = "spool_full"
    status = 507
    transient = True
    hint = "nothing of it was accepted; `spillway spool status` tells what fills it and since when"


class SpoolFolderError(SpillwayError):
    """The folder of the spool cannot be used."""

    code = "spool_folder"
    status = 503
    hint = "give FILE_BUFFER_DIR a folder that this process may write and no other broker uses"


class SpoolFileNotFoundError(SpillwayError):
    """The spool has no such file."""

    code = "spool_file_not_found"
    status = 404
    hint = "`spillway spool list` names the files"


class SpoolLineNotFoundError(SpillwayError):
    """The file of the spool has no event at this line."""

    code = "spool_line_not_found"
    status = 404
    hint = "`spillway spool show FILE` tells the lines; an event goes once it is in the log"


class SpoolHeldError(SpillwayError):
    """The spool is held on purpose: nothing goes into the log."""

    code = "spool_held"
    status = 409
    hint = "`spillway spool release` ends the hold"


class SpoolOwnerUnreachableError(SpillwayError):
    """The broker that owns the shards takes no events of this one's spool."""

    code = "spool_owner_unreachable"
    status = 503
    transient = True
    hint = "see that the owner runs and can be reached there; its setting `address` says where"


class ReplayInterruptedError(SpillwayError):
    """The replay begins again at the first event that is not in the log."""

    code = "replay_interrupted"
    status = 503
    transient = True
    hint = "it goes on by itself; `spillway spool status` tells what stands in its way"


class DamagedLineError(SpillwayError):
    """A line of a buffer file is not what was written."""

    code = "damaged_line"
    status = 422
    hint = "look at it with `spillway spool show FILE`, then `spool repair` or `spool discard` it"
