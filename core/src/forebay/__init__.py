"""Stream training data from any object store through one bounded, shared, crash-safe cache per machine."""
