"""`python -m planner.cli` is `meshwright`."""

from .main import main

if __name__ == "__main__":
    main()
