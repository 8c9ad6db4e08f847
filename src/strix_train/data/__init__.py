"""Data sets: our own streaming reader, before any data library sees a file."""
