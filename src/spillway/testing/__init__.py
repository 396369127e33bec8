"""The shipped test kit: scenarios in, verdicts out; imports core and what it puts to the test."""
