"""`python -m meshwright`: the program `meshwright`, where its script is not on PATH."""

from planner.cli.main import main

if __name__ == "__main__":
    main()
