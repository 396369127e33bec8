"""What applications import: calls in, HTTP requests out; imports core and the wire shapes only."""
