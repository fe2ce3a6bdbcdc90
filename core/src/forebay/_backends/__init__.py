"""The backends that need nothing but Python: local files and the process's own memory."""
