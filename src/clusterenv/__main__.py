"""``python -m clusterenv``."""

from clusterenv.cli.main import main

if __name__ == "__main__":
    main()
