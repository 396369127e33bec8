"""Push an order; two groups handle and ack it. Run it beside `spillway serve`."""

import spillway

with spillway.Client("http://127.0.0.1:6632") as client:
    client.push("orders", {"order": 1, "total": 42.0}, key="customer-7")

    for group in ("default", "audit"):  # two groups: each sees every message
        with client.consume("orders", group, idle_timeout_s=1) as messages:
            for message in messages:
                print(group, message.key, message.payload)
                # an exception here gives the message back, with its text;
                # coming round again acks it
