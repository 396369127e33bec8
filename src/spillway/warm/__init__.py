"""A cache of bodies next in line: appended bodies in, dispatched bodies out; imports core only."""
