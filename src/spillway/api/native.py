"""The native dialect: every route.

Dispatch, the Allow header, /openapi.json and /docs are all read off this table.
"""

from spillway import wire
from spillway.api import delivery, health, inspection, metrics, queues, spool, verbs
from spillway.api.health import LiveReply
from spillway.api.push import PushRefusal, push
from spillway.api.reference import with_reference
from spillway.api.routing import Route

_QUEUE = "/v1/queues/{queue}"
_GROUP = "/v1/queues/{queue}/groups/{group}"
_VERB = {200: (wire.VerbReply,)}

_ROUTES = (
    # ------------------------------------------------------------ messages
    Route(
        "POST",
        "/v1/messages",
        push,
        "Push messages; a bad item fails alone",
        {201: (wire.PushReply,), 400: (PushRefusal, wire.ErrorReply)},
        body=wire.PushRequest,
    ),
    Route(
        "POST",
        f"{_QUEUE}/lease",
        delivery.lease,
        "Lease messages",
        {200: (wire.LeaseReply,)},
        body=wire.LeaseRequest,
        body_optional=True,
    ),
    Route(
        "POST",
        "/v1/settle",
        delivery.settle,
        "Ack, nack and extend, and lease more, in one round trip",
        {200: (wire.SettleReply,)},
        body=wire.SettleRequest,
    ),
    Route(
        "GET",
        f"{_QUEUE}/messages",
        inspection.browse,
        "Browse without leasing",
        {200: (wire.BrowseReply,)},
        query=inspection.BrowseQuery,
    ),
    Route(
        "GET",
        f"{_QUEUE}/messages/{{partition}}/{{version}}",
        inspection.story,
        "A message and every control event that touched it",
        {200: (wire.StoryReply,)},
        query=inspection.StoryQuery,
    ),
    # ------------------------------------------------------------ queues and groups
    Route(
        "GET",
        "/v1/queues",
        queues.list_queues,
        "List queues with their counts",
        {200: (wire.QueueListReply,)},
        query=queues.ListQuery,
    ),
    Route(
        "PUT",
        _QUEUE,
        queues.put_queue,
        "Make a queue, or set all its options",
        {200: (wire.QueueReply,), 201: (wire.QueueReply,)},
        body=wire.QueueOptions,
        body_optional=True,
    ),
    Route(
        "PATCH",
        _QUEUE,
        queues.patch_queue,
        "Change some options of a queue",
        {200: (wire.QueueReply,)},
        body=wire.QueuePatch,
    ),
    Route("GET", _QUEUE, queues.get_queue, "Show a queue", {200: (wire.QueueReply,)}),
    Route(
        "DELETE",
        _QUEUE,
        queues.delete_queue,
        "Delete a queue and its messages",
        {200: (wire.DeletedReply,)},
        query=queues.ReasonQuery,
    ),
    Route(
        "GET",
        f"{_QUEUE}/groups",
        queues.list_groups,
        "List the consumer groups of a queue",
        {200: (wire.GroupListReply,)},
    ),
    Route(
        "PUT",
        _GROUP,
        queues.put_group,
        "Make a consumer group",
        {200: (wire.GroupCounts,), 201: (wire.GroupCounts,)},
        body=wire.GroupOptions,
        body_optional=True,
    ),
    Route("GET", _GROUP, queues.get_group, "Show a group", {200: (wire.GroupCounts,)}),
    Route("DELETE", _GROUP, queues.delete_group, "Delete a group", {200: (wire.DeletedReply,)}),
    # ------------------------------------------------------------ operator verbs
    Route(
        "GET",
        f"{_QUEUE}/dead",
        inspection.dead,
        "List dead letters",
        {200: (wire.DeadReply,)},
        query=inspection.DeadQuery,
    ),
    Route(
        "GET",
        f"{_QUEUE}/blocked",
        inspection.blocked,
        "List blocked messages",
        {200: (wire.BlockedReply,)},
        query=inspection.BlockedQuery,
    ),
    Route(
        "POST",
        f"{_QUEUE}/redrive",
        verbs.redrive,
        "Put dead letters back to their lanes",
        _VERB,
        body=wire.RedriveRequest,
        body_optional=True,
    ),
    Route(
        "POST",
        f"{_QUEUE}/unblock",
        verbs.unblock,
        "Retry, skip or park blocked messages",
        _VERB,
        body=wire.UnblockRequest,
        body_optional=True,
    ),
    Route(
        "POST",
        f"{_QUEUE}/park",
        verbs.park,
        "Give up on messages by hand",
        _VERB,
        body=wire.ParkRequest,
        body_optional=True,
    ),
    Route(
        "POST",
        f"{_QUEUE}/purge",
        verbs.purge,
        "Settle what waits, or delete dead letters",
        _VERB,
        body=wire.PurgeRequest,
    ),
    Route("POST", f"{_QUEUE}/seek", verbs.seek, "Move a group", _VERB, body=wire.SeekRequest),
    Route(
        "POST",
        f"{_QUEUE}/pause",
        verbs.pause,
        "Stop leasing",
        _VERB,
        body=wire.PauseRequest,
        body_optional=True,
    ),
    Route(
        "POST",
        f"{_QUEUE}/resume",
        verbs.resume,
        "Start leasing again",
        _VERB,
        body=wire.PauseRequest,
        body_optional=True,
    ),
    # ------------------------------------------------------------ the spool
    Route(
        "GET",
        "/v1/spool",
        spool.status,
        "What waits in files, since when, and what stands in its way",
        {200: (wire.SpoolReply,)},
    ),
    Route(
        "POST",
        "/v1/spool/hold",
        spool.hold,
        "Route pushes to files on purpose, and replay nothing",
        {200: (wire.SpoolReply,)},
        body=wire.SpoolHoldRequest,
        body_optional=True,
    ),
    Route(
        "POST",
        "/v1/spool/release",
        spool.release,
        "End the hold: replay, and let pushes through again",
        {200: (wire.SpoolReply,)},
        body=wire.SpoolHoldRequest,
        body_optional=True,
    ),
    # ------------------------------------------------------------ the broker itself
    Route(
        "GET",
        "/health",
        health.health,
        "How the broker is",
        {200: (wire.HealthReply,)},
        is_open=True,
    ),
    Route(
        "GET",
        "/health/live",
        health.live,
        "Whether the process answers",
        {200: (LiveReply,)},
        is_open=True,
    ),
    Route(
        "GET",
        "/health/ready",
        health.ready,
        "Whether to send traffic here",
        {200: (wire.HealthReply,), 503: (wire.HealthReply,)},
        is_open=True,
    ),
    Route(
        "GET",
        "/metrics",
        metrics.metrics,
        "Prometheus text, or the same facts as JSON",
        {200: ()},
        query=metrics.MetricsQuery,
        media=metrics.PROMETHEUS,
    ),
    Route(
        "GET",
        "/v1/topology",
        health.topology,
        "Shards and brokers",
        {200: (wire.TopologyReply,)},
    ),
    Route(
        "GET",
        "/v1/audit",
        health.audit,
        "Check the conservation law from the log",
        {200: (wire.AuditReply,)},
    ),
)

ROUTES = with_reference(_ROUTES)
