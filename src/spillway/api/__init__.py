"""The HTTP skins: requests in, broker commands out, replies back; imports broker, core and wire."""
