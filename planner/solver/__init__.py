"""From a problem of arrays to a choice with a bound; nothing here knows of programs."""
