"""The command line, `meshwright`; see `docs/command-line.md`."""
