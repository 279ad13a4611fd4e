"""The embedded database: Django's SQLite backend behind one writer lock for all processes."""
