"""The http and https backend of Forebay."""
