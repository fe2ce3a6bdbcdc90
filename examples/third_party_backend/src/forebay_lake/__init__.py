"""A Forebay backend for the lake object store: installing it is all that it takes."""
