"""The next step, in the words of the command line.

An error carries its hint in the words of the wire, where the caller may be any program; where a
command of ours is the next step, it is named here.
"""

from spillway.core.errors import SpillwayError

NOW = "try again in a moment; `spillway doctor` tells what holds the broker up"

HINTS = {
    "bad_request": "`--help` of the command tells what its options take",
    "database_unavailable": "is PostgreSQL running, and does the url (--database-url, "
    "SPILLWAY_DATABASE_URL) lead to it? `spillway doctor` asks the broker",
    "forbidden": "drop --org (SPILLWAY_ORG), or give a key of that org",
    "group_not_found": "`spillway queue groups QUEUE` lists them; the first lease makes one, and "
    "so does `spillway queue group-create`",
    "invalid_item": "mend the message and push it again; each is judged for itself",
    "not_owner": NOW,
    "overloaded": NOW,
    "queue_not_found": "`spillway queue list` shows those there are, `spillway queue create` makes "
    "one",
    "request_timeout": "give --timeout SECONDS (SPILLWAY_TIMEOUT); `spillway doctor` tells what "
    "holds the broker up",
    "shutting_down": NOW,
    "unauthorized": "give --api-key KEY (SPILLWAY_API_KEY); `spillway key create NAME` makes one",
    "unknown_option": "`--help` of this command lists its options",
}


def hint_of(error: SpillwayError) -> str:
    """What to do next; a hint that was written for this very case stands."""
    generic = error.hint == type(error).hint
    return HINTS.get(error.code, error.hint) if generic else error.hint
